"""Whose cached blocks are evicted first.

`CachedBlocks` are what a program, a session or a shared prompt has in the prefix cache;
`BlockOwners` keeps them in step with the engine's events; an `EvictionOrder` has those that have
free blocks to lose. Events may be missing or late, since a bare client of the engine sends none
of tools, and messages travel beside the calls: a call's arrival counts as a return.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.events import Events
from agentrt.scheduler.heap import Heap
from agentrt.scheduler.learned import DOUBT, KINDS, RESOLUTION_S, Forecast, Learned
from agentrt.scheduler.records import CachedBlocks, ProgramRow, QueuedCall

BETWEEN = "(between calls)"
"""The gap between two calls of a program of which no tool is known."""
HUMAN = "(human)"
SESSION = "(session)"
"""The gap between two programs of a session."""
_SLOW = (HUMAN, SESSION)
"""Gaps that outlast any cache, until `DOUBT` of them are known."""


Place = tuple[float, ...]


class Retention(ABC):
    """Says which blocks go first. It gets plain values, cannot change them, and reads no clock."""

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
    the same time. So a block is worth the chance of a return over the seconds until then. Programs
    that may not use the cache now (`WorkingSet`) go before those that may, and sessions without a
    program before both.
    """

    name: ClassVar[str] = "cost"

    def place(self, blocks: CachedBlocks) -> Place | None:
        if blocks.shared or blocks.member:
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
    known = learned.gaps.at(kinds[1], 0)
    if blocks.gap in _SLOW and (known is None or known.well.n < DOUBT):
        return forecast._replace(seconds=math.inf)
    return forecast


class BlockOwners(Events):
    """The cached blocks of one engine's programs and sessions, and what programs wait for.

    ``changed`` is called with those whose place in the order of eviction has changed. ``learned``
    is None where nothing asks for what gaps are like.
    """

    def __init__(self, learned: Learned | None) -> None:
        self._learned = learned
        self.changed: Callable[[CachedBlocks], None] = lambda blocks: None
        self._sessions: dict[tuple[str, str], CachedBlocks] = {}
        self._idle: OrderedDict[tuple[str, str], None] = OrderedDict()
        """The sessions without a live program, the longest idle first."""
        self._shared: OrderedDict[str, CachedBlocks] = OrderedDict()
        self._live: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many sessions are idle."""
        return len(self._idle)

    def sharers(self, type: str) -> int:
        """How many programs of a type are live."""
        return self._live.get(type, 0)

    def shared(self, type: str) -> CachedBlocks:
        """What several programs use, the first of them of this type."""
        if type not in self._shared:
            self._shared[type] = CachedBlocks(type, shared=True)
            if len(self._shared) > KINDS:
                _, lost = self._shared.popitem(last=False)
                lost.shared = False
                self.changed(lost)
        return self._shared[type]

    def own(self, row: ProgramRow) -> CachedBlocks:
        """A program's blocks: those of its session, if it has one."""
        if row.cached is not None:
            return row.cached
        session = None if row.session is None else (row.tenant, row.session)
        blocks = None if session is None else self._sessions.get(session)
        if blocks is None:
            blocks = CachedBlocks(row.type, row.tenant, session=session)
        if session is not None:
            self._sessions[session] = blocks
            self._idle.pop(session, None)
        row.cached = blocks
        blocks.rows[row] = None
        self._live[row.type] += 1
        return blocks

    def forget_chains(self, rows: Iterable[ProgramRow]) -> None:
        """The cache was emptied on purpose: nothing of it counts as lost."""
        for blocks in [*(row.cached for row in rows), *self._sessions.values()]:
            if blocks is not None:
                blocks.chains.clear()

    # -- events ------------------------------------------------------------------------

    def call_arrived(self, call: QueuedCall, now: float) -> None:
        row = call.program
        if row.lone:
            return
        blocks = self.own(row)
        if not any(one.tools for one in blocks.rows):
            self._close_gap(blocks, now)
        blocks.branches |= len(row.queued) > 1
        self.changed(blocks)

    def call_ended(self, call: QueuedCall, now: float) -> None:
        blocks = call.program.cached
        if blocks is None:
            return
        if not (blocks.calling or blocks.asking):
            self._open_gap(blocks, BETWEEN, now)
        self.changed(blocks)

    def interrupt_began(self, row: ProgramRow, kind: str, name: str, now: float) -> None:
        if row.cached is not None:
            self._open_gap(row.cached, HUMAN if kind == "human" else name, now)
            self.changed(row.cached)

    def interrupt_ended(self, row: ProgramRow, kind: str, now: float) -> None:
        if row.cached is not None and not row.cached.asking:
            self._close_gap(row.cached, now)
            self.changed(row.cached)

    def program_ended(self, row: ProgramRow, now: float) -> None:
        blocks, row.cached = row.cached, None
        if blocks is None:
            return
        del blocks.rows[row]
        self._live[row.type] -= 1
        if not self._live[row.type]:
            del self._live[row.type]
        if not blocks.rows:
            self._close_gap(blocks, now, returned=False)
            if blocks.session is not None:
                self._open_gap(blocks, SESSION, now)
                self._keep_idle(blocks.session)
        self.changed(blocks)

    def _keep_idle(self, session: tuple[str, str]) -> None:
        """Keep a session's blocks for its next program, and give up the longest idle."""
        self._idle[session] = None
        if len(self._idle) > KINDS:
            oldest, _ = self._idle.popitem(last=False)
            lost = self._sessions.pop(oldest)
            lost.session = None
            self.changed(lost)

    def _open_gap(self, blocks: CachedBlocks, gap: str, now: float) -> None:
        blocks.gap, blocks.since = gap, now

    def _close_gap(self, blocks: CachedBlocks, now: float, *, returned: bool = True) -> None:
        if blocks.gap is not None and self._learned is not None:
            for kind in blocks.kinds(blocks.gap):
                self._learned.gaps.learn(kind, now - blocks.since, well=returned)
        if blocks.gap is not None:
            blocks.gap, blocks.since = None, now


