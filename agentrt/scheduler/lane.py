"""The lane: a small share of the batch that serves programs in the order of their arrival.

It bounds the tail of a policy that prefers the short: whatever comes after it, the oldest
program is served at the lane's rate at least, so a program's waiting is bounded by the
work of those that were there before it over that rate.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrt.scheduler.call import QueuedCall

_SLACK = 64
_SAVED_S = 1.0
"""What a lane that nobody needed can save up: so many seconds of its own rate, or of one slot."""
CHARGED_EVERY_S = 0.25
"""A lane's call is charged at least so often. Charged later than that, and all at once, its
service would find the credit of that time cut off already at what can be saved."""


class Lane:
    """Admits waiting calls, the oldest program's first, as far as its share has paid for.

    The share is a token bucket of slot-seconds: it fills at ``share * slots`` per second
    and is drawn on by the lane's calls, so that a lane narrower than one slot works too.
    """

    def __init__(self, share: float, slots: int) -> None:
        self._rate = share * slots
        self._most = math.ceil(self._rate)
        self._most_credit = _SAVED_S * max(1.0, self._rate)
        self._credit = 0.0
        self._at = 0.0
        self._inside = 0
        self._line: list[tuple[float, int, QueuedCall]] = []

    def line_up(self, call: QueuedCall) -> None:
        """A call waits outside the lane. O(log n)."""
        if not self._most or call.in_lane or call.in_line:
            return
        call.in_line = True
        heapq.heappush(self._line, (call.program.started_at, call.seq, call))

    def tidy(self, waiting: int) -> None:
        """So many calls wait: once more than as many in the line do not, these are dropped."""
        if len(self._line) <= 2 * waiting + _SLACK:
            return
        kept = []
        for entry in self._line:
            entry[2].in_line = entry[2].queued
            if entry[2].in_line:
                kept.append(entry)
        heapq.heapify(kept)
        self._line = kept

    def admit(self, now: float) -> QueuedCall | None:
        """The next call to enter the lane ``now``, or None. Amortised O(log n)."""
        self._fill(now)
        if self._credit <= 0 or self._inside >= self._most or self._first() is None:
            return None
        call = heapq.heappop(self._line)[2]
        call.in_line = False
        call.in_lane = True
        self._inside += 1
        return call

    def next_moment(self, now: float) -> float | None:
        """When a call may enter that cannot yet, if nothing happens till then; or None."""
        if self._inside >= self._most or self._first() is None:
            return None
        return max(now, self._at - self._credit / self._rate)

    def charge(self, seconds: float) -> None:
        """A call of the lane was served."""
        self._credit -= seconds

    def leave(self, call: QueuedCall) -> None:
        """A call of the lane ended."""
        call.in_lane = False
        self._inside -= 1

    def _fill(self, now: float) -> None:
        self._credit = min(self._most_credit, self._credit + self._rate * (now - self._at))
        self._at = now

    def _first(self) -> QueuedCall | None:
        line = self._line
        while line and not line[0][2].queued:
            heapq.heappop(line)[2].in_line = False
        return line[0][2] if line else None
