"""Converts messages of the Agent2Agent protocol to inputs of graphs, converts values of runs to
parts of tasks, and finds tasks.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid5

import orjson
from a2a.helpers import get_data_parts, get_text_parts, new_data_part, new_text_part
from a2a.server.context import ServerCallContext
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.types import Artifact, ListTasksRequest, Message, Part, Role, Task, TaskState, TaskStatus
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError, TaskNotFoundError
from fastapi import HTTPException, Request

from agentrt.serving.langgraph._compat import INTERRUPT
from agentrt.serving.langgraph.auth.hooks import Requester
from agentrt.serving.langgraph.database.interrupts import interrupts_in, is_answer_map
from agentrt.serving.langgraph.database.runs import A2A
from agentrt.serving.langgraph.database.tables import ACTIVE
from agentrt.serving.langgraph.tenant_state import TenantState

_ROLES = {"human": Role.ROLE_USER, "ai": Role.ROLE_AGENT}
_ERROR = "__error__"
_INPUT_REQUIRED, _FAILED = TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_FAILED
_STATES = {
    "pending": TaskState.TASK_STATE_SUBMITTED,
    "running": TaskState.TASK_STATE_WORKING,
    "success": TaskState.TASK_STATE_COMPLETED,
    "interrupted": TaskState.TASK_STATE_CANCELED,
}
_MOST_MESSAGES = 1000
"""Maximum number of messages of a task's history; older messages are left out."""
_MOST_DATA = 64 * 1024
"""Maximum size of a JSON value, in bytes, that becomes a data part. A larger value
becomes a text.
"""
_MOST_LEVELS = 30
"""Maximum nesting of a JSON value that becomes a data part. Protobuf, which clients use, too,
allows 100 messages in each other. A list in JSON takes two of these, an object takes three, and the
task around the value takes some more.
"""
_EXACT = 2**53
"""The bound up to which a float represents every integer exactly."""
DONE = TaskState.TASK_STATE_COMPLETED
ENDED = (DONE, TaskState.TASK_STATE_CANCELED, _FAILED)


# -- messages of clients ------------------------------------------------------------------


def input_of(message: Message) -> dict[str, Any]:
    """Return the input for a run: texts and files become a message in ``messages``, and the objects
    of data parts give the other keys.

    Raises `ContentTypeNotSupportedError` for a data part that is not an object.
    """
    values: dict[str, Any] = {}
    for data in map(_narrowed, get_data_parts(message.parts)):
        if not isinstance(data, dict):
            raise ContentTypeNotSupportedError("a data part must be a JSON object")
        values.update(data)
    texts = get_text_parts(message.parts)
    blocks = [_block(part) for part in message.parts if not part.HasField("data")]
    if blocks:
        content = "\n".join(texts) if len(texts) == len(blocks) else blocks
        role = "assistant" if message.role == Role.ROLE_AGENT else "user"
        values["messages"] = [{"role": role, "content": content, "id": message.message_id}]
    return values


def answer_in(message: Message) -> Any:
    """Return the answer in a message: ``resume`` in the first data part, that whole part if there
    is no ``resume``, or the message's text if there is no data part.
    """
    for data in map(_narrowed, get_data_parts(message.parts)):
        return data["resume"] if isinstance(data, dict) and "resume" in data else data
    return "\n".join(get_text_parts(message.parts))


def answered_by(resume: Any, questions: Sequence[str]) -> Sequence[str]:
    """Return the ids of the questions that ``resume`` answers; ``questions`` are the ids of all
    open questions. The run with the answers must claim them, so that it is refused if one of them
    is not open.

    Raises `InvalidParamsError` if several questions are open and ``resume`` does not say which
    question it answers.
    """
    if is_answer_map(resume) and resume:
        return list(resume)
    if len(questions) > 1:
        ids = ", ".join(questions)
        raise InvalidParamsError(
            f"the task has {len(questions)} open questions; send resume as an object that "
            f"has the answers under the ids {ids}"
        )
    return questions


def _block(part: Part) -> dict[str, Any]:
    if part.HasField("text"):
        return {"type": "text", "text": part.text}
    kind = part.media_type.partition("/")[0]
    block = {"type": kind if kind in ("image", "audio", "video") else "file"}
    if part.HasField("raw"):
        block["base64"] = base64.b64encode(part.raw).decode()
    else:
        block["url"] = part.url
    return {**block, "mime_type": part.media_type} if part.media_type else block


