"""The tasks of the Agent2Agent protocol (A2A): a message starts a run in a thread, its context.

A task is a run, and the runs that answer its questions. The SDK reads requests and writes answers,
in the protocol's versions 0.3 and 1.0.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypedDict
from uuid import UUID, uuid4

import orjson
from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers.request_handler import RequestHandler, validate_request_params
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import (
    A2AError,
    ExtendedAgentCardNotConfiguredError,
    InternalError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from fastapi import HTTPException, Request
from langgraph_sdk.auth.exceptions import HTTPException as HookHTTPException
from pydantic import ValidationError

from agentrt.serving.langgraph import a2a_values as values
from agentrt.serving.langgraph.auth import Caller
from agentrt.serving.langgraph.outages import refusal
from agentrt.serving.langgraph.responses import summary
from agentrt.serving.langgraph.run_bodies import Command, ThreadRunBody
from agentrt.serving.langgraph.run_queue import RunQueue
from agentrt.serving.langgraph.run_routes import RunRoutes
from agentrt.serving.langgraph.run_starts import StartRoutes
from agentrt.serving.langgraph.runs import RunRecord
from agentrt.serving.langgraph.streams import LiveRun
from agentrt.serving.langgraph.tenant_state import TenantState
from agentrt.serving.tenants import BusyError

_MOST_RUNS = 1000
_PAGE = 50
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """A task: its id, its last run, and whether that waits for an answer."""

    key: str
    row: Mapping[str, Any]
    waits: bool

    def as_task(self, history: int | None = None) -> Task:
        """As clients get it, with the last so many messages."""
        return values.task_of(self.key, self.row, waits=self.waits, history=history)


class Asked(ServerCallContextBuilder):
    """Tells `Tasks` who asks, and whom."""

    def build(self, request: Request) -> ServerCallContext:
        state = {
            "headers": dict(request.headers),
            "caller": request.state.caller,
            "assistant_id": request.path_params["assistant_id"],
        }
        return ServerCallContext(state=state)


class Tasks(RequestHandler):
    """Carries out what clients ask of an assistant, with the rights of their caller."""

    def __init__(
        self, state: TenantState, queue: RunQueue, starts: StartRoutes, runs: RunRoutes
    ) -> None:
        self._state = state
        self._queue = queue
        self._starts = starts
        self._runs = runs

    @validate_request_params
    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task:
        with _told():
            key, live = await self._start(params, context)
            if not params.configuration.return_immediately:
                await live.done.wait()
            found = await self._find(context, key)
            return found.as_task(_history(params.configuration))

    @validate_request_params
    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        with _told():
            key, live = await self._start(params, context)
            async for event in self._followed(context, key, live, 0):
                yield event

    @validate_request_params
    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        with _told():
            found = await self._find(context, params.id)
            live = self._queue.get(found.row["run_id"])
            if live is None:
                raise UnsupportedOperationError("the task does not run: there is nothing to follow")
            async for event in self._followed(context, found.key, live, live.log.last):
                yield event

    @validate_request_params
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        with _told():
            return (await self._find(context, params.id)).as_task(_history(params))

    @validate_request_params
    async def on_list_tasks(
        self, params: ListTasksRequest, context: ServerCallContext
    ) -> ListTasksResponse:
        with _told():
            if not params.context_id:
                raise UnsupportedOperationError("tasks are listed by their contextId: give one")
            thread = _uuid("contextId", params.context_id)
            every = await self._keys(context, thread)
            size = min(max(params.page_size, 0) or _PAGE, _PAGE)
            start = int(params.page_token[:9]) if params.page_token.isdecimal() else 0
            found = [await self._find(context, key) for key in every[start : start + size]]
            tasks = [one.as_task(_history(params)) for one in found]
            wanted = [one for one in tasks if params.status in (0, one.status.state)]
            more = str(start + size) if start + size < len(every) else ""
            return ListTasksResponse(
                tasks=wanted, next_page_token=more, page_size=size, total_size=len(every)
            )

    @validate_request_params
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        with _told():
            found = await self._find(context, params.id)
            run, thread = UUID(found.row["run_id"]), UUID(found.row["thread_id"])
            if found.waits or found.as_task(0).status.state in values.ENDED:
                raise TaskNotCancelableError("the task does not run: there is nothing to stop")
            await self._runs.cancel(thread, run, _caller(context), wait=True)
            return (await self._find(context, params.id)).as_task(0)

    async def on_get_extended_agent_card(self, params: Any, context: Any) -> AgentCard:
        raise ExtendedAgentCardNotConfiguredError

    async def on_create_task_push_notification_config(self, params: Any, context: Any) -> Any:
        raise PushNotificationNotSupportedError

    async def on_get_task_push_notification_config(self, params: Any, context: Any) -> Any:
        raise PushNotificationNotSupportedError

    async def on_list_task_push_notification_configs(self, params: Any, context: Any) -> Any:
        raise PushNotificationNotSupportedError

    async def on_delete_task_push_notification_config(self, params: Any, context: Any) -> None:
        raise PushNotificationNotSupportedError

    # -- runs --------------------------------------------------------------------------

    async def _start(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> tuple[str, LiveRun]:
        """The id of the task of a message, and the run that it starts."""
        message, caller = params.message, _caller(context)
        thread = _uuid("contextId", message.context_id) if message.context_id else uuid4()
        body: dict[str, Any] = {}
        if message.task_id:
            found = await self._find(context, message.task_id)
            if message.context_id not in ("", found.row["thread_id"]):
                raise InvalidParamsError("contextId is not that of the task")
            if found.as_task(0).status.state in values.ENDED:
                raise UnsupportedOperationError("the task has ended: leave taskId out")
            thread = UUID(found.row["thread_id"])
            body["metadata"] = {"a2a": {"task_id": found.key}}
            if found.waits:
                body["command"] = Command(resume=values.answer_in(message))
        if "command" not in body:
            body["input"] = await self._input(params, context)
        run = ThreadRunBody(
            assistant_id=context.state["assistant_id"],
            if_not_exists="create",
            stream_mode=["messages-tuple"],
            **body,
        )
        row, live = await self._starts.start(caller, thread, run)
        return message.task_id or f"{thread}:{row._mapping['run_id']}", live

    async def _input(self, params: SendMessageRequest, context: ServerCallContext) -> Any:
        given = values.input_of(params.message)
        if "messages" not in given:
            return given
        name = context.state["assistant_id"]
        known = await self._state.assistants.inputs(_caller(context), name)
        if known and "messages" not in known:
            wanted = ", ".join(known)
            raise InvalidParamsError(f"{name} takes no messages: give {wanted} as data")
        is_text = given.keys() == {"messages"} and isinstance(given["messages"][0]["content"], str)
        # A program's input is one value, and a text is one.
        return given["messages"][0]["content"] if is_text and not known else given

    async def _followed(
        self, context: ServerCallContext, key: str, live: LiveRun, after: int
    ) -> AsyncIterator[Event]:
        """What a client of the task's stream is told until the run's end."""
        thread, run = live.record.thread_id, live.record.run_id
        yield (await self._find(context, key)).as_task(0)
        about = _About(task_id=key, context_id=thread)
        working = TaskStatus(state=TaskState.TASK_STATE_WORKING, timestamp=datetime.now(UTC))
        yield TaskStatusUpdateEvent(**about, status=working)
        begun = after > 0
        async for one in live.log.follow(after):
            if one.event != "messages":
                continue
            chunk = orjson.loads(one.data)[0]
            parts = values.parts_of(chunk.get("content"))
            if parts and chunk.get("type") in ("ai", "AIMessageChunk"):
                artifact = values.artifact_of(run, parts)
                yield TaskArtifactUpdateEvent(**about, artifact=artifact, append=begun)
                begun = True
        await live.done.wait()
        task = (await self._find(context, key)).as_task(0)
        for artifact in task.artifacts:  # the whole takes the place of its pieces
            yield TaskArtifactUpdateEvent(**about, artifact=artifact, last_chunk=True)
        yield TaskStatusUpdateEvent(**about, status=task.status)

    # -- tasks -------------------------------------------------------------------------

    async def _find(self, context: ServerCallContext, key: str) -> Found:
        """The task of that id. Raises `TaskNotFoundError`."""
        caller, (first, _, second) = _caller(context), key.partition(":")
        try:
            thread, run = UUID(first), UUID(second)
            only = await caller.authorize("threads", "read", {"thread_id": thread})
            of_thread = await self._state.threads.get(caller.tenant, thread, only)
            anchor = await self._state.runs.get(caller.tenant, thread, run)
            assistant = await self._state.assistants.find(
                caller.tenant, context.state["assistant_id"]
            )
        except (ValueError, HTTPException) as error:
            if isinstance(error, HTTPException) and error.status_code != 404:
                raise
            raise TaskNotFoundError(f"task {key[:100]!r} not found") from error
        if anchor._mapping["assistant_id"] != assistant["assistant_id"]:
            raise TaskNotFoundError(f"task {key[:100]!r} is another assistant's")
        later = await self._state.runs.since(first, anchor._mapping["number"], _MOST_RUNS)
        last = [one for one in later if one.run_id == second or _task_in(one) == key][-1]
        row = await self._state.runs.get(caller.tenant, thread, UUID(last.run_id))
        is_open = row._mapping["status"] == "success" and later[-1].run_id == last.run_id
        at = datetime.fromtimestamp(row._mapping["updated_at"], UTC)
        known = {**row._mapping, "updated_at": at}
        return Found(key, known, is_open and bool(of_thread._mapping["interrupts"]))

    async def _keys(self, context: ServerCallContext, thread: UUID) -> list[str]:
        """The ids of a thread's tasks of this assistant, the last one first."""
        caller = _caller(context)
        only = await caller.authorize("threads", "read", {"thread_id": thread})
        await self._state.threads.get(caller.tenant, thread, only)
        name = context.state["assistant_id"]
        assistant = await self._state.assistants.find(caller.tenant, name)
        runs = await self._state.runs.since(str(thread), 0, _MOST_RUNS)
        return [
            f"{thread}:{one.run_id}"
            for one in reversed(runs)
            if one.assistant_id == assistant["assistant_id"] and _task_in(one) is None
        ]