class EvictionOrder:
    """The owners of free blocks, in the order in which they lose them.

    Most stand at a place that only events change, or have a worth that does. The few whose worth
    changes with time are all looked at when one of those that use the cache has to lose blocks.
    """

    def __init__(self, retention: Retention, sharers: Callable[[str], int]) -> None:
        self.retention = retention
        self._sharers = sharers
        self.clear()

    def __len__(self) -> int:
        return len(self._placed) + len(self._steady) + len(self._weighed)

    def __contains__(self, blocks: CachedBlocks) -> bool:
        return blocks in self._placed or blocks in self._steady or blocks in self._weighed

    def put(self, blocks: CachedBlocks) -> None:
        """Have these, or have them in another place."""
        self.discard(blocks)
        if (place := self.retention.place(blocks)) is not None:
            self._placed.put(blocks, place)
        elif self.retention.steady(blocks):
            self._steady.put(blocks, self._weight(blocks, 0.0))
        else:
            self._weighed[blocks] = None

    def discard(self, blocks: CachedBlocks) -> None:
        """Forget these, known or not."""
        self._placed.discard(blocks)
        self._steady.discard(blocks)
        self._weighed.pop(blocks, None)

    def clear(self) -> None:
        """Forget all."""
        self._placed: Heap[CachedBlocks] = Heap()
        self._steady: Heap[CachedBlocks] = Heap()
        self._weighed: dict[CachedBlocks, None] = {}

    def first(self, now: float) -> CachedBlocks | None:
        """Whose blocks go first; None where there are none."""
        if (first := self._placed.first()) is not None:
            return first
        steady = self._steady.first()
        some = [*self._weighed] if steady is None else [steady, *self._weighed]
        return min(some, key=lambda blocks: self._weight(blocks, now), default=None)

    def in_order(self, now: float) -> Iterator[CachedBlocks]:
        """All of them, in the order in which they lose their blocks: O(n log n)."""
        yield from self._placed.in_order()
        some = [*self._steady, *self._weighed]
        yield from sorted(some, key=lambda blocks: self._weight(blocks, now))

    def _weight(self, blocks: CachedBlocks, now: float) -> tuple[float, float]:
        # Of equals, those that came back last go first.
        worth = self.retention.worth(blocks, now, self._sharers(blocks.type))
        return worth, -blocks.since
