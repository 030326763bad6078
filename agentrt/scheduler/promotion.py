"""The priority of a call, and what moves a waiting one up that would starve otherwise."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

from agentrt.scheduler.records import EngineProgram, QueuedCall


class Priority(NamedTuple):
    """Smaller levels run first, within one level smaller orders (numbers, or tuples of them).

    Only a call of a strictly better level preempts. ``quantum_s`` are the seconds of
    service after which the policy is asked again (`Policy.on_quantum_expired`).
    """

    level: int
    quantum_s: float = math.inf
    order: Any = 0.0


class Promoter:
    """Moves calls that waited for long up before the order of the policy. This one moves none.

    ``priority`` is what they get. Where it ``keeps`` them, they have it until they end; else until
    their quantum is used up.
    """

    priority = Priority(0)
    keeps: ClassVar[bool] = False

    def waits(self, call: QueuedCall) -> None:
        """A call waits in the queue, since ``call.since``; asked again when its level changes."""

    def started(self, call: QueuedCall, now: float) -> None:
        """A call began to run."""

    def charged(self, call: QueuedCall, seconds: float) -> None:
        """A call that was moved up was served."""

    def left(self, call: QueuedCall) -> None:
        """It ended, in whatever state."""

    def program_changed(self, program: EngineProgram) -> None:
        """A program's own service or waiting changed."""

    def promote(self, now: float) -> QueuedCall | None:
        """The next call to move up ``now``, or None. Amortised O(log n)."""
        return None

    def next_moment(self, now: float) -> float | None:
        """When there may be one, if nothing happens till then; or None."""
        return None
