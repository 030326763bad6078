"""The priority of a call, and the promotion of waiting calls that would otherwise starve."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

from agentrt.scheduler.records import EngineProgram, QueuedCall


class Priority(NamedTuple):
    """The priority of a call. Smaller levels run first; within a level, smaller orders (numbers or
    tuples of numbers).

    Only a call of a strictly better level preempts another. After ``quantum_s`` seconds of service,
    the policy is asked for a new priority (`Policy.on_quantum_expired`).
    """

    level: int
    quantum_s: float = math.inf
    order: Any = 0.0


class Promoter:
    """A promoter of calls that have waited for long. This base class promotes no calls.

    Promoted calls get the priority ``priority``, which precedes the policy's order. They keep this
    priority until they end if ``keeps`` is set, and otherwise until their quantum is used up.
    """

    priority = Priority(0)
    keeps: ClassVar[bool] = False

    def waits(self, call: QueuedCall) -> None:
        """Handle that a call waits in the queue since ``call.since``. Called again when its level
        changes.
        """

    def started(self, call: QueuedCall, now: float) -> None:
        """Handle the start of a call."""

    def charged(self, call: QueuedCall, seconds: float) -> None:
        """Handle that a promoted call was served for ``seconds``."""

    def left(self, call: QueuedCall) -> None:
        """Handle that a call ended, in any state, or lost its promotion."""

    def program_changed(self, program: EngineProgram) -> None:
        """Handle a change of a program's own service or waiting time."""

    def promote(self, now: float) -> QueuedCall | None:
        """Return the next call to promote ``now``, or None. Amortised O(log n)."""
        return None

    def next_moment(self, now: float) -> float | None:
        """Return when a call may have to be promoted if no event happens before; None if never."""
        return None
