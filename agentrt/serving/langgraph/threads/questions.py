"""The open interrupts of threads as questions: an answer starts the run that resumes the thread."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from fastapi import HTTPException
from langgraph_sdk import Auth

from agentrt.errors import QuestionClosedError, ToolArgumentsError
from agentrt.interrupts.answers import free_form
from agentrt.serving.langgraph.auth.hooks import Caller, caller_of
from agentrt.serving.langgraph.bodies import Command, RunBody
from agentrt.serving.langgraph.database.filters import visible
from agentrt.serving.langgraph.database.interrupts import (
    EXPIRED,
    deadline_of,
    interrupts_in,
    is_open,
)
from agentrt.serving.langgraph.database.tables import ACTIVE, runs, threads
from agentrt.serving.langgraph.responses import check_json
from agentrt.serving.langgraph.runs.starts import StartRoutes
from agentrt.serving.langgraph.tenant_state import TenantState
from agentrt.serving.questions.server_questions import QuestionFilter as Wanted
from agentrt.serving.questions.server_questions import QuestionView as Asked
from agentrt.serving.questions.server_questions import Viewer
from agentrt.serving.tenants import BusyError

_ID = re.compile("([0-9a-f]{32})-([0-9a-f]{32})")
_COLUMNS = (
    threads.c.thread_id,
    threads.c.tenant,
    threads.c.metadata,
    threads.c.interrupts,
    threads.c.state_updated_at,
)
_INTERRUPTS = sa.cast(threads.c.interrupts, sa.Text)
_RESTS = ("interrupted", "busy", "error")
"""The statuses of threads that may have open interrupts."""
_CONFLICT = 409


class ThreadQuestions:
    """A `QuestionSource`: what the threads in the database ask.

    A question's id has the thread's and the interrupt's, since copies of a thread have the same
    interrupts. Nothing is kept in memory: a server that starts finds all questions again.
    """

    def __init__(self, state: TenantState, starts: StartRoutes, auth: Auth | None) -> None:
        self._state = state
        self._database = state.storage.database
        self._starts = starts
        self._auth = auth

    async def open(self, viewer: Viewer, wanted: Wanted) -> list[Asked]:
        if wanted.program is not None:
            return []
        try:
            caller = await self._caller(viewer, viewer.tenant or "")
            conditions = await self._visible(viewer, caller, "search", wanted.thread, wanted.limit)
        except HTTPException as error:
            if error.status_code >= 500:
                raise
            return []  # whom the hooks refuse may still see the questions of programs
        conditions += [threads.c.status.in_(_RESTS), _INTERRUPTS != "{}"]
        found = await self._found(conditions, wanted.limit)
        return [one for one in found if one.state == "open"][: wanted.limit]

    async def find(self, viewer: Viewer, question_id: str) -> Asked | None:
        match = _ID.fullmatch(question_id)
        if match is None:
            return None
        thread, interrupt_id = str(UUID(match[1])), match[2]
        caller = await self._caller(viewer, viewer.tenant or "")
        conditions = await self._visible(viewer, caller, "read", thread)
        key = f"{UUID(thread).hex}-{interrupt_id}"
        for one in await self._found(conditions):
            if one.id == key:
                return one
        row = await self._database.first(sa.select(*_COLUMNS).where(*conditions))
        if row is None:
            return None
        return replace(self._asked(row, {"id": interrupt_id, "value": ""}, ()), state="closed")

    async def answer(self, viewer: Viewer, asked: Asked, value: Any) -> Mapping[str, Any]:
        asked.form.accept(value)
        try:
            check_json(value)
        except ValueError as error:
            raise ToolArgumentsError(f"the answer cannot be stored: {error}") from error
        run = await self._resume(asked, value, await self._caller(viewer, asked.tenant))
        return {"thread": asked.thread, "run": run}

    async def expire(self) -> None:
        """Go on without an answer where a program's question has a time, and that is over. The
        deadlines of the others are noted.
        """
        deadlines = self._state.deadlines
        deadlines.forget()
        timed = _INTERRUPTS.like('%"expires_at"%')
        for asked in await self._found([~threads.c.temporary, threads.c.status.in_(_RESTS), timed]):
            if asked.state == "open":
                until = asked.expires_at
                deadlines.note(None if until is None else self._database.clock.at(until))
            elif asked.state == "expired":
                with suppress(HTTPException, BusyError, QuestionClosedError):
                    await self._resume(asked, EXPIRED, None)

    async def _found(
        self, conditions: Sequence[sa.ColumnElement[bool]], most: int | None = None
    ) -> list[Asked]:
        """The questions of at most so many threads, of the one that changed last first."""
        query = sa.select(*_COLUMNS).where(*conditions)
        query = query.order_by(threads.c.state_updated_at.desc()).limit(most)
        rows = await self._database.rows(query)
        live = (
            runs.c.thread_id.in_([row.thread_id for row in rows]),
            runs.c.status.in_(ACTIVE),
        )
        active: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
        of_runs = sa.select(runs.c.thread_id, runs.c.kwargs).where(*live)
        for run in await self._database.rows(of_runs):
            active[run.thread_id].append(json.loads(run.kwargs))
        return [
            self._asked(row, interrupt, active[row.thread_id])
            for row in rows
            for interrupt in interrupts_in(row.interrupts)
        ]

    async def _resume(self, asked: Asked, value: Any, caller: Caller | None) -> str:
        """Start the run that goes on with an answer: of the assistant, and with the config and the
        context, of the thread's last run; without a caller, in the name of that one's user.
        """
        assert asked.thread is not None
        interrupt_id = asked.id.partition("-")[2]
        last = await self._state.runs.last_of(asked.thread)
        if last is None:
            raise QuestionClosedError(f"thread {asked.thread} has no run that could be resumed")
        body = last.followed_by(RunBody, command=Command(resume={interrupt_id: value}))
        if caller is None:
            caller = Caller.of_config(asked.tenant, last.kwargs.get("user"), None)
        try:
            run, _ = await self._starts.start(caller, UUID(asked.thread), body, interrupt_id)
        except HTTPException as error:
            if error.status_code != _CONFLICT:
                raise
            raise QuestionClosedError(str(error.detail)) from error
        return str(run.run_id)

    def _asked(
        self,
        row: sa.Row[Any],
        interrupt: Mapping[str, Any],
        active: Sequence[Mapping[str, Any]],
    ) -> Asked:
        """An interrupt of a thread as people see it. ``active`` has the kwargs of its live runs."""
        value, graph = interrupt["value"], str(row.metadata.get("graph_id", ""))
        given = value if isinstance(value, dict) else {}
        text = value if isinstance(value, str) else given.get("question")
        until = deadline_of(interrupt) if self._state.graphs.is_native(graph) else None
        state = "open" if is_open(interrupt["id"], row.interrupts, active) else "answered"
        clock = self._database.clock
        if state == "open" and until is not None and clock.now() >= until:
            state = "expired"
        return Asked(
            f"{UUID(row.thread_id).hex}-{interrupt['id']}",
            text if isinstance(text, str) else json.dumps(value, ensure_ascii=False),
            graph,
            row.tenant,
            free_form(interrupt.get("response_schema") or given.get("schema")),
            thread=row.thread_id,
            value=value,
            state=state,
            created_at=row.state_updated_at,
            expires_at=None if until is None else clock.time_of_day(until),
        )

    async def _caller(self, viewer: Viewer, tenant: str) -> Caller:
        if viewer.request is None:
            return Caller(tenant, None, self._auth)
        return await caller_of(viewer.request, self._auth, tenant)

    async def _visible(
        self, viewer: Viewer, caller: Caller, action: str, thread: str | None, limit: int = 1
    ) -> list[sa.ColumnElement[bool]]:
        """The conditions for threads that may be seen. Raises what the hooks raise."""
        if thread and action == "read":
            about: dict[str, Any] = {"thread_id": UUID(thread)}
        else:
            about = {"metadata": {}, "values": {}, "status": None, "limit": limit, "offset": 0}
        only = await caller.authorize("threads", action, about)
        c = threads.c
        wanted = {c.tenant: viewer.tenant, c.thread_id: thread}
        conditions = [column == value for column, value in wanted.items() if value is not None]
        return [~c.temporary, *conditions, *visible(c.metadata, only)]
