"""Messages of the Agent2Agent protocol as a graph's input, a run's values as a task's parts, and
which tasks there are.
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
from agentrt.serving.langgraph.auth.hooks import Caller
from agentrt.serving.langgraph.database.interrupts import interrupts_in, is_answer_map
from agentrt.serving.langgraph.tenant_state import TenantState

_ROLES = {"human": Role.ROLE_USER, "ai": Role.ROLE_AGENT}
_ERROR = "__error__"
_WAITS, _FAILED = TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_FAILED
_STATES = {
    "pending": TaskState.TASK_STATE_SUBMITTED,
    "running": TaskState.TASK_STATE_WORKING,
    "success": TaskState.TASK_STATE_COMPLETED,
    "interrupted": TaskState.TASK_STATE_CANCELED,
}
_MOST_MESSAGES = 1000
"""Of a task's history; the last ones."""
_MOST_DATA = 64 * 1024
"""Bytes of JSON that become the protocol's types, a value at a time; more stays a text."""
_EXACT = 2**53
"""Up to here a float is the integer that was sent."""
DONE = TaskState.TASK_STATE_COMPLETED
ENDED = (DONE, TaskState.TASK_STATE_CANCELED, _FAILED)


# -- what a client sends ------------------------------------------------------------------


def input_of(message: Message) -> dict[str, Any]:
    """What a run gets: texts and files as one of its ``messages``, objects as its other values."""
    values: dict[str, Any] = {}
    for data in map(_narrowed, get_data_parts(message.parts)):
        if not isinstance(data, dict):
            raise ContentTypeNotSupportedError("a data part is a JSON object")
        values.update(data)
    texts = get_text_parts(message.parts)
    blocks = [_block(part) for part in message.parts if not part.HasField("data")]
    if blocks:
        content = "\n".join(texts) if len(texts) == len(blocks) else blocks
        role = "assistant" if message.role == Role.ROLE_AGENT else "user"
        values["messages"] = [{"role": role, "content": content, "id": message.message_id}]
    return values


def answer_in(message: Message) -> Any:
    """The answer to a question: an object's ``resume``, else the object, else the text."""
    for data in map(_narrowed, get_data_parts(message.parts)):
        return data["resume"] if isinstance(data, dict) and "resume" in data else data
    return "\n".join(get_text_parts(message.parts))


def question_of(resume: Any, asked: Sequence[str]) -> str:
    """The id of the question that is answered. A second answer to it is refused."""
    if is_answer_map(resume) and resume:
        return str(next(iter(resume)))
    if len(asked) > 1:
        wanted = ", ".join(asked)
        raise InvalidParamsError(f"{len(asked)} are asked: resume is an object by the ids {wanted}")
    return asked[0]


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
    """JSON as it was: the protocol's types know no integers."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    if isinstance(value, dict):
        return {key: _narrowed(inner) for key, inner in value.items()}
    return [_narrowed(one) for one in value] if isinstance(value, list) else value


# -- what a client gets -------------------------------------------------------------------


def state_of(status: str, *, waits: bool) -> TaskState:
    """The state of a task whose last run has this status. ``waits``: for an answer."""
    return _WAITS if waits else _STATES.get(status, _FAILED)


def task_of(key: str, row: Mapping[str, Any], *, waits: bool, history: int | None = None) -> Task:
    """The task of that id, as its last run (a row) left it."""
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
    """What a run gives, or a piece of it."""
    what = "what the agent said, or all its values"
    key = str(uuid5(UUID(run), "artifact"))
    return Artifact(artifact_id=key, name="Assistant Response", description=what, parts=parts)


def parts_of(content: Any) -> list[Part]:
    """The content of a message."""
    blocks = content if isinstance(content, list) else [content]
    return [_part(block) for block in blocks if block not in ("", None)]


def piece_of(event: str, data: bytes) -> list[Part]:
    """The piece of an agent's message that an event of its run's stream is."""
    if event != "messages":
        return []
    chunk = orjson.loads(data)[0]
    if chunk.get("type") not in ("ai", "AIMessageChunk"):
        return []
    return parts_of(chunk.get("content"))


def _about(state: TaskState, values: Mapping[str, Any]) -> list[Part]:
    """What a state says: the questions that are asked, what went wrong."""
    if state == _WAITS:
        return [_part(one.get("value")) for one in values.get(INTERRUPT, ())]
    if state == _FAILED and isinstance(error := values.get(_ERROR), dict):
        return [new_text_part(str(error.get("message") or error.get("error")))]
    return []


def _output(values: Any) -> list[Part]:
    """The agent's last message; of a graph without messages, all that it has."""
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
    listed = values.get("messages")
    found = listed if isinstance(listed, list) else []
    return [one for one in found if isinstance(one, dict)]


