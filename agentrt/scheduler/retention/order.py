"""Contexts in the order in which they lose their blocks.

Ranks change as time passes, so those in the heap are estimates: the head is ranked anew
before it is believed, and a few others with every new moment, in turn. An operation costs
O(log n); up to `_REFRESHED` contexts the order is exact.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import NamedTuple

from agentrt.scheduler.retention.base import Rank
from agentrt.scheduler.retention.context import Context

_REFRESHED = 16
_SLACK = 64


class _Entry(NamedTuple):
    rank: Rank
    serial: int
    context: Context


class Ranking:
    """The contexts that have blocks to lose. ``rank(context, now)`` tells whose go first."""

    def __init__(self, rank: Callable[[Context, float], Rank]) -> None:
        self._rank = rank
        self._heap: list[_Entry] = []
        self._valid: dict[Context, _Entry] = {}
        self._serial = 0
        self._refreshed_at = -1.0

    def __len__(self) -> int:
        return len(self._valid)

    def __contains__(self, context: Context) -> bool:
        return context in self._valid

    def put(self, context: Context, now: float) -> None:
        """Rank a context, for the first time or anew."""
        self._serial += 1
        entry = _Entry(self._rank(context, now), self._serial, context)
        # Out and in again, so that the contexts ranked longest ago are at the front.
        self._valid.pop(context, None)
        self._valid[context] = entry
        heapq.heappush(self._heap, entry)
        if len(self._heap) > _SLACK + 2 * len(self._valid):
            self._heap = list(self._valid.values())
            heapq.heapify(self._heap)

    def discard(self, context: Context) -> None:
        """Forget a context, known or not."""
        self._valid.pop(context, None)

    def first(self, now: float) -> Context | None:
        """The context that loses its blocks first; None where there is none."""
        self._refresh(now)
        while self._heap:
            entry = self._heap[0]
            if self._valid.get(entry.context) is not entry:
                heapq.heappop(self._heap)
                continue
            if self._rank(entry.context, now) <= entry.rank:
                return entry.context
            heapq.heappop(self._heap)
            self.put(entry.context, now)
        return None

    def in_order(self, now: float) -> Iterator[Context]:
        """All contexts, the first to lose its blocks first: O(n log n)."""
        return iter(sorted(self._valid, key=lambda context: self._rank(context, now)))

    def _refresh(self, now: float) -> None:
        if now == self._refreshed_at:
            return
        self._refreshed_at = now
        oldest = [context for context, _ in zip(self._valid, range(_REFRESHED), strict=False)]
        for context in oldest:
            self.put(context, now)
