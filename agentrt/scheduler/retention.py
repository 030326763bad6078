"""Retention: which programs' cached blocks are evicted first.

`CachedBlocks` are the blocks of a program, a session or a shared prompt in the prefix cache. An
`EvictionOrder` contains those that have free blocks, which can be evicted.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.heap import Heap
from agentrt.scheduler.learned import DOUBT, RESOLUTION_S, Forecast, Learned
from agentrt.scheduler.records import CachedBlocks

BETWEEN = "(between calls)"
"""The gap between two calls of a program, if no tool of it is known."""
HUMAN = "(human)"
SESSION = "(session)"
"""The gap between two programs of a session."""
_SLOW = (HUMAN, SESSION)
"""Gaps that are assumed to last too long for any cache, until there are `DOUBT` samples of them."""

Place = tuple[float, ...]


class Retention(ABC):
    """A retention policy, which decides which blocks are evicted first."""

    name: ClassVar[str]
    expires: ClassVar[bool] = False
    """Whether `expired` can be true for the blocks that are evicted first."""

    def __init__(self, config: SchedulerConfig, learned: Learned) -> None:
        self.config, self.learned = config, learned

    @abstractmethod
    def place(self, blocks: CachedBlocks) -> Place | None:
        """Return the place of blocks in the eviction order, which stays the same until an event.
        Blocks with the smallest place are evicted first.

        None means that the blocks are evicted after all blocks with a place, in the order of their
        `worth`.
        """

    def steady(self, blocks: CachedBlocks) -> bool:
        """Return whether the `worth` of blocks stays the same until an event."""
        return False

    def worth(self, blocks: CachedBlocks, now: float, sharers: int) -> float:
        """Return the expected loss if the blocks are evicted, in returns per second. ``sharers`` is
        the number of live programs of their type.
        """
        return 0.0

    def expired(self, blocks: CachedBlocks, now: float) -> bool:
        """Return whether the blocks' protection has ended: they may be evicted like all others."""
        return False


class Cost(Retention):
    """The retention ``cost``: blocks whose loss costs least are evicted first. The cost is the
    expected number of returns per second.

    An evicted block must be recomputed when its program returns, and every block takes the same
    time. Blocks of sessions without a program are evicted first, then those of programs that are
    not resident (`WorkingSet`), then those of resident programs.
    """

    name: ClassVar[str] = "cost"

    def place(self, blocks: CachedBlocks) -> Place | None:
        if blocks.shared or blocks.resident:
            return None
        return (float(bool(blocks.rows)), blocks.since)

    def steady(self, blocks: CachedBlocks) -> bool:
        return blocks.calling and not (blocks.shared or blocks.branches)

    def worth(self, blocks: CachedBlocks, now: float, sharers: int) -> float:
        if blocks.shared or blocks.branches:
            # Each sharer returns about as often as the blocks were used. For branches, an ended
            # branch looks like one that will be continued, so assume that blocks will stay unused
            # for as long as they have been unused.
            users = (sharers or 1) if blocks.shared else 1
            return users / max(now - blocks.oldest, RESOLUTION_S)
        forecast = returns(self.learned, blocks, now)
        return forecast.chance / forecast.seconds


def returns(learned: Learned, blocks: CachedBlocks, now: float) -> Forecast:
    """Return the probability that the program makes another call that uses these blocks, and the
    expected number of seconds until that call.
    """
    if blocks.gap is None or blocks.calling:  # a call is in the engine, or about to arrive
        return Forecast(1.0, RESOLUTION_S)
    kinds = blocks.kinds(blocks.gap)
    forecast = learned.gaps.expect(kinds, now - blocks.since)
    if blocks.silence is not None:
        forecast = forecast._replace(chance=blocks.silence.chance(now, forecast.chance))
    if blocks.gap in _SLOW:
        known = learned.gaps.at(kinds[1], 0)
        if known is None or known.well.n < DOUBT:
            return forecast._replace(seconds=math.inf)
    return forecast


class EvictionOrder:
    """The owners of free blocks, in the order in which their blocks are evicted.

    Most owners have a place or a worth that changes only by events. The few owners whose worth
    changes with time are all compared whenever a block must be evicted. An owner's place is
    computed only then, even if it has changed several times before.
    """

    def __init__(self, retention: Retention, sharers: Callable[[str], int]) -> None:
        self.retention = retention
        self._sharers = sharers
        self.clear()

    def put(self, blocks: CachedBlocks) -> None:
        """Add an owner's blocks, or update their place."""
        self._unranked.pop(blocks, None)  # among equals, the last that changed comes last
        self._unranked[blocks] = None

    def discard(self, blocks: CachedBlocks) -> None:
        """Remove an owner's blocks from the eviction order, if they are in it."""
        self._unranked.pop(blocks, None)
        self._placed.discard(blocks)
        self._steady.discard(blocks)
        self._weighed.pop(blocks, None)

    def clear(self) -> None:
        """Remove all."""
        self._unranked: dict[CachedBlocks, None] = {}
        self._placed: Heap[CachedBlocks] = Heap()
        self._steady: Heap[CachedBlocks] = Heap()
        self._weighed: dict[CachedBlocks, None] = {}

    def first(self, now: float) -> CachedBlocks | None:
        """Return the owner whose blocks are evicted first; None if there is none."""
        self._rank()
        if (first := self._placed.first()) is not None:
            return first
        steady = self._steady.first()
        candidates = [*self._weighed] if steady is None else [steady, *self._weighed]
        return min(candidates, key=lambda blocks: self._weight(blocks, now), default=None)

    def in_order(self, now: float) -> Iterator[CachedBlocks]:
        """Yield all owners in the order in which their blocks are evicted. O(n log n)."""
        self._rank()
        yield from self._placed
        candidates = [*self._steady, *self._weighed]
        yield from sorted(candidates, key=lambda blocks: self._weight(blocks, now))

    def _rank(self) -> None:
        """Compute the places of the owners that have changed."""
        unranked, self._unranked = self._unranked, {}
        for blocks in unranked:
            self.discard(blocks)
            if (place := self.retention.place(blocks)) is not None:
                self._placed.put(blocks, place)
            elif self.retention.steady(blocks):
                self._steady.put(blocks, self._weight(blocks, 0.0))
            else:
                self._weighed[blocks] = None

    def _weight(self, blocks: CachedBlocks, now: float) -> tuple[float, float]:
        # Among equals, the owner that returned last is evicted first.
        worth = self.retention.worth(blocks, now, self._sharers(blocks.type))
        return worth, -blocks.since
