"""The streaming protocol of newer clients: commands to a thread, and the events of its runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import orjson
import sqlalchemy as sa
from fastapi import HTTPException, WebSocket
from sse_starlette import EventSourceResponse, ServerSentEvent

from agentrt.serving.keep_alive import NEVER_S
from agentrt.serving.langgraph.auth.hooks import Caller, CallerDep
from agentrt.serving.langgraph.bodies import Object
from agentrt.serving.langgraph.database.interrupts import interrupts_in
from agentrt.serving.langgraph.database.runs import RunRecord
from agentrt.serving.langgraph.database.tables import PROTOCOL
from agentrt.serving.langgraph.protocol.commands import ProtocolCommands
from agentrt.serving.langgraph.protocol.socket import REPLAYED, ProtocolSocket
from agentrt.serving.langgraph.responses import JSON
from agentrt.serving.langgraph.routes import Routes, route
from agentrt.serving.langgraph.runs.graph_events import (
    EventsBody,
    ends_run,
    place_of,
    question_in,
    questions_of,
    seq_of,
)
from agentrt.serving.langgraph.runs.queue import RunQueue
from agentrt.serving.langgraph.runs.stream_responses import SEND_S
from agentrt.serving.langgraph.runs.streams import LiveRun, ThreadEvent, replay, stored_questions
from agentrt.serving.langgraph.tenant_state import REPLAY_S, TenantState

EVENTS = "/threads/{thread_id}/stream/events"
_MOST_RUNS = 1000
"""How many of a thread's last runs are replayed."""
_TOLD = (b'{"method":"input.requested"', b'{"method":"lifecycle"')
"""The beginnings of events that mean something else once they are past."""
_WATCHED = {"lifecycle", "input"}
"""The channels of LangGraph's Python client for questions, beside a stream of what runs give."""
QUESTION_S = 0.2
"""How much later questions come on such a stream, and the end of a run that is over already. The
client ends its iterators of values when a question comes, without regard to the values that are on
their way; where it has seen a question, it does not notice the next one before a run completes; and
the first end that it sees is that of the run which it starts. So values go first, and a run that
the client starts as it connects hides what came before.
"""


_Asked = Sequence[tuple[ThreadEvent, str | None]]


