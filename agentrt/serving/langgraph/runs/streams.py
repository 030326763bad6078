"""Live runs: the log of a run's events, and how the run is stopped and ends.

The events of a resumable run are stored in the database before any client gets them, so that an
event's id means the same event after a restart. The events of other runs are kept in memory while
the run is live.
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
"""Maximum number of events of a run's stream in memory, and their maximum size in bytes. The newest
event stays in memory, whatever its size. A listener that falls further behind reads the stored
events of a resumable run; for any other run, it gets a `FellBehindError`.
"""
MAX_STORED = 100_000
"""Maximum number of stored events of a resumable run; older events are deleted."""
_PAGE = 500

Action = Literal["interrupt", "rollback", "shutdown"]
"""Why a run is stopped. A client requests ``interrupt`` or ``rollback``. ``shutdown`` means that
the server stops, and the next server resumes the run.
"""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An event of a run's stream. ``data`` is JSON. ``number`` counts from 1 in each run."""

    number: int
    event: str
    data: bytes


@dataclass(frozen=True, slots=True)
class ThreadEvent:
    """An event of the streaming protocol. ``run`` is the number of its run in the order of arrival,
    and ``number`` the event's number in that run. ``data`` is JSON.
    """

    run: int
    run_id: str
    number: int
    data: bytes


class FellBehindError(Exception):
    """The next events for a reader are no longer available: the reader was too slow, or joined too
    late. The message says what the reader can do.
    """


class EventLog:
    """The events of a live run. The run writes them, and any number of clients read them."""

    def __init__(self, run_id: str, database: Database, *, resumable: bool) -> None:
        self.run_id = run_id
        self.resumable = resumable
        self.closed = False
        self.last = 0
        """The number of the newest event that readers can get."""
        self._database = database
        self._stored: int | None = None
        """The number of the newest stored event. None if it is not known: at first, because an
        earlier attempt of the run may have stored events, and after a write that failed or was
        cancelled, because the write may have taken effect nevertheless.
        """
        self._recent: deque[StreamEvent] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()

    async def put(self, parts: Sequence[tuple[str, bytes]]) -> None:
        """Append events, each a name and its data as JSON."""
        new = await self.numbered(parts)
        if statements := self.inserts(new):
            await self._database.write(*statements)
        await self.publish(new)

    async def numbered(self, parts: Sequence[tuple[str, bytes]]) -> list[StreamEvent]:
        """Make an event of each of ``parts`` (a name, and data as JSON), and return the events
        with consecutive numbers. The numbers of a resumable run continue those of its stored
        events, including the events of an earlier attempt. The numbers of any other run continue
        those of the events published so far.
        """
        first = 1 + (await self._last_stored() if self.resumable else self.last)
        return [StreamEvent(first + n, event, data) for n, (event, data) in enumerate(parts)]

    async def _last_stored(self) -> int:
        if self._stored is None:
            last = sa.select(sa.func.max(events.c.number)).where(events.c.run_id == self.run_id)
            # The connection for writes also sees writes that are not committed yet.
            async with self._database.writing(rows=True) as connection:
                self._stored = (await connection.execute(last)).scalar() or 0
        return self._stored

    def inserts(self, new: Sequence[StreamEvent]) -> list[sa.Executable]:
        """Return the statements that store new events, and delete the oldest events if the run has
        too many. The list is empty if the run's events are not stored.
        """
        if not self.resumable or not new:
            return []
        self._stored = None  # until `publish`
        statements: list[sa.Executable] = [
            sa.insert(events).values(
                run_id=self.run_id, number=e.number, event=e.event, data=e.data.decode()
            )
            for e in new
        ]
        last = new[-1].number
        if last % _PAGE < len(new):
            old = (events.c.run_id == self.run_id, events.c.number <= last - MAX_STORED)
            statements.append(sa.delete(events).where(*old))
        return statements

    async def publish(self, new: Sequence[StreamEvent]) -> None:
        """Give new events to the readers, after the events have been stored."""
        if not new:
            return
        if new[0].number != self.last + 1:
            self._forget()  # readers get the events between them from the database
        self._recent.extend(new)
        self._bytes += sum(len(event.data) for event in new)
        self.last = new[-1].number
        if self.resumable:
            self._stored = self.last
        self._notify()
        if self._is_over():
            await asyncio.sleep(0)  # readers that wait for these events read them first
        while self._is_over():
            self._bytes -= len(self._recent.popleft().data)

    async def publish_stored(self) -> None:
        """Give the readers the events that a write has stored although it seemed to fail."""
        if self.resumable and (last := await self._last_stored()) > self.last:
            self._forget()
            self.last = last
            self._notify()

    def close(self) -> None:
        """Mark the end of the stream: no more events follow."""
        self.closed = True
        self._notify()

    async def follow(self, after: int, *, may_skip: bool = False) -> AsyncIterator[StreamEvent]:
        """Yield the events after the event number ``after``, until the run ends.

        Raises `FellBehindError` if the next event is no longer available: a resumable run stores
        only its last `MAX_STORED` events, and none once it is deleted, and any other run has only
        its latest events in memory. With ``may_skip``, deleted events of a resumable run are
        skipped.
        """
        at = after
        while True:
            changed, closed = self._changed, self.closed
            available = await self._since(at, may_skip=may_skip)
            for event in available:
                yield event
                at = event.number
            if available and at < self.last:
                continue
            if closed:
                return
            await changed.wait()

    async def _since(self, at: int, *, may_skip: bool) -> Sequence[StreamEvent]:
        oldest = self._recent[0].number if self._recent else self.last + 1
        if at + 1 >= oldest:
            return [event for event in self._recent if event.number > at]
        if not self.resumable:
            raise FellBehindError(
                f"events {at + 1} to {oldest - 1} of run {self.run_id} are no longer available; "
                "read faster, or join the run again"
            )
        page = await stored_events(self._database, self.run_id, at)
        if not page and not may_skip:
            raise FellBehindError(
                f"the events of run {self.run_id} from {at + 1} on were deleted with the run"
            )
        if not may_skip:
            _check_next(page, self.run_id, at)
        return page

    def _forget(self) -> None:
        """Drop the events in memory, so that readers get them from the database."""
        self._recent.clear()
        self._bytes = 0

    def _is_over(self) -> bool:
        """Return whether the oldest event in memory must go."""
        return len(self._recent) > 1 and (len(self._recent) > MAX_EVENTS or self._bytes > MAX_BYTES)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def stored_events(database: Database, run_id: str, after: int) -> list[StreamEvent]:
    """Return the first page of a resumable run's stored events after the event number ``after``."""
    query = sa.select(events).where(events.c.run_id == run_id, events.c.number > after)
    rows = await database.rows(query.order_by(events.c.number).limit(_PAGE))
    return [StreamEvent(row.number, row.event, row.data.encode()) for row in rows]


