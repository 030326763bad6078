"""The commands of the streaming protocol, which start runs of a thread and read its state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Literal
from uuid import UUID

import orjson
from fastapi import HTTPException
from pydantic import Field, ValidationError
from sqlalchemy import Row

from agentrt.serving.langgraph.auth.hooks import Requester
from agentrt.serving.langgraph.bodies import (
    Body,
    Checkpoint,
    Command,
    Config,
    Goto,
    HistoryQuery,
    Object,
    ProtocolRunBody,
    in_snake_case,
)
from agentrt.serving.langgraph.database.interrupts import (
    INTERRUPT_ID,
    interrupts_in,
    is_answer_map,
)
from agentrt.serving.langgraph.database.runs import body_after
from agentrt.serving.langgraph.database.tables import PROTOCOL
from agentrt.serving.langgraph.responses import JSON, summary
from agentrt.serving.langgraph.runs.graph_events import Tree, seq_of
from agentrt.serving.langgraph.runs.starts import StartRoutes
from agentrt.serving.langgraph.runs.streams import replay
from agentrt.serving.langgraph.tenant_state import TenantState
from agentrt.serving.langgraph.threads.routes import StateRoutes

_ABSENT = {"input.inject", "subscription.reconnect"}
_OF_SOCKETS = {"subscription.subscribe", "subscription.unsubscribe"}
_MOST_RUNS = 1000
_Done = tuple[Object, int]
"""The result of a command, and the number in the thread after which the events of the command's run
begin. The number is 0 for a command that starts no run.
"""


class Answer(Body):
    """An answer to a question."""

    namespace: list[str] = Field(default_factory=list)
    interrupt_id: str
    response: Any = None


class Respond(Body):
    """The parameters of ``input.respond``: answers to questions, and other fields of the run that
    the command starts.
    """

    namespace: list[str] = Field(default_factory=list)
    interrupt_id: str | None = None
    response: Any = None
    responses: list[Answer] | None = Field(default=None, min_length=1, max_length=256)
    update: Object | None = None
    goto: Goto = None
    config: Config = Field(default_factory=Config)
    metadata: Object = Field(default_factory=dict)

    def answers(self) -> dict[str, Any]:
        """Return the answers by the ids of their questions. Raises `_ProtocolError` if there are no
        answers, or answers in both forms.
        """
        if (self.responses is None) == (self.interrupt_id is None):
            raise _ProtocolError(
                "invalid_argument", "send either interrupt_id and response, or responses"
            )
        if self.responses is not None:
            return {answer.interrupt_id: answer.response for answer in self.responses}
        assert self.interrupt_id is not None
        return {self.interrupt_id: self.response}


class _ProtocolError(Exception):
    """A command that cannot be carried out. ``code`` is an error code of the protocol."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class StateGet(Body):
    """The parameters of ``state.get``: the values of a thread's state to return."""

    namespace: list[str] = Field(default_factory=list, max_length=64)
    keys: list[str] | None = Field(default=None, max_length=256)


class ListCheckpoints(Body):
    """The parameters of ``state.listCheckpoints``: the checkpoints of a thread to return."""

    namespace: list[str] = Field(default_factory=list, max_length=64)
    limit: int = Field(default=10, ge=1, le=1000)
    before: UUID | None = None


class Fork(Body):
    """The parameters of ``state.fork``: a run to start from a checkpoint."""

    checkpoint_id: UUID
    input: Any = None
    config: Config = Field(default_factory=Config)


class GetTree(Body):
    """The parameters of ``agent.getTree``: the run whose graphs to return."""

    run_id: UUID | None = None


