"""The priority of a call, and the promotion of waiting calls that would otherwise starve."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

from agentrt.scheduler.records import EngineProgram, QueuedCall


class Priority(NamedTuple):
    """The priority of a call. Calls of a smaller ``level`` run first. Within a level, calls of a
    smaller ``order`` (a number, or a tuple of numbers) run first.

    A call preempts another call only if its level is strictly smaller. After ``quantum_s`` seconds
    of service, the policy chooses a new priority (`Policy.on_quantum_expired`).
    """

    level: int
    quantum_s: float = math.inf
    order: Any = 0.0


class Promoter:
    """A promoter of calls that have waited for long. This base class promotes no calls.

    A promoted call gets the priority ``priority``. The call keeps this priority until its quantum
    is used up, or, if ``keeps`` is set, until it ends. A call that the engine takes but cannot
    start loses its promotion.
    """

    priority = Priority(0)
    keeps: ClassVar[bool] = False

    def waits(self, call: QueuedCall) -> None:
        """Handle that a call waits for a slot, or for its LoRA adapter after a failed attempt to
        start. The wait began at ``call.since``. This is called again if a step that was in flight
        when the call was preempted changes the call's service, and perhaps its level.
        """

    def started(self, call: QueuedCall, now: float) -> None:
        """Handle the start of a call."""

    def charged(self, call: QueuedCall, seconds: float) -> None:
        """Handle ``seconds`` of service of a promoted call."""

    def left(self, call: QueuedCall) -> None:
        """Handle the end of a call in any state, or the loss of its promotion."""

    def program_changed(self, program: EngineProgram) -> None:
        """Handle a change of a program's own service or waiting time."""

    def promote(self, now: float) -> QueuedCall | None:
        """Return the next call to promote ``now``, or None. Amortised O(log n)."""
        return None

    def next_moment(self, now: float) -> float | None:
        """Return the earliest time at which a call may have to be promoted if no event happens
        before; None if there is no such time.
        """
        return None
