"""The owners of blocks, with one line for each event."""

from __future__ import annotations

from typing import Any

from agentrt.scheduler import EngineProgram, QueuedCall
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.owners import BlockOwners
from agentrt.scheduler.retention import HUMAN, EvictionOrder, make_retention
from agentrt.scheduler.state import CachedBlocks


class Book:
    """Programs with their events, and the owners of their blocks."""

    def __init__(self, retention: str = "cost", **settings: Any) -> None:
        self.learned = Learned()
        self.owners = BlockOwners(self.learned)
        made = make_retention(SchedulerConfig(retention=retention, **settings), self.learned)
        assert made is not None
        self.retention = made
        self.rows: dict[str, EngineProgram] = {}
        self.changed: list[CachedBlocks] = []
        self.owners.changed = self.changed.append

    def call(
        self, name: str, now: float, session: str | None = None, type: str = "a"
    ) -> CachedBlocks:
        row = self.rows.get(name)
        if row is None:
            row = self.rows[name] = EngineProgram(
                name, type, "acme", session=session, resident=True
            )
        call = QueuedCall(f"{name}/{len(row.queued)}", row, None, None, now)
        row.queued[call.call_id] = call
        self.owners.call_arrived(call, now)
        assert row.cached is not None
        return row.cached

    def over(self, name: str, now: float) -> None:
        """End the last call of a program, after a second of service."""
        row = self.rows[name]
        row.service_s += 1.0
        self.owners.call_finished(row.queued.popitem()[1], now)

    def called(self, name: str, now: float, **more: Any) -> CachedBlocks:
        """A program whose only call has ended. Return its blocks."""
        blocks = self.call(name, now, **more)
        self.over(name, now)
        return blocks

    def begins(self, name: str, what: str, now: float) -> None:
        """The program waits for a tool of this name, or for the `HUMAN`."""
        row = self.rows[name]
        kind = "human" if what == HUMAN else "tool"
        row.humans += kind == "human"
        row.tools += kind == "tool"
        self.owners.interrupt_started(row, kind, what, now)

    def answered(self, name: str, kind: str, now: float) -> None:
        row = self.rows[name]
        row.humans -= kind == "human"
        row.tools -= kind == "tool"
        self.owners.interrupt_ended(row, now)

    def end(self, name: str, now: float) -> CachedBlocks | None:
        row = self.rows.pop(name)
        row.ended, blocks = True, row.cached
        self.owners.program_ended(row, now)
        return blocks

    def gaps(self) -> list[tuple[str, float]]:
        """The name of each learned gap, and the mean seconds of its gaps that ended with a call."""
        known = self.learned.gaps.entries()
        return [(kind[2], one.left_s.value) for kind, age, one in known if age == 0 and kind[2]]

    def order(self, now: float, *some: CachedBlocks) -> list[CachedBlocks]:
        """Return the blocks in the order of their eviction, after comparing both ways to get it."""
        order = EvictionOrder(self.retention, self.owners.sharers)
        for blocks in some:
            order.put(blocks)
        looked, taken = list(order.in_order(now)), []
        while (first := order.first(now)) is not None:
            taken.append(first)
            order.discard(first)
        assert taken == looked
        assert not [*order.in_order(now)]
        return taken