def _narrowed(value: Any) -> Any:
    """Restore the integers of JSON that the protocol's types have turned into floats."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    if isinstance(value, dict):
        return {key: _narrowed(inner) for key, inner in value.items()}
    return [_narrowed(item) for item in value] if isinstance(value, list) else value


# -- tasks in the form that clients get ---------------------------------------------------


def state_of(status: str, *, waits: bool) -> TaskState:
    """Return the state of a task whose last run has this status. ``waits`` says whether the task
    waits for an answer.
    """
    return _INPUT_REQUIRED if waits else _STATES.get(status, _FAILED)


def task_of(key: str, row: Mapping[str, Any], *, waits: bool, history: int | None = None) -> Task:
    """Return the task with the id ``key``, from the ``row`` of its last run.

    ``waits`` says whether the task waits for an answer. ``history`` is the maximum number of
    messages; None means the server's limit.
    """
    context, values = row["thread_id"], None
    with contextlib.suppress(orjson.JSONDecodeError, TypeError):
        values = orjson.loads(row["result"])
    known = values if isinstance(values, dict) else {}
    state = state_of(row["status"], waits=waits)
    most = _MOST_MESSAGES if history is None else min(history, _MOST_MESSAGES)
    messages = list(_messages(known, key, context))[-most:] if most else []
    task = Task(
        id=key,
        context_id=context,
        status=TaskStatus(state=state, timestamp=row["updated_at"]),
        history=messages,
    )
    if about := _about(state, known):
        task.status.message.CopyFrom(
            Message(
                message_id=f"{row['run_id']}-status",
                role=Role.ROLE_AGENT,
                parts=about,
                task_id=key,
                context_id=context,
            )
        )
    if state == DONE:
        task.artifacts.append(artifact_of(row["run_id"], _output(known or values)))
    return task


def artifact_of(run: str, parts: Iterable[Part]) -> Artifact:
    """Return the artifact that carries a run's result, or a piece of that result."""
    description = "the agent's last message, or all values of its graph"
    key = str(uuid5(UUID(run), "artifact"))
    return Artifact(
        artifact_id=key, name="Assistant Response", description=description, parts=parts
    )


def parts_of(content: Any) -> list[Part]:
    """Convert the content of a message to parts."""
    blocks = content if isinstance(content, list) else [content]
    return [_part(block) for block in blocks if block not in ("", None)]


def piece_of(event: str, data: bytes) -> list[Part]:
    """Return the piece of the agent's message that an event of the run's stream carries, as parts.
    The list is empty if the event carries no such piece.
    """
    if event != "messages":
        return []
    chunk = orjson.loads(data)[0]
    if chunk.get("type") not in ("ai", "AIMessageChunk"):
        return []
    return parts_of(chunk.get("content"))


def _about(state: TaskState, values: Mapping[str, Any]) -> list[Part]:
    """Return the parts of the message in a task's status: the open questions if the task waits, the
    error if the task has failed, and else an empty list.
    """
    if state == _INPUT_REQUIRED:
        return [_part(interrupt.get("value")) for interrupt in values.get(INTERRUPT, ())]
    if state == _FAILED and isinstance(error := values.get(_ERROR), dict):
        return [new_text_part(str(error.get("message") or error.get("error")))]
    return []


def _output(values: Any) -> list[Part]:
    """Return the parts of the agent's last message with content, or of all values if there is no
    such message.
    """
    if isinstance(values, dict):
        for message in reversed(_listed(values)):
            if message.get("type") == "ai" and (parts := parts_of(message.get("content"))):
                return parts
    return [_part(values)]


def _messages(values: Mapping[str, Any], task: str, context: str) -> Iterable[Message]:
    for number, message in enumerate(_listed(values)[-_MOST_MESSAGES:]):
        role, parts = _ROLES.get(message.get("type", "")), parts_of(message.get("content"))
        if role is not None and parts:
            key = str(message.get("id") or number)
            yield Message(message_id=key, role=role, parts=parts, task_id=task, context_id=context)


