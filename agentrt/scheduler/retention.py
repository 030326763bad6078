"""Whose cached blocks are evicted first.

`CachedBlocks` are what a program, a session or a shared prompt has in the prefix cache; an
`EvictionOrder` has those that have free blocks to lose.
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
"""The gap between two calls of a program of which no tool is known."""
HUMAN = "(human)"
SESSION = "(session)"
"""The gap between two programs of a session."""
_SLOW = (HUMAN, SESSION)
"""Gaps that outlast any cache, until `DOUBT` of them are known."""

Place = tuple[float, ...]


class Retention(ABC):
    """Says which blocks go first."""

    name: ClassVar[str]
    expires: ClassVar[bool] = False
    """Whether `expired` is ever true, of the blocks that go first."""

    def __init__(self, config: SchedulerConfig, learned: Learned) -> None:
        self.config, self.learned = config, learned

    @abstractmethod
    def place(self, blocks: CachedBlocks) -> Place | None:
        """Their place in the order of eviction, the least first, as long as nothing happens.

        None for those that go after all these, in the order of their `worth`.
        """

    def steady(self, blocks: CachedBlocks) -> bool:
        """Whether their `worth` stays as it is as long as nothing happens."""
        return False

    def worth(self, blocks: CachedBlocks, now: float, sharers: int) -> float:
        """What is lost with them: returns per second. ``sharers`` are their type's programs."""
        return 0.0

    def expired(self, blocks: CachedBlocks, now: float) -> bool:
        """Whether they are no longer protected, and as good as any other block."""
        return False


class Cost(Retention):
    """Those go first whose loss costs the least: the expected returns per second.

    A block that is lost has to be computed again when its program returns, and every block takes
    the same time. Programs that may not use the cache now (`WorkingSet`) go before those that may,
    and sessions without a program before both.
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
            # Each sharer comes back about as often as the blocks were used. Of branches, those
            # that ended look like those that will be gone on from: what was not used for long is
            # as likely as not to be used no sooner.
            users = (sharers or 1) if blocks.shared else 1
            return users / max(now - blocks.oldest, RESOLUTION_S)
        forecast = returns(self.learned, blocks, now)
        return forecast.chance / forecast.seconds


def returns(learned: Learned, blocks: CachedBlocks, now: float) -> Forecast:
    """How likely their program comes back for them, and in how many seconds."""
    if blocks.gap is None or blocks.calling:  # a call of it is there, or on its way
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
    """The owners of free blocks, in the order in which they lose them.

    Most stand at a place that only events change, or have a worth that does. The few whose worth
    changes with time are all looked at when one of those that use the cache has to lose blocks.
    Where one stands is asked only then, however often it has changed.
    """

    def __init__(self, retention: Retention, sharers: Callable[[str], int]) -> None:
        self.retention = retention
        self._sharers = sharers
        self.clear()

    def put(self, blocks: CachedBlocks) -> None:
        """Have these, or have them in another place."""
        self._unranked.pop(blocks, None)  # of equals, the last that changed comes last
        self._unranked[blocks] = None

    def discard(self, blocks: CachedBlocks) -> None:
        """Forget these, known or not."""
        self._unranked.pop(blocks, None)
        self._placed.discard(blocks)
        self._steady.discard(blocks)
        self._weighed.pop(blocks, None)

    def clear(self) -> None:
        """Forget all."""
        self._unranked: dict[CachedBlocks, None] = {}
        self._placed: Heap[CachedBlocks] = Heap()
        self._steady: Heap[CachedBlocks] = Heap()
        self._weighed: dict[CachedBlocks, None] = {}

    def first(self, now: float) -> CachedBlocks | None:
        """Whose blocks go first; None where there are none."""
        self._rank()
        if (first := self._placed.first()) is not None:
            return first
        steady = self._steady.first()
        some = [*self._weighed] if steady is None else [steady, *self._weighed]
        return min(some, key=lambda blocks: self._weight(blocks, now), default=None)

    def in_order(self, now: float) -> Iterator[CachedBlocks]:
        """All of them, in the order in which they lose their blocks: O(n log n)."""
        self._rank()
        yield from self._placed
        some = [*self._steady, *self._weighed]
        yield from sorted(some, key=lambda blocks: self._weight(blocks, now))

    def _rank(self) -> None:
        """Find the places of those that have changed."""
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
        # Of equals, those that came back last go first.
        worth = self.retention.worth(blocks, now, self._sharers(blocks.type))
        return worth, -blocks.since
