"""The streaming protocol of newer clients: commands to a thread, and the events of its runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
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
            async for stored in self._of_thread(caller, thread_id, body.since):
                if stored is None:
                    if replaying:
                        replaying = False
                        yield ServerSentEvent(comment=REPLAYED)
                    continue
                event = orjson.loads(stored.data)
                if body.has(event):
                    seq = seq_of(stored.run, stored.number)
                    about = {"type": "event", "event_id": f"{stored.run_id}:{stored.number}"}
                    text = orjson.dumps({**about, "seq": seq, **event}).decode()
                    yield ServerSentEvent(text, event=event["method"], id=str(seq))

        return EventSourceResponse(parts(), ping=NEVER_S, send_timeout=SEND_S)

    async def _of_thread(
        self, caller: Caller, thread: UUID, since: int
    ) -> AsyncIterator[ThreadEvent | None]:
        """The events of a thread after ``since``, and None after those that are there already."""
        done: set[str] = set()
        with self._queue.listening(str(thread)) as beginning:
            if (row := await self._seen(caller, thread)) is not None:
                async for event in self._past(row, since, done):
                    yield event
            yield None
            while (live := await beginning.get()) is not None:
                if live.record.run_id not in done and await self._seen(caller, thread):
                    async for event in self._of_run(live.record, live, 0):
                        yield event

    async def _past(
        self, row: sa.Row[Any], since: int, done: set[str]
    ) -> AsyncIterator[ThreadEvent | None]:
        """The events of the runs that have begun, whose ids are added to ``done``. Of runs whose
        streams are no longer kept there are the questions that are still open.
        """
        number, after = place_of(since)
        kept = time.time() - REPLAY_S  # of older runs there are no events to look for
        past = await self._state.runs.since(row.thread_id, number, _MOST_RUNS, kept)
        waiting = await self._waiting(row, since, {record.run_id for record in past})
        for record in past:
            live = self._queue.get(record.run_id)
            if self._begins_later(record, live):
                continue  # the queue gives it when it begins
            while waiting and waiting[0].run < record.number:
                yield waiting.pop(0)
            done.add(record.run_id)
            async for event in self._of_run(record, live, after if record.number == number else 0):
                yield event
        for event in waiting:
            yield event

    async def _waiting(
        self, row: sa.Row[Any], since: int, replayed: Collection[str]
    ) -> list[ThreadEvent]:
        """The thread's open questions after ``since``, each with the ends of its run, that are not
        in the streams of the runs ``replayed``. They are in the order of their numbers.
        """
        interrupts = {each["id"]: each for each in interrupts_in(row.interrupts)}
        if not interrupts:
            return []
        asks_itself = self._is_followed(row.thread_id)
        stored = await stored_questions(self._state.storage.database, row.thread_id)
        events = [(event, question_in(orjson.loads(event.data))) for event in stored]
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
        if unknown and row.status != "busy" and not asks_itself:
            last = await self._state.runs.last_of(row.thread_id)
            if last is not None:
                at = (last.number, last.run_id, row.state_updated_at)
                waiting += questions_of(unknown, last.graph_id, *at)
        return [event for event in waiting if seq_of(event.run, event.number) > since]

    def _is_followed(self, thread: str) -> bool:
        """Whether a run of the thread is under way whose own events ask what it asks: they come
        after the thread's row.
        """
        runs = [self._queue.get(key) for key in self._queue.live_in(thread)]
        return any(live is not None and live.record.kwargs.get("protocol") for live in runs)

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
