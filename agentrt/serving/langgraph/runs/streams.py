"""What a live run has streamed so far, and how it is stopped and ends.

The events of a resumable run are in the database before any client sees them: an id means the
same after a restart. The events of other runs are in memory, as long as the run is live.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Literal

import sqlalchemy as sa

from agentrt.serving.langgraph.database.connections import Database
from agentrt.serving.langgraph.database.runs import RunRecord
from agentrt.serving.langgraph.database.tables import ASKS, events, runs

MAX_EVENTS = 10_000
MAX_BYTES = 8 * 2**20
"""How much of a run's stream is in memory; a listener that falls behind that is cut off."""
MAX_STORED = 100_000
"""How many events of a resumable run are stored; older ones are deleted."""
_PAGE = 500

Action = Literal["interrupt", "rollback", "shutdown"]
"""Why a run is stopped: a client asks for it, or the server stops and resumes it later."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a run's stream; ``data`` is JSON. ``number`` counts from 1 in its run."""

    number: int
    event: str
    data: bytes


@dataclass(frozen=True, slots=True)
class ThreadEvent:
    """An event in the streaming protocol's form: the number and the id of its ``run``, and its
    own ``number`` in that.
    """

    run: int
    run_id: str
    number: int
    data: bytes


class FellBehindError(Exception):
    """A listener was too slow: what it has not read is gone."""


class EventLog:
    """One live run's stream. One run writes it; any number of clients listen."""

    def __init__(self, run_id: str, database: Database, *, resumable: bool) -> None:
        self.run_id = run_id
        self.resumable = resumable
        self.closed = False
        self.last = 0
        """The number of the last event so far."""
        self._database = database
        self._recent: deque[StreamEvent] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()

    async def open(self) -> None:
        """Continue after the events that an earlier attempt has stored."""
        if self.resumable:
            last = sa.select(sa.func.max(events.c.number)).where(events.c.run_id == self.run_id)
            row = await self._database.first(last)
            self.last = (row and row[0]) or 0

    async def put(self, parts: Sequence[tuple[str, bytes]]) -> None:
        """Append events, given by name and data."""
        first = self.last + 1
        new = [StreamEvent(first + n, event, data) for n, (event, data) in enumerate(parts)]
        if self.resumable and new:
            await self._store(new)
        self._recent.extend(new)
        self._bytes += sum(len(one.data) for one in new)
        self.last += len(new)
        while len(self._recent) > MAX_EVENTS or self._bytes > MAX_BYTES:
            self._bytes -= len(self._recent.popleft().data)
        self._notify()

    def close(self) -> None:
        """There are no more events."""
        self.closed = True
        self._notify()

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
            if at < self.last:
                continue
            if closed:
                return
            await changed.wait()

    async def _since(self, at: int) -> Sequence[StreamEvent]:
        oldest = self._recent[0].number if self._recent else self.last + 1
        if at + 1 >= oldest:
            return [one for one in self._recent if one.number > at]
        if not self.resumable:
            raise FellBehindError(f"events {at + 1} to {oldest - 1} of run {self.run_id} are gone")
        return await stored_events(self._database, self.run_id, at)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _store(self, new: Sequence[StreamEvent]) -> None:
        rows = [
            {"run_id": self.run_id, "number": e.number, "event": e.event, "data": e.data.decode()}
            for e in new
        ]
        last = new[-1].number
        async with self._database.writing() as connection:
            await connection.execute(sa.insert(events), rows)
            if last % _PAGE < len(new):
                old = (events.c.run_id == self.run_id, events.c.number <= last - MAX_STORED)
                await connection.execute(sa.delete(events).where(*old))


async def stored_events(database: Database, run_id: str, after: int) -> list[StreamEvent]:
    """The next stored events of a resumable run, one page of them."""
    query = sa.select(events).where(events.c.run_id == run_id, events.c.number > after)
    rows = await database.rows(query.order_by(events.c.number).limit(_PAGE))
    return [StreamEvent(row.number, row.event, row.data.encode()) for row in rows]


async def stored_questions(database: Database, thread: str) -> list[ThreadEvent]:
    """The stored events of a thread's runs that ask questions, or say how graphs stand."""
    query = sa.select(runs.c.number.label("run"), *events.c).where(
        runs.c.thread_id == thread, events.c.run_id == runs.c.run_id, ASKS
    )
    rows = await database.rows(query.order_by(runs.c.number, events.c.number))
    return [ThreadEvent(row.run, row.run_id, row.number, row.data.encode()) for row in rows]


async def replay(database: Database, run_id: str, after: int) -> AsyncIterator[StreamEvent]:
    """The stored events of a run that has ended, after the event of that number."""
    while page := await stored_events(database, run_id, after):
        for one in page:
            yield one
        after = page[-1].number


@dataclass(slots=True, eq=False)
class LiveRun:
    """A run that has not ended. Its code runs in ``context``. ``action`` is why it is to stop, once
    it is.

    It has a ``task`` once it has left the queue, which is ``stoppable`` until its end is stored.
    One that is done without a ``result`` has not ended: the next server resumes it. While its end
    cannot be stored, because of the ``outage``, it waits for ``rest`` between two tries; once the
    server is ``closing``, there is one more.
    """

    record: RunRecord
    log: EventLog
    context: Context = field(default_factory=Context)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    action: Action | None = None
    task: asyncio.Task[None] | None = None
    stoppable: bool = False
    result: bytes | None = None
    rest: asyncio.Event | None = None
    closing: bool = False
    outage: Exception | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self, action: Action) -> None:
        """Stop it for this reason, unless it is stopping already."""
        self.closing = self.closing or action == "shutdown"
        if self.rest is not None:
            if not self.closing:
                self.action = self.action or action
            self.rest.set()
        elif self.action is None:  # to cancel again would break off its wait for its program's end
            self.action = action
            if self.task is not None and self.stoppable:
                self.task.cancel()

    def cannot_end(self, outage: Exception) -> None:
        """Its end could not be stored; that will be tried again."""
        self.outage = outage
        self._notify()

    def end(self) -> None:
        """It is over."""
        self.log.close()
        self.done.set()
        self._notify()

    async def ended(self) -> None:
        """Wait until it is over. Raises the outage that keeps its end from being stored."""
        while not self.done.is_set():
            await self._news.wait()
            if self.outage is not None and not self.done.is_set():
                raise self.outage

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
