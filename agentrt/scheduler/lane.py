"""The lane: a share of the batch reserved for the oldest programs, first come first served.

It bounds the tail of a policy that prefers the short: whatever comes after it, the oldest
program whose calls may run is served at the lane's rate at least, so its waiting is bounded by
the work of those that were there before it over that rate.
"""

from __future__ import annotations

import math
import sys
from typing import ClassVar

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.heap import Heap
from agentrt.scheduler.promotion import Priority, Promoter
from agentrt.scheduler.records import OUTSIDE, QueuedCall

_FIRST = -sys.maxsize
"""The level before all others."""


class Lane(Promoter):
    """Promotes waiting calls, the oldest program's first, as far as its share has paid for.

    The share is a token bucket of slot-seconds: it fills at ``lane * slots`` per second
    and is drawn on by the lane's calls, so that a lane narrower than one slot works too.
    A call stays in the lane until it ends.

    A lane that nobody needed saves up two quanta of Q_1, of its own rate or of one slot, and no
    more. So its calls are charged at least twice a quantum, while that credit lasts.
    """

    keeps: ClassVar[bool] = True

    def __init__(self, config: SchedulerConfig, slots: int) -> None:
        quantum_s = config.level_quanta[0]
        self.priority = Priority(_FIRST, quantum_s / 2.0)
        self._rate = config.lane * slots
        self._most = math.ceil(self._rate)
        self._most_credit = 2.0 * quantum_s * max(1.0, self._rate)
        self._credit = 0.0
        self._at = 0.0
        self._inside = 0
        self._line: Heap[QueuedCall] = Heap()

    def waits(self, call: QueuedCall) -> None:
        # A streaming session may stay for as long as its client likes: it would hold up the lane.
        if not (call.promoted or call.resumable) and call not in self._line:
            self._line.put(call, (call.program.started_at, call.seq))

    def began(self, call: QueuedCall, now: float) -> None:
        self._line.discard(call)

    def left(self, call: QueuedCall) -> None:
        self._line.discard(call)
        self._inside -= call.promoted

    def charged(self, call: QueuedCall, seconds: float) -> None:
        if call.promoted:
            self._credit -= seconds

    def promote(self, now: float) -> QueuedCall | None:
        self._credit = min(self._most_credit, self._credit + self._rate * (now - self._at))
        self._at = now
        if self._credit <= 0 or self._inside >= self._most:
            return None
        while (first := self._line.first()) is not None:
            self._line.discard(first)
            if first.state is not OUTSIDE:  # it will line up again when it comes in
                self._inside += 1
                return first
        return None

    def next_moment(self, now: float) -> float | None:
        if self._inside >= self._most or not self._line:
            return None
        return max(now, self._at - self._credit / self._rate)
