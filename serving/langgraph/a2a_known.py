"""Which tasks of the Agent2Agent protocol (A2A) there are: the runs of a thread, by their tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from a2a.server.context import ServerCallContext
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.types import ListTasksRequest, Task, TaskState
from a2a.utils.errors import TaskNotFoundError
from fastapi import HTTPException, Request

from agentrt.serving.langgraph import a2a_values as values
from agentrt.serving.langgraph.auth import Caller
from agentrt.serving.langgraph.interrupts import interrupts_in
from agentrt.serving.langgraph.tenant_state import TenantState

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
        return values.state_of(self.row["status"], waits=bool(self.asked))

    def as_task(self, history: int | None = None) -> Task:
        """As clients get it, with the last so many messages."""
        return values.task_of(self.key, self.row, waits=bool(self.asked), history=history)


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
            state = values.state_of(last[key].status, waits=asks and last[key] is runs[0])
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
