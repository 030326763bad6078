"""The streaming protocol of newer clients: commands to a thread, and the events of its runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal
from uuid import UUID

import orjson
from fastapi import APIRouter, HTTPException
from pydantic import AfterValidator, Field, ValidationError
from sqlalchemy import Row
from sse_starlette import EventSourceResponse, ServerSentEvent

from agentrt.serving.langgraph.auth import Caller, CallerDep
from agentrt.serving.langgraph.bodies import Body, Config, Object
from agentrt.serving.langgraph.interrupts import INTERRUPT_ID, interrupts_in
from agentrt.serving.langgraph.protocol_events import ThreadEvent, Wanted, place_of, seq_of
from agentrt.serving.langgraph.responses import JSON, summary
from agentrt.serving.langgraph.run_bodies import Command, Goto, ProtocolRunBody, in_snake_case
from agentrt.serving.langgraph.run_queue import RunQueue
from agentrt.serving.langgraph.run_starts import StartRoutes
from agentrt.serving.langgraph.runs import RunRecord
from agentrt.serving.langgraph.streams import PING_S, PROTOCOL, SEND_S, LiveRun, replay
from agentrt.serving.langgraph.tenant_state import TenantState

_CHANNELS = {
    *("values", "updates", "messages", "tools", "lifecycle"),
    *("input", "checkpoints", "tasks", "custom"),
}
_ABSENT = {
    *("agent.getTree", "input.inject", "state.get", "state.listCheckpoints", "state.fork"),
    *("subscription.subscribe", "subscription.unsubscribe", "subscription.reconnect"),
}
_Done = tuple[Object, int]
"""What a command gives, and the number of the thread's last event before it."""
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


class Answer(Body):
    """An answer to one question."""

    namespace: list[str] = Field(default_factory=list)
    interrupt_id: str
    response: Any = None


class Respond(Body):
    """Answers to questions, with what a command may have beside them."""

    namespace: list[str] = Field(default_factory=list)
    interrupt_id: str | None = None
    response: Any = None
    responses: list[Answer] | None = Field(default=None, min_length=1, max_length=256)
    update: Object | None = None
    goto: Goto = None
    config: Config | None = None
    metadata: Object = Field(default_factory=dict)

    def answers(self) -> dict[str, Any]:
        """The answers by the ids of their questions. Raises `_ProtocolError` if there are none."""
        if self.responses is not None:
            return {one.interrupt_id: one.response for one in self.responses}
        if self.interrupt_id is None:
            raise _ProtocolError("invalid_argument", "give interrupt_id, or responses")
        return {self.interrupt_id: self.response}


