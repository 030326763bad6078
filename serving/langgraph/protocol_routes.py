"""The streaming protocol of newer clients: commands to a thread, and the events of its runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated
from uuid import UUID

import orjson
from fastapi import HTTPException, WebSocket
from pydantic import AfterValidator, Field
from sse_starlette import EventSourceResponse, ServerSentEvent

from agentrt.serving.langgraph.auth import Caller, CallerDep
from agentrt.serving.langgraph.bodies import Body, Object
from agentrt.serving.langgraph.protocol_commands import ProtocolCommands
from agentrt.serving.langgraph.protocol_events import ThreadEvent, Wanted, place_of
from agentrt.serving.langgraph.protocol_socket import ProtocolSocket
from agentrt.serving.langgraph.responses import JSON
from agentrt.serving.langgraph.routes import Routes, route
from agentrt.serving.langgraph.run_queue import RunQueue
from agentrt.serving.langgraph.runs import RunRecord
from agentrt.serving.langgraph.stream_responses import PING_S, SEND_S
from agentrt.serving.langgraph.streams import PROTOCOL, LiveRun, replay
from agentrt.serving.langgraph.tenant_state import REPLAY_S, TenantState

_CHANNELS = {
    *("values", "updates", "messages", "tools", "lifecycle"),
    *("input", "checkpoints", "tasks", "custom"),
}
EVENTS = "/threads/{thread_id}/stream/events"
_MOST_RUNS = 1000
"""How many of a thread's last runs are replayed."""


def _known(channels: list[str]) -> list[str]:
    unknown = [one for one in channels if one not in _CHANNELS and not one.startswith("custom:")]
    if unknown:
        raise ValueError(
            f"no channel {', '.join(unknown)}; there is {', '.join(sorted(_CHANNELS))}"
        )
    return channels


class EventsBody(Body):
    """What of a thread a client wants to hear, and since when."""

    channels: Annotated[list[str], Field(min_length=1, max_length=64), AfterValidator(_known)]
    namespaces: list[list[str]] | None = Field(default=None, max_length=64)
    depth: int | None = Field(default=None, ge=0, le=64)
    since: int = Field(default=0, ge=0, lt=2**53)


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
        wanted = Wanted(frozenset(body.channels), body.namespaces, body.depth)
        await caller.authorize("threads", "read", {"thread_id": thread_id})

        async def parts() -> AsyncIterator[ServerSentEvent]:
            async for one in self._of_thread(caller, thread_id, body.since):
                event = orjson.loads(one.event.data)
                if wanted.has(event):
                    text = one.as_json().decode()
                    yield ServerSentEvent(text, event=event["method"], id=str(one.seq))

        return EventSourceResponse(parts(), ping=PING_S, send_timeout=SEND_S)

    async def _of_thread(
        self, caller: Caller, thread: UUID, since: int
    ) -> AsyncIterator[ThreadEvent]:
        number, after = place_of(since)
        done: set[str] = set()
        with self._queue.listening(str(thread)) as beginning:
            if await self._sees(caller, thread):
                kept = time.time() - REPLAY_S  # of older runs there are no events to look for
                past = await self._state.runs.since(str(thread), number, _MOST_RUNS, kept)
                for record in past:
                    live = self._queue.get(record.run_id)
                    if self._begins_later(record, live):
                        continue  # it will be told when it does
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
        return not record.attempt and not self._queue.is_orphan(record.tenant, record.run_id)

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
    ) -> AsyncIterator[ThreadEvent]:
        if not record.kwargs.get("protocol"):
            return
        database = self._state.storage.database
        source = replay(database, record.run_id, after) if live is None else live.log.follow(after)
        async for one in source:
            if one.event == PROTOCOL:
                yield ThreadEvent(record.run_id, record.number, one)