def _part(value: Any) -> Part:
    if isinstance(value, dict) and value.get("type") == "text":
        value = value.get("text", "")
    if isinstance(value, str):
        return new_text_part(value)
    encoded = orjson.dumps(value)
    if len(encoded) > _MOST_DATA:
        return new_text_part(encoded.decode(), media_type="application/json")
    return new_data_part(value)


# -- which tasks there are: the runs of a thread, by their tasks ---------------------------


_MOST_RUNS = 1000
"""The last so many runs of a thread are listed, as tasks."""


@dataclass(frozen=True, slots=True)
class Found:
    """A task: its id, its last run, and the ids of the questions that this asks."""

    key: str
    row: Mapping[str, Any]
    asked: Sequence[str]

    @property
    def state(self) -> TaskState:
        """How it stands."""
        return state_of(self.row["status"], waits=bool(self.asked))

    def as_task(self, history: int | None = None) -> Task:
        """As clients get it, with the last so many messages."""
        return task_of(self.key, self.row, waits=bool(self.asked), history=history)


class CallerContext(ServerCallContextBuilder):
    """Tells of a request who asks, and whom."""

    def build(self, request: Request) -> ServerCallContext:
        state = {
            "headers": dict(request.headers),
            "caller": request.state.caller,
            "assistant_id": request.path_params["assistant_id"],
        }
        return ServerCallContext(state=state)


class KnownTasks:
    """Finds tasks, with the rights of their caller."""

    def __init__(self, state: TenantState) -> None:
        self._state = state

    async def find(self, context: ServerCallContext, key: str) -> Found:
        """The task of that id. Raises `TaskNotFoundError`."""
        caller, (first, _, second) = caller_of(context), key.partition(":")
        try:
            thread, run = UUID(first), UUID(second)
            of_thread = await self._state.thread(caller, thread, "read")
            row = await self._state.runs.get(caller.tenant, thread, run)
            assistant = await self._assistant(context)
        except (ValueError, HTTPException) as error:
            if isinstance(error, HTTPException) and error.status_code != 404:
                raise
            raise TaskNotFoundError(f"task {key[:100]!r} not found") from error
        if row.assistant_id != assistant:
            raise TaskNotFoundError(f"task {key[:100]!r} is another assistant's")
        key, about = f"{thread}:{run}", {"a2a": {"task_id": f"{thread}:{run}"}}
        if (later := await self._state.runs.last_about(str(thread), about)) is not None:
            row = await self._state.runs.get(caller.tenant, thread, UUID(later))
        newest = await self._state.runs.last_of(str(thread))
        is_open = row.status == "success" and newest is not None and newest.run_id == row.run_id
        asked = [one["id"] for one in interrupts_in(of_thread.interrupts)] if is_open else []
        known = {**row._mapping, "updated_at": datetime.fromtimestamp(row.updated_at, UTC)}
        return Found(key, known, asked)

    async def listed(
        self, context: ServerCallContext, thread: UUID, wanted: ListTasksRequest
    ) -> list[str]:
        """The ids of a thread's tasks of this assistant, the last one first."""
        caller = caller_of(context)
        of_thread = await self._state.thread(caller, thread, "read")
        assistant = await self._assistant(context)
        runs = await self._state.runs.statuses(str(thread), _MOST_RUNS)
        asks = bool(of_thread.interrupts) and runs[0].status == "success" if runs else False
        last: dict[str, Any] = {}
        for one in runs:
            last.setdefault(_task_in(one) or f"{thread}:{one.run_id}", one)
        since = wanted.status_timestamp_after.ToDatetime(UTC)
        found = []
        for one in runs:
            key = f"{thread}:{one.run_id}"
            if one.assistant_id != assistant or _task_in(one) is not None:
                continue
            state = state_of(last[key].status, waits=asks and last[key] is runs[0])
            at = datetime.fromtimestamp(last[key].updated_at, UTC)
            if wanted.status in (0, state) and at >= since:
                found.append(key)
        return found

    async def _assistant(self, context: ServerCallContext) -> str:
        name = context.state["assistant_id"]
        found = await self._state.assistants.find(caller_of(context).tenant, name)
        return str(found["assistant_id"])


def caller_of(context: ServerCallContext) -> Caller:
    """Who asks."""
    caller: Caller = context.state["caller"]
    return caller


def _task_in(run: Any) -> str | None:
    """The task that a run goes on with."""
    about = run.metadata.get("a2a")
    return about.get("task_id") if isinstance(about, dict) else None