class _About(TypedDict):
    """Of which task an event is."""

    task_id: str
    context_id: str


def _caller(context: ServerCallContext) -> Caller:
    caller: Caller = context.state["caller"]
    return caller


def _history(given: Any) -> int | None:
    """How many messages are wanted; None for all."""
    return max(0, given.history_length) if given.HasField("history_length") else None


def _task_in(run: RunRecord) -> str | None:
    """The task that a run goes on with."""
    about = run.metadata.get("a2a")
    return about.get("task_id") if isinstance(about, dict) else None


def _uuid(what: str, text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidParamsError(f"{what} {text[:100]!r} is no UUID") from None


@contextmanager
def _told() -> Iterator[None]:
    """What goes wrong, as the protocol says it."""
    try:
        yield
    except A2AError:
        raise
    except ValidationError as error:
        raise InvalidParamsError(summary(error.errors())) from error
    except BusyError as error:
        raise InternalError(str(error)) from error
    except (HTTPException, HookHTTPException) as error:
        kind = InvalidParamsError if error.status_code < 429 else InternalError
        raise kind(str(error.detail)) from error
    except Exception as error:
        refused = refusal(error)
        if refused is None:
            _log.exception("an A2A request failed")
            raise InternalError("the server failed") from error
        raise InternalError(str(refused.detail)) from error