class ProtocolCommands:
    """Carries out commands to threads. A command has an id, a method and params."""

    def __init__(self, state: TenantState, starts: StartRoutes, states: StateRoutes) -> None:
        self._state = state
        self._starts = starts
        self._states = states
        self._commands: Mapping[str, Callable[[Requester, UUID, Object], Awaitable[_Done]]] = {
            "run.start": self._start,
            "input.respond": self._respond,
            "agent.getTree": self._tree,
            "state.get": self._values,
            "state.listCheckpoints": self._checkpoints,
            "state.fork": self._fork,
        }

    async def answer(self, caller: Requester, thread_id: UUID, body: Object) -> JSON:
        """Carry out a command, and return its response. For an invalid command, and for an
        `HTTPException`, the response has an error code of the protocol. Other errors, such as
        `BusyError`, are raised.
        """
        key, method = body.get("id"), body.get("method")
        if type(key) is not int or not isinstance(method, str):
            message = "a command needs an integer as id and a text as method"
            return _error(key if type(key) is int else None, "invalid_argument", message, 400)
        try:
            params = body.get("params") or {}
            result, through = await self._carry_out(caller, thread_id, method, params)
        except _ProtocolError as error:
            return _error(key, error.code, str(error))
        except ValidationError as error:
            return _error(key, "invalid_argument", summary(error.errors()))
        except HTTPException as error:
            code = "permission_denied" if error.status_code == 403 else "unknown_error"
            return _error(key, code, str(error.detail))
        meta = {"applied_through_seq": through}
        return JSON({"type": "success", "id": key, "result": result, "meta": meta})

    async def _carry_out(self, caller: Requester, thread: UUID, method: str, params: Any) -> _Done:
        if method in _OF_SOCKETS:
            raise _ProtocolError(
                "not_supported",
                f"the command {method} works over a WebSocket only; over HTTP, read the events of "
                "POST /threads/THREAD_ID/stream/events",
            )
        if method in _ABSENT:
            raise _ProtocolError(
                "not_supported",
                f"the command {method} is not supported here; use {', '.join(self._commands)}",
            )
        if method not in self._commands:
            raise _ProtocolError(
                "unknown_command", f"unknown command {method}; use {', '.join(self._commands)}"
            )
        if not isinstance(params, dict):
            raise _ProtocolError("invalid_argument", f"{method}: params must be an object")
        return await self._commands[method](caller, thread, params)

    # -- runs --------------------------------------------------------------------------

    async def _start(self, caller: Requester, thread: UUID, params: Object) -> _Done:
        """Carry out ``run.start``: start a run in the thread, which is created if it does not
        exist.

        If the thread has open questions, the input is the answer: `RemoteGraph` sends the value of
        ``Command(resume=…)`` as input, and the server must tell an answer from a new run.
        """
        body = ProtocolRunBody.model_validate(in_snake_case(params))
        if not (questions := await self._questions_for(caller, thread, body)):
            return _started((await self._starts.start(caller, thread, body))[0])
        if body.multitask_strategy != "enqueue":
            answers = []  # the run replaces an unfinished run with another answer, or is refused
        elif is_answer_map(body.input):
            answers = [key for key in questions if key in body.input]
        else:
            answers = questions
        resume = Command(resume=body.input)
        body = body.model_copy(update={"input": None, "command": resume})
        return await self._answer(caller, thread, body, answers)

    async def _answer(
        self, caller: Requester, thread: UUID, body: ProtocolRunBody, answers: Collection[str]
    ) -> _Done:
        """Start a run that answers the interrupts with the ids ``answers``. Raises `_ProtocolError`
        if one of them is not open.
        """
        try:
            row, _ = await self._starts.start(caller, thread, body, answers)
        except HTTPException as error:
            if error.status_code != 409 or not answers:
                raise
            raise _ProtocolError("no_such_interrupt", str(error.detail)) from error
        return _started(row)

    async def _questions_for(
        self, caller: Requester, thread: UUID, body: ProtocolRunBody
    ) -> list[str]:
        """Return the ids of the open questions that the input of ``run.start`` may answer; an empty
        list if the input is for a new run.

        The thread's status does not show this: a thread that stopped at a breakpoint or was
        cancelled is interrupted without a question, and a thread whose last answer failed still has
        its questions. A running run may be about to ask, and its client knows the question before
        the run has ended. So if the input would be enqueued behind a running run, wait for that
        run's end, but not longer than `RunQueue.settled` does.
        """
        if body.input is None or body.command or body.checkpoint or body.checkpoint_id:
            return []
        try:
            await self._state.thread(caller, thread, "read")  # refuses before a wait
            if body.multitask_strategy == "enqueue" and not await self._starts.settled(thread):
                return []
            row = await self._state.thread(caller, thread, "read")
        except HTTPException as error:
            if error.status_code != 404:
                raise
            return []
        return [interrupt["id"] for interrupt in interrupts_in(row._mapping["interrupts"])]

    async def _respond(self, caller: Requester, thread: UUID, params: Object) -> _Done:
        """Carry out ``input.respond``: start a run with answers, and with the assistant, the config
        and the context of the thread's last run.
        """
        respond = Respond.model_validate(in_snake_case(params))
        answers = respond.answers()
        row = await self._state.thread(caller, thread, "read")
        interrupts = interrupts_in(row._mapping["interrupts"])
        open_ids = {interrupt["id"] for interrupt in interrupts}
        last = await self._state.runs.last_of(str(thread))
        for key in answers:
            if key not in open_ids or not INTERRUPT_ID.fullmatch(key):
                raise _ProtocolError(
                    "no_such_interrupt", f"interrupt {key} is not open; it may have been answered"
                )
        before = {} if last is None else last.kwargs.get("config") or {}
        config = {**before, **respond.config.fields_set()}
        command = Command(resume=answers, update=respond.update, goto=respond.goto)
        metadata = row._mapping["metadata"]
        body = body_after(
            last,
            metadata,
            ProtocolRunBody,
            command=command,
            config=config,
            metadata=respond.metadata,
        )
        return await self._answer(caller, thread, body, answers)

    async def _fork(self, caller: Requester, thread: UUID, params: Object) -> _Done:
        """Carry out ``state.fork``: start a run from a checkpoint, with the assistant and the
        context of the thread's last run.
        """
        fork = Fork.model_validate(in_snake_case(params))
        at = Checkpoint(checkpoint_id=fork.checkpoint_id)
        await self._state_at(caller, thread, at)
        last = await self._state.runs.last_of(str(thread))
        if last is None:
            raise _ProtocolError("no_such_run", "the thread has no run; use run.start")
        body = last.followed_by(
            ProtocolRunBody, input=fork.input, checkpoint=at, config=fork.config
        )
        row, _ = await self._starts.start(caller, thread, body)
        result, through = _started(row)
        return {**result, "thread_id": str(thread)}, through

    async def _tree(self, caller: Requester, thread: UUID, params: Object) -> _Done:
        """Carry out ``agent.getTree``: return the graphs of a run, by default of the last run."""
        run_id = GetTree.model_validate(in_snake_case(params)).run_id
        await self._state.thread(caller, thread, "read")
        runs = await self._state.runs.since(str(thread), 0, _MOST_RUNS)
        wanted = [run for run in runs if run_id in (None, UUID(run.run_id))]
        if not wanted:
            message = f"the thread has no run{'' if run_id is None else f' {run_id}'}"
            raise _ProtocolError("no_such_run", message)
        tree = Tree(wanted[-1].graph_id)
        database, wanted_id = self._state.storage.database, wanted[-1].run_id
        async for event in replay(database, wanted_id, 0, may_skip=True):
            if event.event == PROTOCOL:
                tree.add(orjson.loads(event.data))
        return {"tree": tree.root}, 0

    # -- the state ---------------------------------------------------------------------

    async def _values(self, caller: Requester, thread: UUID, params: Object) -> _Done:
        """Carry out ``state.get``: return a thread's values, or only the values that ``keys``
        selects.
        """
        get = StateGet.model_validate(in_snake_case(params))
        state = await self._state_at(caller, thread, _place(get.namespace))
        if get.namespace and state["created_at"] is None:
            message = f"no graph has run in the namespace {get.namespace}"
            raise _ProtocolError("no_such_namespace", message)
        values = state["values"] or {}
        if get.keys is not None and isinstance(values, dict):
            values = {key: values[key] for key in get.keys if key in values}
        place = state["checkpoint"] or {}
        at = {"id": place.get("checkpoint_id"), "ns": place.get("checkpoint_ns", "")}
        return {"values": values, **({"checkpoint": at} if at["id"] else {})}, 0

    async def _checkpoints(self, caller: Requester, thread: UUID, params: Object) -> _Done:
        """Carry out ``state.listCheckpoints``: return checkpoints, the newest first."""
        page = ListCheckpoints.model_validate(in_snake_case(params))
        history = HistoryQuery(
            limit=page.limit, before=page.before, checkpoint=_place(page.namespace)
        )
        states = await self._states.states(thread, history, caller)
        return {"checkpoints": [_summary(state) for state in states]}, 0

    async def _state_at(self, caller: Requester, thread: UUID, at: Checkpoint) -> Object:
        try:
            return await self._states.state(caller, thread, at)
        except HTTPException as error:
            if error.status_code != 404 or not (at.checkpoint_ns or at.checkpoint_id):
                raise
            code = "no_such_namespace" if at.checkpoint_ns else "no_such_checkpoint"
            raise _ProtocolError(code, str(error.detail)) from error


def _place(namespace: list[str]) -> Checkpoint:
    return Checkpoint(checkpoint_ns="|".join(namespace))


def _summary(state: Object) -> Object:
    """Return a checkpoint in the form of ``state.listCheckpoints``."""
    return {
        "id": state["checkpoint"]["checkpoint_id"],
        "timestamp": state["created_at"],
        "step": state["metadata"]["step"],
        "metadata": state["metadata"],
    }


def _started(run: Row[Any]) -> _Done:
    """Return the result of a command that started ``run``, and the last number before the numbers
    of the run's events.
    """
    return {"run_id": run._mapping["run_id"]}, seq_of(run._mapping["number"], 0)


def _error(key: int | None, code: str, message: str, status: Literal[200, 400] = 200) -> JSON:
    return JSON({"type": "error", "id": key, "error": code, "message": message}, status)