class _ProtocolError(Exception):
    """A command that cannot be carried out, by a code of the protocol."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ProtocolRoutes:
    """Commands and events of threads."""

    def __init__(self, state: TenantState, queue: RunQueue, starts: StartRoutes) -> None:
        self._state = state
        self._queue = queue
        self._starts = starts
        self._commands: Mapping[str, Callable[[Caller, UUID, Object], Awaitable[_Done]]] = {
            "run.start": self._start,
            "input.respond": self._respond,
        }

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        add = router.add_api_route
        add("/threads/{thread_id}/commands", self.command, methods=["POST"])
        add(
            "/threads/{thread_id}/stream/events",
            self.events,
            methods=["POST"],
            response_model=None,
        )

    # -- commands ----------------------------------------------------------------------

    async def command(self, thread_id: UUID, body: Object, caller: CallerDep) -> JSON:
        """Carry out a command. One that fails is answered as the protocol says."""
        key, method = body.get("id"), body.get("method")
        if type(key) is not int or not isinstance(method, str):
            message = "a command has an integer id and a text as its method"
            return _error(key if type(key) is int else None, "invalid_argument", message, 400)
        try:
            given = body.get("params") or {}
            result, through = await self._carry_out(caller, thread_id, method, given)
        except _ProtocolError as error:
            return _error(key, error.code, str(error))
        except ValidationError as error:
            return _error(key, "invalid_argument", summary(error.errors()))
        except HTTPException as error:
            code = "permission_denied" if error.status_code == 403 else "unknown_error"
            return _error(key, code, str(error.detail))
        meta = {"applied_through_seq": through}
        return JSON({"type": "success", "id": key, "result": result, "meta": meta})

    async def _carry_out(self, caller: Caller, thread: UUID, method: str, params: Any) -> _Done:
        if method in _ABSENT:
            raise _ProtocolError("not_supported", f"{method}: not supported here")
        if method not in self._commands:
            raise _ProtocolError("unknown_command", f"{method}: no such command")
        if not isinstance(params, dict):
            raise _ProtocolError("invalid_argument", f"{method}: params is an object")
        return await self._commands[method](caller, thread, params)

    async def _start(self, caller: Caller, thread: UUID, params: Object) -> _Done:
        """``run.start``: a run in the thread, which is made if it is not there."""
        body = ProtocolRunBody.model_validate(in_snake_case(params))
        row, _ = await self._starts.start(caller, thread, body)
        return _started(row)

    async def _respond(self, caller: Caller, thread: UUID, params: Object) -> _Done:
        """``input.respond``: the run that goes on with answers, as the thread's last run was."""
        given = Respond.model_validate(in_snake_case(params))
        answers = given.answers()
        only = await caller.authorize("threads", "read", {"thread_id": thread})
        row = await self._state.threads.get(caller.tenant, thread, only)
        open_ids = {one["id"] for one in interrupts_in(row._mapping["interrupts"])}
        last = await self._state.runs.last_of(str(thread))
        for key in answers:
            if last is None or key not in open_ids or not INTERRUPT_ID.fullmatch(key):
                raise _ProtocolError("no_such_interrupt", f"{key} is not open, or was answered")
        assert last is not None
        body = _going_on(last, given, answers)
        try:
            started, _ = await self._starts.start(caller, thread, body, next(iter(answers)))
        except HTTPException as error:
            if error.status_code != 409:
                raise
            raise _ProtocolError("no_such_interrupt", str(error.detail)) from error
        return _started(started)

    # -- events ------------------------------------------------------------------------

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
                past = await self._state.runs.since(str(thread), number, _MOST_RUNS)
                for record in past:
                    live = self._queue.get(record.run_id)
                    if live is not None and live.task is None:
                        continue  # it waits; it will be told when it begins
                    done.add(record.run_id)
                    async for one in self._of_run(
                        record, live, after if record.number == number else 0
                    ):
                        yield one
            while True:
                live = await beginning.get()
                if live.record.run_id not in done and await self._sees(caller, thread):
                    async for one in self._of_run(live.record, live, 0):
                        yield one

    async def _sees(self, caller: Caller, thread: UUID) -> bool:
        """Whether the thread is there, and the caller's."""
        only = await caller.authorize("threads", "read", {"thread_id": thread})
        try:
            await self._state.threads.get(caller.tenant, thread, only)
        except HTTPException:
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


def _started(run: Row[Any]) -> _Done:
    """What tells of a run that a command started: all events before its own are older."""
    return {"run_id": run._mapping["run_id"]}, seq_of(run._mapping["number"], 0)


def _going_on(last: RunRecord, given: Respond, answers: Object) -> ProtocolRunBody:
    """The run that answers: of the assistant, and with the config and the context, of the last."""
    config = last.kwargs.get("config") or {}
    if given.config is not None:
        config = {**config, **given.config.given()}
    return ProtocolRunBody(
        assistant_id=last.assistant_id,
        command=Command(resume=answers, update=given.update, goto=given.goto),
        config=Config(**config),
        context=last.kwargs.get("context"),
        metadata=given.metadata,
        after_seconds=0,
    )


def _error(key: int | None, code: str, message: str, status: Literal[200, 400] = 200) -> JSON:
    return JSON({"type": "error", "id": key, "error": code, "message": message}, status)
