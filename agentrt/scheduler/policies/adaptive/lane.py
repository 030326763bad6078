"""The lane: a share of the batch reserved for the oldest programs, first come first served.

It bounds the tail of a policy that prefers the short: whatever comes after it, the oldest
program is served at the lane's rate at least, so a program's waiting is bounded by the
work of those that were there before it over that rate. The rate grows while the oldest waits
much longer than the others do: a few are left behind then, and small ones pass them by.
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
_CROWD = 8
"""So many must be in line for their ages to say how unfairly they wait."""
_UNFAIR = 1.5
"""The oldest's age over the mean age from which the lane grows. Served in the order of arrival
it would be 2, the ages being spread evenly; less than that keeps the tail of chats in overload
(docs/results/policies.md has what other values give)."""
_GROWTH = 4.0
"""How many times its share the lane serves at most."""


class Lane:
    """Admits waiting calls, the oldest program's first, as far as its share has paid for.

    The share is a token bucket of slot-seconds: it fills at ``share * slots`` per second
    and is drawn on by the lane's calls, so that a lane narrower than one slot works too.
    It fills up to `_GROWTH` times as fast while the oldest in line is `_UNFAIR` times as old as
    the mean, or more.
    """

    def __init__(self, share: float, slots: int) -> None:
        self._share = share * slots
        self._slots = slots
        self._credit = 0.0
        self._at = 0.0
        self._inside = 0
        self._line: list[tuple[float, int, QueuedCall]] = []
        self._started = 0.0  # the sum of the line's first fields, for its mean age
        self._go_at(self._share)

    def line_up(self, call: QueuedCall) -> None:
        """A call waits outside the lane. O(log n)."""
        if not self._most or call.in_lane or call.in_line:
            return
        call.in_line = True
        heapq.heappush(self._line, (call.program.started_at, call.seq, call))
        self._started += call.program.started_at

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
        self._started = math.fsum(entry[0] for entry in kept)

    def admit(self, now: float) -> QueuedCall | None:
        """The next call to enter the lane ``now``, or None. Amortised O(log n)."""
        if not self._most:
            return None
        self._fill(now)
        if self._credit <= 0 or self._inside >= self._most or self._first() is None:
            return None
        call = self._pop()
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
        if self._share:
            rate = min(self._share * self._growth(now), max(self._share, self._slots))
            if rate != self._rate:
                self._go_at(rate)

    def _growth(self, now: float) -> float:
        """How many times its share the lane serves, for the oldest waits longer than the others."""
        first = self._first()
        if first is None or len(self._line) < _CROWD:
            return 1.0
        # Calls that left the queue otherwise may still be in line; they are as many at most.
        mean_age = now - self._started / len(self._line)
        if mean_age <= 0:
            return 1.0
        unfair = (now - first.program.started_at) / mean_age
        return min(max(unfair / _UNFAIR, 1.0), _GROWTH)

    def _go_at(self, rate: float) -> None:
        self._rate = rate
        self._most = math.ceil(rate)
        self._most_credit = _SAVED_S * max(1.0, rate)

    def _first(self) -> QueuedCall | None:
        while self._line and not self._line[0][2].queued:
            self._pop()
        return self._line[0][2] if self._line else None

    def _pop(self) -> QueuedCall:
        started_at, _, call = heapq.heappop(self._line)
        self._started -= started_at
        call.in_line = False
        return call