class ProtocolRoutes(Routes):
    """Commands and events of threads."""

    def __init__(self, state: TenantState, queue: RunQueue, commands: ProtocolCommands) -> None:
        self._state = state
        self._queue = queue
        self._commands = commands
        self._sockets: set[ProtocolSocket] = set()

    async def drain(self) -> None:
        """The server stops: end the streams of threads in which nothing runs."""
        sockets = tuple(self._sockets)
        for socket in sockets:
            socket.ending = True
        self._queue.end_listening()
        await asyncio.gather(*(socket.drain() for socket in sockets))

    async def socket(self, socket: WebSocket, thread_id: UUID) -> None:
        """Commands and events over one connection."""
        connection = ProtocolSocket(socket, socket.state.answer)
        self._sockets.add(connection)
        try:
            await connection.serve()
        finally:
            self._sockets.remove(connection)

    @route("POST", "/threads/{thread_id}/commands")
    async def command(self, thread_id: UUID, body: Object, caller: CallerDep) -> JSON:
        """Carry out a command. One that fails is answered as the protocol says."""
        return await self._commands.answer(caller, thread_id, body)

    @route("POST", EVENTS)
    async def events(
        self, thread_id: UUID, body: EventsBody, caller: CallerDep
    ) -> EventSourceResponse:
        """The events of a thread's runs, those that were and those to come. The thread may be
        made later, by a command.
        """
        await caller.authorize("threads", "read", {"thread_id": thread_id})

        async def parts() -> AsyncIterator[ServerSentEvent]:
            replaying = True
            watches = _WATCHED.issuperset(body.channels)
            async for stored in self._of_thread(caller, thread_id, body.since, watches=watches):
                if stored is None:
                    if replaying:
                        replaying = False
                        yield ServerSentEvent(comment=REPLAYED)
                    continue
                event = orjson.loads(stored.data)
                if body.has(event) and await self._is_due(caller, thread_id, body, stored, event):
                    seq = seq_of(stored.run, stored.number)
                    about = {"type": "event", "event_id": f"{stored.run_id}:{stored.number}"}
                    text = orjson.dumps({**about, "seq": seq, **event}).decode()
                    yield ServerSentEvent(text, event=event["method"], id=str(seq))

        return EventSourceResponse(parts(), ping=NEVER_S, send_timeout=SEND_S)

    async def _is_due(
        self,
        caller: Caller,
        thread: UUID,
        body: EventsBody,
        stored: ThreadEvent,
        event: Mapping[str, Any],
    ) -> bool:
        """Whether to send an event: not a question that was answered meanwhile, if the stream is
        one of questions alone (`QUESTION_S`).
        """
        question = question_in(event)
        if question is None or not _WATCHED.issuperset(body.channels):
            return True
        await asyncio.sleep(QUESTION_S)
        row = await self._seen(caller, thread)
        return row is not None and question in self._open(row, stored.run_id)

    async def _of_thread(
        self, caller: Caller, thread: UUID, since: int, *, watches: bool
    ) -> AsyncIterator[ThreadEvent | None]:
        """The events of a thread after ``since``, and None after those that are there already."""
        done: set[str] = set()
        with self._queue.listening(str(thread)) as beginning:
            if (row := await self._seen(caller, thread)) is not None:
                async for event in self._past(row, since, done, watches=watches):
                    yield event
            yield None
            while (live := await beginning.get()) is not None:
                if live.record.run_id not in done and await self._seen(caller, thread):
                    async for event in self._of_run(live.record, live, 0):
                        yield event

    async def _past(
        self, row: sa.Row[Any], since: int, done: set[str], *, watches: bool
    ) -> AsyncIterator[ThreadEvent | None]:
        """The events of the runs that have begun, whose ids are added to ``done``. Of runs whose
        streams are no longer kept there are the questions that are still open. Who ``watches``
        gets no questions that were answered, and no ends of runs that others followed.
        """
        number, after = place_of(since)
        kept = time.time() - REPLAY_S  # of older runs there are no events to look for
        past = await self._state.runs.since(row.thread_id, number, _MOST_RUNS, kept)
        asked = await self._asked(row)
        waiting = await self._waiting(row, since, {record.run_id for record in past}, asked)
        last = {question: event for event, question in asked if question is not None}
        for record in past:
            live = self._queue.get(record.run_id)
            if self._begins_later(record, live):
                continue  # the queue gives it when it begins
            while waiting and waiting[0].run < record.number:
                yield waiting.pop(0)
            done.add(record.run_id)
            async for event in self._of_run(record, live, after if record.number == number else 0):
                past_event = event if watches and live is None else None
                if past_event is None or await self._still_counts(
                    past_event, row, since, past[-1], last
                ):
                    yield event
        for event in waiting:
            yield event

    async def _still_counts(
        self,
        event: ThreadEvent,
        row: sa.Row[Any],
        since: int,
        last: RunRecord,
        asked: Mapping[str, ThreadEvent],
    ) -> bool:
        """Whether an event of a run that has ended still says how its thread stands: a question
        that is open, and was ``asked`` here for the last time, and the end of the ``last`` run.
        """
        if not event.data.startswith(_TOLD):
            return True
        told = orjson.loads(event.data)
        if (question := question_in(told)) is not None:
            return question in self._open(row, event.run_id) and event == asked[question]
        if since or not ends_run(told):
            return True
        if event.run_id == last.run_id:
            await asyncio.sleep(QUESTION_S)
        return event.run_id == last.run_id and not self._queue.live_in(row.thread_id)

    async def _asked(self, row: sa.Row[Any]) -> _Asked:
        """The stored events of a thread with open questions that ask, each with the id of its
        question, or that say how graphs stand.
        """
        if not any(interrupts_in(row.interrupts)):
            return []
        stored = await stored_questions(self._state.storage.database, row.thread_id)
        return [(event, question_in(orjson.loads(event.data))) for event in stored]

    async def _waiting(
        self, row: sa.Row[Any], since: int, replayed: Collection[str], events: _Asked
    ) -> list[ThreadEvent]:
        """The thread's open questions after ``since``, each with the ends of its run, that are not
        in the streams of the runs ``replayed``, in the order of their numbers. ``events`` is what
        `_asked` returns.
        """
        interrupts = self._open(row)
        if not interrupts:
            return []
        of_runs = {event.run for event, question in events if question in interrupts}
        waiting = [
            event
            for event, question in events
            if event.run in of_runs
            and event.run_id not in replayed
            and (question is None or question in interrupts)
        ]
        # Questions of runs that older clients have started are in the thread's row alone.
        known = {question for _, question in events}
        unknown = [interrupts[key] for key in interrupts if key not in known]
        if unknown and row.status != "busy":
            last = await self._state.runs.last_of(row.thread_id)
            if last is not None:
                at = (last.number, last.run_id, row.state_updated_at)
                waiting += questions_of(unknown, last.graph_id, *at)
        return [event for event in waiting if seq_of(event.run, event.number) > since]

    def _open(self, row: sa.Row[Any], asker: str | None = None) -> dict[str, Mapping[str, Any]]:
        """The open questions of a thread by their ids, as its row has them. There are none while a
        run is under way whose own events ask what stays open, unless it is the ``asker`` itself.
        """
        ids = [key for key in self._queue.live_in(row.thread_id) if key != asker]
        runs = [self._queue.get(key) for key in ids]
        if any(live is not None and live.record.kwargs.get("protocol") for live in runs):
            return {}
        return {each["id"]: each for each in interrupts_in(row.interrupts)}

    def _begins_later(self, record: RunRecord, live: LiveRun | None) -> bool:
        """Whether a run waits in the queue, or is in the database and not in the queue yet."""
        if live is not None:
            return live.task is None
        return not record.attempt

    async def _seen(self, caller: Caller, thread: UUID) -> sa.Row[Any] | None:
        """The thread, if it is there, and the caller's."""
        try:
            return await self._state.thread(caller, thread, "read")
        except HTTPException as error:
            if error.status_code != 404:
                raise
            return None

    async def _of_run(
        self, record: RunRecord, live: LiveRun | None, after: int
    ) -> AsyncIterator[ThreadEvent | None]:
        """The events of a run; of a live one, None follows those that are there already."""
        if not record.kwargs.get("protocol"):
            return
        through = -1
        if live is None:
            source = replay(self._state.storage.database, record.run_id, after)
        else:
            through, source = live.log.last, live.log.follow(after)
            if through <= after:
                yield None
        async for event in source:
            if event.event == PROTOCOL:
                yield ThreadEvent(record.number, record.run_id, event.number, event.data)
            if event.number == through:
                yield None
