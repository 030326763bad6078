"""The tasks of the Agent2Agent protocol (A2A). A message starts a run in a thread, which is the
message's context.

A task is a run, together with the runs of later messages to the task, such as answers to its
questions. The SDK parses requests and formats responses, in versions 0.3 and 1.0 of the protocol.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from a2a.helpers import get_text_parts
from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers.request_handler import RequestHandler, validate_request_params
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
    UnsupportedOperationError,
)
from fastapi import HTTPException
from pydantic import ValidationError

from agentrt.serving.langgraph.a2a import messages as values
from agentrt.serving.langgraph.a2a.messages import KnownTasks, TaskRecord, caller_of
from agentrt.serving.langgraph.bodies import Command, RunBody, RunCancel
from agentrt.serving.langgraph.database.runs import A2A, CANCEL_REASON
from agentrt.serving.langgraph.outages import refusal
from agentrt.serving.langgraph.responses import summary
from agentrt.serving.langgraph.runs.queue import RunQueue
from agentrt.serving.langgraph.runs.routes import RunRoutes
from agentrt.serving.langgraph.runs.starts import StartRoutes
from agentrt.serving.langgraph.runs.streams import FellBehindError, LiveRun
from agentrt.serving.langgraph.tenant_state import TenantState
from agentrt.serving.tenants import BusyError

_PAGE = 50
_log = logging.getLogger(__name__)


class Tasks(RequestHandler):
    """Handles the requests of A2A clients to an assistant, with the rights of their caller."""

    def __init__(
        self, state: TenantState, queue: RunQueue, starts: StartRoutes, runs: RunRoutes
    ) -> None:
        self._state = state
        self._queue = queue
        self._starts = starts
        self._runs = runs
        self._known = KnownTasks(state)

    @validate_request_params
    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task:
        with _errors():
            key, live = await self._start(params, context)
            if not params.configuration.return_immediately:
                await live.done.wait()
            task = await self._known.find(context, key)
            return task.as_task(_history(params.configuration))

    @validate_request_params
    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        with _errors():
            key, live = await self._start(params, context)
            async for event in self._followed(context, key, live, 0):
                yield event

    @validate_request_params
    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        with _errors():
            task = await self._known.find(context, params.id)
            live = self._queue.get(task.row["run_id"])
            if live is None:
                raise UnsupportedOperationError(
                    "the task is not running, so it has no events to follow; get the task instead"
                )
            async for event in self._followed(context, task.key, live, live.log.last):
                yield event

    @validate_request_params
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        with _errors():
            return (await self._known.find(context, params.id)).as_task(_history(params))

    @validate_request_params
    async def on_list_tasks(
        self, params: ListTasksRequest, context: ServerCallContext
    ) -> ListTasksResponse:
        with _errors():
            if not params.context_id:
                raise UnsupportedOperationError("tasks can only be listed for a contextId; set it")
            thread = _uuid("contextId", params.context_id)
            every = await self._known.listed(context, thread, params)
            size = min(max(params.page_size, 0) or _PAGE, _PAGE)
            start = _start_of(params.page_token)
            records = [await self._known.find(context, key) for key in every[start : start + size]]
            tasks = [record.as_task(_history(params)) for record in records]
            if not params.include_artifacts:
                for task in tasks:
                    task.ClearField("artifacts")
            next_token = str(start + size) if start + size < len(every) else ""
            return ListTasksResponse(
                tasks=tasks, next_page_token=next_token, page_size=size, total_size=len(every)
            )

    @validate_request_params
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        with _errors():
            task = await self._known.find(context, params.id)
            if task.state in values.ENDED:
                raise TaskNotCancelableError("the task has ended and cannot be canceled")
            while True:
                if task.questions:
                    await self._withdraw(context, task)
                else:
                    await self._stop(context, task)
                before, task = task, await self._known.find(context, params.id)
                # Meanwhile, a running task may have asked, and a task that asked may have been
                # answered: then its cancellation has to be tried again.
                if task.state in values.ENDED or task == before:
                    return task.as_task(0)

    async def on_get_extended_agent_card(self, params: Any, context: Any) -> AgentCard:
        raise ExtendedAgentCardNotConfiguredError

    async def _no_push_notifications(self, params: Any, context: Any) -> Any:
        raise PushNotificationNotSupportedError

    on_create_task_push_notification_config = _no_push_notifications
    on_get_task_push_notification_config = _no_push_notifications
    on_list_task_push_notification_configs = _no_push_notifications
    on_delete_task_push_notification_config = _no_push_notifications

    # -- runs --------------------------------------------------------------------------

    async def _start(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> tuple[str, LiveRun]:
        """Start the run of a message. Return the id of the message's task, and the run."""
        message, caller = params.message, caller_of(context)
        thread = _uuid("contextId", message.context_id) if message.context_id else uuid4()
        fields: dict[str, Any] = {"if_not_exists": "create", "stream_mode": ["messages-tuple"]}
        fields["metadata"] = {A2A: {}}
        answers: Sequence[str] = ()
        if params.configuration.HasField("task_push_notification_config"):
            raise PushNotificationNotSupportedError
        if message.task_id:
            task = await self._known.find(context, message.task_id)
            if message.context_id not in ("", task.row["thread_id"]):
                raise InvalidParamsError(
                    f"contextId {message.context_id[:100]!r} is not the context of the task; use "
                    f"{task.row['thread_id']}, or leave contextId out"
                )
            if task.state in values.ENDED:
                raise UnsupportedOperationError(
                    "the task has ended; leave taskId out to start a new task"
                )
            thread = UUID(task.row["thread_id"])
            fields["metadata"] = {A2A: {"task_id": task.key}}
            if task.questions:
                resume = values.answer_in(message)
                answers = values.answered_by(resume, task.questions)
                fields["command"] = Command(resume=resume)
        if "command" not in fields:
            fields["input"] = await self._input(params, context)
        run = RunBody(assistant_id=context.state["assistant_id"], **fields)
        row, live = await self._starts.start(caller, thread, run, answers)
        return message.task_id or f"{thread}:{row._mapping['run_id']}", live

    async def _input(self, params: SendMessageRequest, context: ServerCallContext) -> Any:
        message = params.message
        input = values.input_of(message)
        if "messages" not in input:
            return input
        name = context.state["assistant_id"]
        fields = await self._state.assistants.inputs(caller_of(context), name)
        if fields and "messages" not in fields:
            names = ", ".join(fields)
            raise InvalidParamsError(f"{name} takes no messages; send a data part with {names}")
        # The input of a program has no fields: it is a single value, such as a text.
        is_text = all(part.HasField("text") for part in message.parts)
        return "\n".join(get_text_parts(message.parts)) if is_text and not fields else input

    async def _followed(
        self, context: ServerCallContext, key: str, live: LiveRun, after: int
    ) -> AsyncIterator[Event]:
        """Yield the events of a task's stream until the task's run ends. ``after`` is the number of
        the run's event after which the stream begins.
        """
        thread, run = live.record.thread_id, live.record.run_id
        yield (await self._known.find(context, key)).as_task(0)
        about: dict[str, Any] = {"task_id": key, "context_id": thread}
        working = TaskStatus(state=TaskState.TASK_STATE_WORKING, timestamp=datetime.now(UTC))
        yield TaskStatusUpdateEvent(**about, status=working)
        begun = after > 0
        with suppress(FellBehindError):  # a slow client gets the whole artifact below
            async for event in live.log.follow(after):
                if parts := values.piece_of(event.event, event.data):
                    artifact = values.artifact_of(run, parts)
                    yield TaskArtifactUpdateEvent(**about, artifact=artifact, append=begun)
                    begun = True
        await live.done.wait()
        task = (await self._known.find(context, key)).as_task(0)
        for artifact in task.artifacts:  # the whole artifact replaces its pieces
            yield TaskArtifactUpdateEvent(**about, artifact=artifact, last_chunk=True)
        yield TaskStatusUpdateEvent(**about, status=task.status)

    async def _withdraw(self, context: ServerCallContext, task: TaskRecord) -> None:
        """Cancel a task that waits for an answer, and remove its questions, unless they have been
        answered meanwhile.
        """
        caller, thread = caller_of(context), UUID(task.row["thread_id"])
        await self._state.thread(caller, thread, "update")
        result = str(task.row["result"]).encode()
        end = self._state.runs.end(task.row["run_id"], "interrupted", result, CANCEL_REASON)
        await self._state.threads.withdraw(str(thread), task.questions, end)

    async def _stop(self, context: ServerCallContext, task: TaskRecord) -> None:
        """Cancel all unfinished runs of a task, and wait for their ends."""
        if not (keys := await self._known.active_runs(task)):
            return  # they have ended meanwhile
        live_runs = [live for key in keys if (live := self._queue.get(str(key))) is not None]
        body = RunCancel(thread_id=UUID(task.row["thread_id"]), run_ids=keys)
        await self._runs.cancel_many(body, caller_of(context))
        for live in live_runs:
            await live.ended()


def _history(params: Any) -> int | None:
    """Return the maximum number of messages that the client requests; None means as many as the
    server allows.
    """
    return max(0, params.history_length) if params.HasField("history_length") else None


def _start_of(token: str) -> int:
    """Return the offset of the page that a page token names."""
    if token and not (token.isdecimal() and len(token) < 10):
        raise InvalidParamsError(
            f"unknown pageToken {token[:100]!r}; use the nextPageToken of an earlier response"
        )
    return int(token or 0)


def _uuid(field: str, text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidParamsError(f"{field} {text[:100]!r} is not a UUID") from None


@contextmanager
def _errors() -> Iterator[None]:
    """Convert errors that the ``with`` block raises to errors of the protocol."""
    try:
        yield
    except A2AError:
        raise
    except ValidationError as error:
        raise InvalidParamsError(summary(error.errors())) from error
    except BusyError as error:
        raise InternalError(str(error)) from error
    except HTTPException as error:
        kind = InvalidParamsError if error.status_code < 429 else InternalError
        raise kind(str(error.detail)) from error
    except Exception as error:
        refused = refusal(error)
        if refused is None:
            _log.exception("an A2A request failed")
            raise InternalError("the server failed") from error
        raise InternalError(str(refused.detail)) from error