def _listed(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = values.get("messages")
    return [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []


def _part(value: Any) -> Part:
    if isinstance(value, dict) and value.get("type") == "text":
        value = value.get("text", "")
    if isinstance(value, str):
        return new_text_part(value)
    encoded = orjson.dumps(value)
    if len(encoded) > _MOST_DATA or not _fits_data(value):
        return new_text_part(encoded.decode(), media_type="application/json")
    return new_data_part(value)


def _fits_data(value: Any, levels: int = _MOST_LEVELS) -> bool:
    """Return whether a data part can carry a JSON value without changing it."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return levels > 0 and all(_fits_data(item, levels - 1) for item in inner)
    return not isinstance(value, int) or abs(value) <= _EXACT


# -- finding tasks ------------------------------------------------------------------------


_MOST_RUNS = 1000
"""Maximum number of a thread's newest runs that are searched for tasks."""


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task: its id, the row of its last run, and the ids of that run's open questions."""

    key: str
    row: Mapping[str, Any]
    questions: Sequence[str]

    @property
    def state(self) -> TaskState:
        """The task's state."""
        return state_of(self.row["status"], waits=bool(self.questions))

    def as_task(self, history: int | None = None) -> Task:
        """Return the task in the form that clients get, with at most ``history`` messages."""
        return task_of(self.key, self.row, waits=bool(self.questions), history=history)


class CallerContext(ServerCallContextBuilder):
    """Builds the SDK's context of a request, with the caller and the assistant."""

    def build(self, request: Request) -> ServerCallContext:
        state = {
            "headers": dict(request.headers),
            "caller": request.state.caller,
            "assistant_id": request.path_params["assistant_id"],
        }
        return ServerCallContext(state=state)


class KnownTasks:
    """Finds tasks that the caller of a request may see."""

    def __init__(self, state: TenantState) -> None:
        self._state = state

    async def find(self, context: ServerCallContext, key: str) -> TaskRecord:
        """Return the task with the id ``key``. Raises `TaskNotFoundError` if the task does not
        exist, belongs to another assistant, or is hidden from the caller.
        """
        caller, (first, _, second) = caller_of(context), key.partition(":")
        try:
            thread, run = UUID(first), UUID(second)
            await self._state.thread(caller, thread, "read")
            first_run = await self._state.runs.get(caller.tenant, thread, run)
            assistant = await self._assistant(context)
        except (ValueError, HTTPException) as error:
            if isinstance(error, HTTPException) and error.status_code != 404:
                raise
            raise TaskNotFoundError(f"task {key[:100]!r} not found") from error
        if first_run.assistant_id != assistant:
            raise TaskNotFoundError(
                f"task {key[:100]!r} belongs to another assistant; use that assistant's address"
            )
        key = f"{thread}:{run}"
        row = await self._state.runs.last_of_task(str(thread), key, str(run))
        if row is None:
            raise TaskNotFoundError(f"task {key!r} not found")
        is_open = row.status == "success" and row.is_newest
        interrupts = interrupts_in(row.interrupts) if is_open else ()
        fields = {**row._mapping, "updated_at": datetime.fromtimestamp(row.updated_at, UTC)}
        return TaskRecord(key, fields, [interrupt["id"] for interrupt in interrupts])

    async def active_runs(self, task: TaskRecord) -> list[UUID]:
        """Return the ids of a task's unfinished runs."""
        thread = str(task.row["thread_id"])
        return [
            UUID(run.run_id)
            for run in await self._state.runs.statuses(thread, _MOST_RUNS)
            if run.status in ACTIVE and task.key in (_task_in(run), f"{thread}:{run.run_id}")
        ]

    async def listed(
        self, context: ServerCallContext, thread: UUID, wanted: ListTasksRequest
    ) -> list[str]:
        """Return the ids of a thread's tasks that belong to the request's assistant and meet the
        conditions ``wanted``, the newest first. Only the thread's newest `_MOST_RUNS` runs are
        searched.
        """
        caller = caller_of(context)
        of_thread = await self._state.thread(caller, thread, "read")
        assistant = await self._assistant(context)
        runs = await self._state.runs.statuses(str(thread), _MOST_RUNS)
        asks = bool(of_thread.interrupts) and runs[0].status == "success" if runs else False
        last: dict[str, Any] = {}
        for run in runs:
            last.setdefault(_task_in(run) or f"{thread}:{run.run_id}", run)
        since = wanted.status_timestamp_after.ToDatetime(UTC)
        keys = []
        for run in runs:
            key = f"{thread}:{run.run_id}"
            if run.assistant_id != assistant or _task_in(run) is not None:
                continue
            state = state_of(last[key].status, waits=asks and last[key] is runs[0])
            at = datetime.fromtimestamp(last[key].updated_at, UTC)
            if wanted.status in (0, state) and at >= since:
                keys.append(key)
        return keys

    async def _assistant(self, context: ServerCallContext) -> str:
        name = context.state["assistant_id"]
        assistant = await self._state.assistants.find(caller_of(context).tenant, name)
        return str(assistant["assistant_id"])


def caller_of(context: ServerCallContext) -> Requester:
    """Return the caller of a request."""
    caller: Requester = context.state["caller"]
    return caller


def _task_in(run: Any) -> str | None:
    """Return the id of the task that a run continues, or None."""
    about = run.metadata.get(A2A)
    return about.get("task_id") if isinstance(about, dict) else None