def _check_next(page: Sequence[StreamEvent], run_id: str, after: int) -> None:
    """Raise `FellBehindError` if the page does not begin with the event that follows ``after``."""
    if page and page[0].number > after + 1:
        last = page[0].number - 1
        raise FellBehindError(
            f"events {after + 1} to {last} of run {run_id} were deleted, because a run keeps its "
            f"last {MAX_STORED:,} events, and most of them only until an hour after its end; join "
            f"the run with Last-Event-ID {last}"
        )


async def stored_questions(database: Database, thread: str) -> list[ThreadEvent]:
    """Return the stored lifecycle events of a thread, and the stored events that ask questions, in
    the order of their numbers.
    """
    query = sa.select(runs.c.number.label("run"), *events.c).where(
        runs.c.thread_id == thread, events.c.run_id == runs.c.run_id, ASKS
    )
    rows = await database.rows(query.order_by(runs.c.number, events.c.number))
    return [ThreadEvent(row.run, row.run_id, row.number, row.data.encode()) for row in rows]


async def replay(
    database: Database, run_id: str, after: int, *, may_skip: bool = False
) -> AsyncIterator[StreamEvent]:
    """Yield the stored events of a run that has ended, after the event number ``after``.

    Raises `FellBehindError` if the next event was deleted, but later events remain: because the run
    has more than `MAX_STORED` events, or because `Runs.forget_streams` has deleted most events.
    With ``may_skip``, deleted events are skipped.
    """
    while page := await stored_events(database, run_id, after):
        if not may_skip:
            _check_next(page, run_id, after)
        for event in page:
            yield event
        after = page[-1].number


@dataclass(slots=True, eq=False)
class LiveRun:
    """A run that waits or runs in this server. ``done`` is set when the run has ended or the
    server stops. If ``result`` is None then, the run has not ended, and the next server resumes it.
    """

    record: RunRecord
    log: EventLog
    context: Context = field(default_factory=Context)  # the context in which the run's code runs
    done: asyncio.Event = field(default_factory=asyncio.Event)
    action: Action | None = None  # why the run was stopped, if it was
    task: asyncio.Task[None] | None = None  # set once the run has started
    over: bool = False  # nothing is done any more if the run is stopped now
    stoppable: bool = False  # while the graph runs, so that cancelling the task stops it
    result: bytes | None = None
    retry_now: asyncio.Event | None = None  # ends the wait for the next try to store the end
    closing: bool = False  # the server stops, so there is only one more try to store the end
    outage: Exception | None = None  # the database's error that keeps the end from being stored
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self, action: Action) -> None:
        """Stop the run for the reason ``action``. If the run is stopping already, only a rollback
        has an effect: a run that would be interrupted is rolled back.
        """
        self.closing = self.closing or action == "shutdown"
        if self.action == "interrupt" and action == "rollback":
            self.action = action
        if self.retry_now is not None:
            if not self.closing:
                self.action = self.action or action
            self.retry_now.set()
        elif self.action is None:
            # A second cancellation would interrupt the wait for the program's end.
            self.action = action
            if self.task is not None and self.stoppable:
                self.task.cancel()

    def cannot_end(self, outage: Exception) -> None:
        """Record that the run's end could not be stored yet, because of the ``outage`` of the
        database.
        """
        self.outage = outage
        self._notify()

    def end(self) -> None:
        """Mark the run as done, and close its log."""
        self.log.close()
        self.done.set()
        self._notify()

    async def ended(self) -> None:
        """Wait until the run is done. If an outage of the database prevents storing the run's end,
        raise the error of the outage.
        """
        while not self.done.is_set():
            await self._news.wait()
            if self.outage is not None and not self.done.is_set():
                raise self.outage

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
