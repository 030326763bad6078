"""The streaming protocol of newer clients: commands to a thread, and the events of its runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from uuid import UUID

import orjson
from fastapi import HTTPException, WebSocket
from sse_starlette import EventSourceResponse, ServerSentEvent

from agentrt.serving.keep_alive import NEVER_S
from agentrt.serving.langgraph.auth import Caller, CallerDep
from agentrt.serving.langgraph.bodies import Object
from agentrt.serving.langgraph.protocol_commands import ProtocolCommands
from agentrt.serving.langgraph.protocol_events import EventsBody, place_of, seq_of
from agentrt.serving.langgraph.protocol_socket import ProtocolSocket
from agentrt.serving.langgraph.responses import JSON
from agentrt.serving.langgraph.routes import Routes, route
from agentrt.serving.langgraph.run_queue import RunQueue
from agentrt.serving.langgraph.runs import RunRecord
from agentrt.serving.langgraph.stream_responses import SEND_S
from agentrt.serving.langgraph.streams import PROTOCOL, LiveRun, StreamEvent, replay
from agentrt.serving.langgraph.tenant_state import REPLAY_S, TenantState

EVENTS = "/threads/{thread_id}/stream/events"
_MOST_RUNS = 1000
"""How many of a thread's last runs are replayed."""
_Event = tuple[RunRecord, StreamEvent]


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
            async for record, one in self._of_thread(caller, thread_id, body.since):
                event = orjson.loads(one.data)
                if body.has(event):
                    seq = seq_of(record.number, one.number)
                    about = {"type": "event", "event_id": f"{record.run_id}:{one.number}"}
                    text = orjson.dumps({**about, "seq": seq, **event}).decode()
                    yield ServerSentEvent(text, event=event["method"], id=str(seq))

        return EventSourceResponse(parts(), ping=NEVER_S, send_timeout=SEND_S)

    async def _of_thread(self, caller: Caller, thread: UUID, since: int) -> AsyncIterator[_Event]:
        number, after = place_of(since)
        done: set[str] = set()
        with self._queue.listening(str(thread)) as beginning:
            if await self._sees(caller, thread):
                kept = time.time() - REPLAY_S  # of older runs there are no events to look for
                past = await self._state.runs.since(str(thread), number, _MOST_RUNS, kept)
                for record in past:
                    live = self._queue.get(record.run_id)
                    if self._begins_later(record, live):
                        continue  # the queue gives it when it begins
                    done.add(record.run_id)
                    async for one in self._of_run(
                        record, live, after if record.number == number else 0
                    ):
                        yield one
            while (live := await beginning.get()) is not None:
                if live.record.run_id not in done and await self._sees(caller, thread):
                    async for one in self._of_run(live.record, live, 0):
                        yield one

    def _begins_later(self, record: RunRecord, live: LiveRun | None) -> bool:
        """Whether a run waits in the queue, or is in the database and not in the queue yet."""
        if live is not None:
            return live.task is None
        return not record.attempt

    async def _sees(self, caller: Caller, thread: UUID) -> bool:
        """Whether the thread is there, and the caller's."""
        try:
            await self._state.thread(caller, thread, "read")
        except HTTPException as error:
            if error.status_code != 404:
                raise
            return False
        return True

    async def _of_run(
        self, record: RunRecord, live: LiveRun | None, after: int
    ) -> AsyncIterator[_Event]:
        if not record.kwargs.get("protocol"):
            return
        database = self._state.storage.database
        source = replay(database, record.run_id, after) if live is None else live.log.follow(after)
        async for one in source:
            if one.event == PROTOCOL:
                yield record, one
