"""What a run has streamed so far, for those who listen now and those who come back.

The events of a resumable run are in the database before anybody sees them: an id that a client
has seen means the same after a restart. All others live in memory, as long as their run does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from sqlalchemy import delete, func, insert, select

from agentrt.serving.langgraph.database import Database
from agentrt.serving.langgraph.schema import events

MAX_EVENTS = 10_000
MAX_BYTES = 8 * 2**20
"""So much of a run's stream is held in memory; a listener who falls behind that is cut off."""
MAX_STORED = 100_000
"""So many events of a resumable run are kept; older ones go."""
_PAGE = 500


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a run's stream; ``data`` is JSON. ``number`` counts from 1 in its run."""

    number: int
    event: str
    data: bytes


class FellBehindError(Exception):
    """A listener was too slow: what it has not read is gone."""


class EventLog:
    """One live run's stream. One run writes it; any number listen."""

    def __init__(self, run_id: str, database: Database, *, resumable: bool) -> None:
        self.run_id = run_id
        self.resumable = resumable
        self.closed = False
        self._database = database
        self._held: deque[StreamEvent] = deque()
        self._bytes = 0
        self._last = 0
        self._changed = asyncio.Event()

    @property
    def last(self) -> int:
        """The number of the last event so far."""
        return self._last

    async def open(self) -> None:
        """Go on after what an earlier attempt has stored."""
        if self.resumable:
            asked = select(func.max(events.c.number)).where(events.c.run_id == self.run_id)
            async with self._database.reading() as connection:
                self._last = (await connection.execute(asked)).scalar() or 0

    async def put(self, parts: Sequence[tuple[str, bytes]]) -> None:
        """Tell all listeners of these events, by name and data."""
        first = self._last + 1
        new = [StreamEvent(first + n, event, data) for n, (event, data) in enumerate(parts)]
        if self.resumable and new:
            await self._store(new)
        for one in new:
            self._held.append(one)
            self._bytes += len(one.data)
        self._last += len(new)
        while len(self._held) > MAX_EVENTS or self._bytes > MAX_BYTES:
            self._bytes -= len(self._held.popleft().data)
        self._tell()

    def close(self) -> None:
        """There is no more."""
        self.closed = True
        self._tell()

    async def follow(self, after: int) -> AsyncIterator[StreamEvent]:
        """All events after the one of that number, until the run ends.

        Raises `FellBehindError` if they come faster than they are read.
        """
        at = after
        while True:
            changed, closed = self._changed, self.closed
            for one in await self._since(at):
                yield one
                at = one.number
            if at < self._last:
                continue
            if closed:
                return
            await changed.wait()

    async def _since(self, at: int) -> Sequence[StreamEvent]:
        oldest = self._held[0].number if self._held else self._last + 1
        if at + 1 >= oldest:
            return [one for one in self._held if one.number > at]
        if not self.resumable:
            raise FellBehindError(f"events {at + 1} to {oldest - 1} of run {self.run_id} are gone")
        return await stored(self._database, self.run_id, at)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _store(self, new: Sequence[StreamEvent]) -> None:
        rows = [
            {
                "run_id": self.run_id,
                "number": one.number,
                "event": one.event,
                "data": one.data.decode(),
            }
            for one in new
        ]
        async with self._database.writing() as connection:
            await connection.execute(insert(events), rows)
            if new[-1].number % _PAGE < len(new):
                too_old = events.c.number <= new[-1].number - MAX_STORED
                await connection.execute(
                    delete(events).where(events.c.run_id == self.run_id, too_old)
                )


async def stored(database: Database, run_id: str, after: int) -> Sequence[StreamEvent]:
    """The next of a resumable run's events in the database, some at a time."""
    asked = select(events).where(events.c.run_id == run_id, events.c.number > after)
    async with database.reading() as connection:
        rows = await connection.execute(asked.order_by(events.c.number).limit(_PAGE))
        return [StreamEvent(row.number, row.event, row.data.encode()) for row in rows]


async def replay(database: Database, run_id: str, after: int) -> AsyncIterator[StreamEvent]:
    """What is stored of a run that has ended, after the event of that number."""
    while page := await stored(database, run_id, after):
        for one in page:
            yield one
        after = page[-1].number
