"""Retention: which programs' cached blocks are evicted first.

`CachedBlocks` are the blocks in the prefix cache that belong to an *owner*: a program, a session or
a shared prompt. An `EvictionOrder` contains the owners of free blocks, which can be evicted.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.learned.durations import RESOLUTION_S, Forecast
from agentrt.scheduler.learned.means import DOUBT
from agentrt.scheduler.priority_queue import PriorityQueue
from agentrt.scheduler.state import CachedBlocks

BETWEEN = "(between calls)"
"""The kind of a gap between two calls of a program, if the engine was not told of a tool."""
HUMAN = "(human)"
SESSION = "(session)"
"""The kind of a gap between two programs of a session."""
_SLOW = (HUMAN, SESSION)
"""Kinds of gaps that are assumed to last longer than any cache can keep blocks, until the
statistics have `DOUBT` samples of their durations.
"""

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
        """Return the place of an owner's blocks in the eviction order. The place must not change
        between two events. The blocks with the smallest place are evicted first.

        The result is None if the blocks are evicted after all blocks with a place, in the order of
        their `worth`.
        """

    def steady(self, blocks: CachedBlocks) -> bool:
        """Return whether the `worth` of blocks stays the same until an event."""
        return False

    def worth(self, blocks: CachedBlocks, now: float, sharers: int) -> float:
        """Return how often the blocks are expected to be used again, in uses per second. The blocks
        with the smallest worth are evicted first. ``sharers`` is the number of live programs of the
        blocks' type.
        """
        return 0.0

    def expired(self, blocks: CachedBlocks, now: float) -> bool:
        """Return whether the protection of blocks has ended, so that they may be evicted like all
        other blocks.
        """
        return False


class Ttl(Retention):
    """The retention ``ttl``: blocks are evicted in the order of their age, and are protected for
    ``retention_ttl`` seconds.

    The time starts again when a call ends, when the wait for a tool, an event or a human begins or
    ends, and when the program of a session ends. The blocks of a program that has a call in the
    engine are evicted after all other blocks, and stay protected.
    """

    name: ClassVar[str] = "ttl"
    expires: ClassVar[bool] = True

    def place(self, blocks: CachedBlocks) -> Place | None:
        return (float(blocks.calling), blocks.since)

    def expired(self, blocks: CachedBlocks, now: float) -> bool:
        return not blocks.calling and now - blocks.since > self.config.retention_ttl


class Cost(Retention):
    """The retention ``cost``: blocks whose loss costs least are evicted first.

    An evicted block must be recomputed when its program makes its next call, and every block takes
    the same time to recompute. So the expected cost of a loss is proportional to how often the
    program is expected to make calls. Blocks that no program will use again
    (`CachedBlocks.released`) have no place in this order, and are evicted before all others. Then
    follow blocks of sessions without a program, then blocks of programs that are not resident
    (`WorkingSet`), then shared blocks and blocks of resident programs.
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
            # There is no forecast for these blocks. A branch that has ended looks like a branch
            # that will be continued. So assume that each user will use the blocks again after as
            # many seconds as the oldest block has been unused so far.
            users = (sharers or 1) if blocks.shared else 1
            return users / max(now - blocks.oldest, RESOLUTION_S)
        forecast = returns(self.learned, blocks, now)
        return forecast.chance / forecast.seconds


def returns(learned: Learned, blocks: CachedBlocks, now: float) -> Forecast:
    """Return the probability that another call will use ``blocks``, and the expected number of
    seconds until that call.
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

    An owner has a place (`Retention.place`) or a worth (`Retention.worth`). The place of an owner,
    and the worth of a steady owner (`Retention.steady`), change only with an event. The worth of
    all other owners changes with time, so if no owner has a place, these other owners are all
    compared for each eviction. To save time, the place of an owner is computed only when a block
    must be evicted.
    """

    def __init__(self, retention: Retention, sharers: Callable[[str], int]) -> None:
        self.retention = retention
        self._sharers = sharers
        self.clear()

    def put(self, blocks: CachedBlocks) -> None:
        """Add an owner's blocks, or update their place."""
        # Remove the owner first, so that among equal places the owner that changed last comes last.
        self._unranked.pop(blocks, None)
        self._unranked[blocks] = None

    def discard(self, blocks: CachedBlocks) -> None:
        """Remove an owner's blocks from the eviction order, if they are in it."""
        self._unranked.pop(blocks, None)
        self._placed.discard(blocks)
        self._steady.discard(blocks)
        self._weighed.pop(blocks, None)

    def clear(self) -> None:
        """Remove all owners."""
        self._unranked: dict[CachedBlocks, None] = {}
        self._placed: PriorityQueue[CachedBlocks] = PriorityQueue()
        self._steady: PriorityQueue[CachedBlocks] = PriorityQueue()
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
        """Compute the place in the eviction order of each owner that has changed."""
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
        # Among equals, the owner whose gap began last is evicted first.
        worth = self.retention.worth(blocks, now, self._sharers(blocks.type))
        return worth, -blocks.since


_RETENTIONS: dict[str, type[Retention]] = {policy.name: policy for policy in (Ttl, Cost)}


def make_retention(config: SchedulerConfig, learned: Learned) -> Retention | None:
    """Return the retention policy that the settings name; None for ``lru``. `SchedulerConfig` has
    already checked the name.
    """
    made = _RETENTIONS.get(config.retention)
    return None if made is None else made(config, learned)
