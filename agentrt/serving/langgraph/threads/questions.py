"""The open interrupts of threads as questions. An answer starts a run that resumes the thread."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from fastapi import HTTPException
from langgraph_sdk import Auth

from agentrt.errors import QuestionClosedError, ToolArgumentsError
from agentrt.interrupts.answers import free_form
from agentrt.serving.langgraph.auth.hooks import Requester, caller_of
from agentrt.serving.langgraph.bodies import Command, RunBody
from agentrt.serving.langgraph.database.filters import visible
from agentrt.serving.langgraph.database.interrupts import (
    EXPIRED,
    deadline_of,
    interrupts_in,
    is_answer_map,
    is_open,
)
from agentrt.serving.langgraph.database.runs import body_after
from agentrt.serving.langgraph.database.tables import ACTIVE, runs, threads
from agentrt.serving.langgraph.responses import check_json
from agentrt.serving.langgraph.runs.starts import StartRoutes
from agentrt.serving.langgraph.tenant_state import TenantState
from agentrt.serving.questions.server_questions import QuestionFilter, QuestionView, Viewer
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
_ASKING_STATUSES = ("interrupted", "busy", "error")
"""The statuses of threads that may have open interrupts."""
_CONFLICT = 409
_PAGE = 100
"""Number of threads that a query reads to find open questions."""


class ThreadQuestions:
    """A `QuestionSource` of the questions that the threads of the database ask.

    A question's id consists of the ids of the thread and the interrupt, because a copy of a thread
    has the same interrupts. Questions are read from the database each time, so they survive a
    restart. Only the nearest deadline is kept in memory.
    """

    def __init__(self, state: TenantState, starts: StartRoutes, auth: Auth | None) -> None:
        self._state = state
        self._database = state.storage.database
        self._starts = starts
        self._auth = auth

    async def open(self, viewer: Viewer, wanted: QuestionFilter) -> list[QuestionView]:
        if wanted.run is not None:
            return []
        try:
            caller = await self._caller(viewer, viewer.tenant or "")
            conditions = await self._visible(viewer, caller, "search", wanted.thread, wanted.limit)
        except HTTPException as error:
            if error.status_code >= 500:
                raise
            return []  # a user without access to threads may still see the questions of programs
        conditions += [threads.c.status.in_(_ASKING_STATUSES), _INTERRUPTS != "{}"]
        # By id, because a thread that begins to ask between two pages moves the others on.
        questions: dict[str, QuestionView] = {}
        for offset in count(0, _PAGE):  # not each thread of a page has an open question
            rows = await self._rows(conditions, offset, _PAGE)
            views = await self._questions(rows)
            questions |= {view.id: view for view in views if view.state == "open"}
            if len(questions) >= wanted.limit or len(rows) < _PAGE:
                break
        return [*questions.values()][: wanted.limit]

    async def find(self, viewer: Viewer, question_id: str) -> QuestionView | None:
        match = _ID.fullmatch(question_id)
        if match is None:
            return None
        thread, interrupt_id = str(UUID(match[1])), match[2]
        caller = await self._caller(viewer, viewer.tenant or "")
        conditions = await self._visible(viewer, caller, "read", thread)
        key = f"{UUID(thread).hex}-{interrupt_id}"
        rows = await self._rows(conditions)
        for question in await self._questions(rows):
            if question.id == key:
                return question
        if not rows:
            return None
        closed = self._question(rows[0], {"id": interrupt_id, "value": ""}, ())
        return replace(closed, state=await self._end_of(thread, interrupt_id))

    async def answer(self, viewer: Viewer, question: QuestionView, value: Any) -> Mapping[str, Any]:
        question.form.accept(value)
        try:
            check_json(value)
        except ValueError as error:
            raise ToolArgumentsError(f"the answer cannot be stored: {error}") from error
        run = await self._resume(question, value, await self._caller(viewer, question.tenant))
        return {"thread": question.thread, "run": run}

    async def expire(self) -> None:
        """Resume the threads whose questions have expired, with `EXPIRED` in place of an answer,
        and note the deadlines of the other questions.
        """
        deadlines = self._state.deadlines
        deadlines.forget()
        timed = _INTERRUPTS.like('%"expires_at"%')
        conditions = [~threads.c.temporary, threads.c.status.in_(_ASKING_STATUSES), timed]
        for question in await self._questions(await self._rows(conditions), unanswered=True):
            if question.state == "open":
                expires_at = question.expires_at
                clock = self._database.clock
                deadlines.note(None if expires_at is None else clock.at(expires_at))
            elif question.state == "expired":
                with suppress(HTTPException, BusyError, QuestionClosedError):
                    await self._resume(question, EXPIRED, None)

    async def _rows(
        self,
        conditions: Sequence[sa.ColumnElement[bool]],
        offset: int = 0,
        most: int | None = None,
    ) -> Sequence[sa.Row[Any]]:
        """Return the threads that meet ``conditions``, at most ``most``, after the first ``offset``
        threads. The thread that changed last comes first.
        """
        query = sa.select(*_COLUMNS).where(*conditions)
        query = query.order_by(threads.c.state_updated_at.desc(), threads.c.thread_id)
        return await self._database.rows(query.limit(most).offset(offset))

    async def _questions(
        self, rows: Sequence[sa.Row[Any]], *, unanswered: bool = False
    ) -> list[QuestionView]:
        """Return the questions of threads, in the threads' order. With ``unanswered``, leave out
        questions that an unfinished run answers, also if it only says that they have expired.
        """
        live = (
            runs.c.thread_id.in_([row.thread_id for row in rows]),
            runs.c.status.in_(ACTIVE),
        )
        active: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
        of_runs = sa.select(runs.c.thread_id, runs.c.kwargs).where(*live)
        for run in await self._database.rows(of_runs):
            active[run.thread_id].append(json.loads(run.kwargs))
        return [
            self._question(row, interrupt, active[row.thread_id])
            for row in rows
            for interrupt in interrupts_in(row.interrupts)
            if not unanswered or is_open(interrupt["id"], row.interrupts, active[row.thread_id])
        ]

    async def _end_of(self, thread: str, interrupt_id: str) -> str:
        """Return the state of a question that the thread does not ask any more: answered or
        expired if a run of the thread brought its answer by id, else closed.
        """
        brought = sa.select(runs.c.kwargs).where(
            runs.c.thread_id == thread, runs.c.kwargs.contains(interrupt_id, autoescape=True)
        )
        kwargs = [json.loads(run.kwargs) for run in await self._database.rows(brought)]
        return _state_by_answer(kwargs, interrupt_id) or "closed"

    async def _resume(self, question: QuestionView, value: Any, caller: Requester | None) -> str:
        """Start a run that resumes a thread with an answer, and return the run's id.

        The new run has the assistant, the config and the context of the thread's last run. If the
        thread has no run, the new run has the default assistant of the thread's graph. Without a
        caller, the new run also has the last run's user. Raises `QuestionClosedError` if the
        question is closed.
        """
        assert question.thread is not None
        interrupt_id = question.id.partition("-")[2]
        last = await self._state.runs.last_of(question.thread)
        command = Command(resume={interrupt_id: value})
        body = body_after(last, {"graph_id": question.type}, RunBody, command=command)
        if caller is None:
            user = None if last is None else last.kwargs.get("user")
            caller = Requester.of_config(question.tenant, user, None)
        try:
            thread = UUID(question.thread)
            run, _ = await self._starts.start(caller, thread, body, [interrupt_id])
        except HTTPException as error:
            if error.status_code != _CONFLICT:
                raise
            raise QuestionClosedError(str(error.detail)) from error
        return str(run.run_id)

    def _question(
        self,
        row: sa.Row[Any],
        interrupt: Mapping[str, Any],
        active: Sequence[Mapping[str, Any]],
    ) -> QuestionView:
        """Return an interrupt as a question. ``active`` has the kwargs of the thread's unfinished
        runs.
        """
        value, graph = interrupt["value"], str(row.metadata.get("graph_id", ""))
        fields = value if isinstance(value, dict) else {}
        text = value if isinstance(value, str) else fields.get("question")
        deadline = deadline_of(interrupt) if self._state.graphs.is_native(graph) else None
        state = "open"
        if not is_open(interrupt["id"], row.interrupts, active):
            state = _state_by_answer(active, interrupt["id"]) or "answered"
        clock = self._database.clock
        if state == "open" and deadline is not None and clock.now() >= deadline:
            state = "expired"
        return QuestionView(
            f"{UUID(row.thread_id).hex}-{interrupt['id']}",
            text if isinstance(text, str) else json.dumps(value, ensure_ascii=False),
            graph,
            row.tenant,
            free_form(interrupt.get("response_schema") or fields.get("schema")),
            thread=row.thread_id,
            value=value,
            state=state,
            created_at=row.state_updated_at,
            expires_at=None if deadline is None else clock.time_of_day(deadline),
        )

    async def _caller(self, viewer: Viewer, tenant: str) -> Requester:
        if viewer.request is None:
            return Requester(tenant, None, self._auth)
        return await caller_of(viewer.request, self._auth, tenant)

    async def _visible(
        self, viewer: Viewer, caller: Requester, action: str, thread: str | None, limit: int = 1
    ) -> list[sa.ColumnElement[bool]]:
        """Return the conditions for the threads that the viewer may see. Raises the
        hooks' errors.
        """
        if thread and action == "read":
            about: dict[str, Any] = {"thread_id": UUID(thread)}
        else:
            about = {"metadata": {}, "values": {}, "status": None, "limit": limit, "offset": 0}
        only = await caller.authorize("threads", action, about)
        c = threads.c
        wanted = {c.tenant: viewer.tenant, c.thread_id: thread}
        conditions = [column == value for column, value in wanted.items() if value is not None]
        return [~c.temporary, *conditions, *visible(c.metadata, only)]


def _state_by_answer(kwargs_of_runs: Iterable[Mapping[str, Any]], interrupt_id: str) -> str | None:
    """Return the state of a question that a run answered by the question's id: "expired" if its
    deadline had passed, else "answered". Return None if none of the runs did.
    """
    for kwargs in kwargs_of_runs:
        resume: Any = (kwargs.get("command") or {}).get("resume")
        if is_answer_map(resume) and interrupt_id in resume:
            return "expired" if resume[interrupt_id] == EXPIRED else "answered"
    return None
