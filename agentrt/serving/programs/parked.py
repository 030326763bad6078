"""Parked runs: runs that wait for a human or for a time, kept in the journal and not in memory."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentrt import tracking
from agentrt.errors import QuestionClosedError, text_of
from agentrt.interrupts.answers import AnswerForm
from agentrt.interrupts.questions import Question
from agentrt.journal import Journal
from agentrt.journal.codec import UnkeptError
from agentrt.journal.journal import ParkedQuestion, Waits
from agentrt.journal.schema import RecordedProgram
from agentrt.journal.sketch import text_of_question
from agentrt.runtime.run import Run
from agentrt.scheduler.table import ProgramState, last_heard
from agentrt.serving.programs.left import LeftRun, left_run
from agentrt.serving.programs.runs import ProgramRuns, ServedRun
from agentrt.serving.questions.server_questions import QuestionFilter, QuestionView, Viewer
from agentrt.serving.server import Server
from agentrt.steady import SteadyClock

_AT_ONCE = 1000
"""Maximum number of runs that one sweep resumes, to bound the memory that they take."""
_AT_A_STOP_S = 1.0
"""Seconds that a run must have waited to be parked when the server stops."""
_MOST_QUESTIONS = 1000
_LOOK_S = 0.1
_ASKS_WITHIN_S = 30.0
"""Seconds within which a program that is resumed for an answer must ask its question again."""

_log = logging.getLogger(__name__)


class Parking:
    """Parks runs that do nothing but wait, and resumes them. It is a `QuestionSource`.

    Parking a run is the same as stopping the server while the run waits: the run's code is
    cancelled, and starts again from its beginning when the run is resumed, with the recorded
    results of its calls. Until then, rows of the journal record what the run waits for.
    """

    def __init__(self, server: Server, runs: ProgramRuns, journal: Journal) -> None:
        self._server, self._runtime = server, server.runtime
        self._runs, self._journal = runs, journal
        self._waits, self._clock = Waits(journal), journal.clock
        self._programs = {program.name: program for program in server.native.values()}
        self._one_at_a_time = asyncio.Lock()
        # Questions of programs that are being resumed, until their code asks them again.
        self._reopening: dict[str, tuple[ParkedQuestion, asyncio.Future[None]]] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._next, self._parks = 0.0, False

    def open_source(self) -> None:
        """Register as a source of questions."""
        self._server.questions.sources.append(self)
        self._runtime.questions.listen(self._on_question)

    def close(self) -> None:
        """Park all runs that can be parked, so that the next server need not resume them at once.

        Then stop being a source of questions. Call this when the server stops.
        """
        self._park_all(_AT_A_STOP_S)
        self._runtime.questions.unlisten(self._on_question)
        self._server.questions.sources.remove(self)

    async def sweep(self) -> None:
        """Park runs that have waited long, and resume parked runs whose time has come. A draining
        server resumes no runs.
        """
        draining = self._server.draining
        self._park_all(_AT_A_STOP_S if draining else self._server.park_s)
        if draining or (self._clock.now() < self._next and not self._parks):
            return
        self._next, self._parks = 0.0, False  # if reading the journal fails, look again next time
        self._next = await self._bring_back()

    async def _bring_back(self) -> float:
        """Resume the parked runs whose time has come, and return when the next run is due.

        Times are seconds of the journal's clock. The result is infinity if no run waits for a time,
        and a time in the past if all runs that waited for a time were resumed, or if more than
        `_AT_ONCE` runs were due.
        """
        due_programs, left, due = [(0.0, "")], _AT_ONCE, math.inf
        while due_programs := await self._waits.first_due(
            self._programs, _AT_ONCE, due_programs[-1]
        ):
            for due, program_id in due_programs:
                if due > self._clock.now() or not left:
                    return due
                # Skip a run that was resumed already and could not begin.
                if not self._runs.has(program_id) and program_id not in self._leaving:
                    await self._revived(program_id)
                    left -= 1
        return due

    # -- out of memory -----------------------------------------------------------------

    def _park_all(self, after_s: float) -> None:
        if not self._server.park_s or self._journal.fault() is not None:
            return
        for run in [run for run in self._runtime.runs.values() if self._can_park(run, after_s)]:
            self._park(run)

    def _can_park(self, run: Run, after_s: float) -> bool:
        """Return whether a run can be parked.

        The journal must have the full content of the run, and no client may wait for its result.
        The run must have waited for ``after_s`` seconds. It may wait only for humans, and for
        timers that are due in ``after_s`` seconds or later.
        """
        record = run.record
        if record is None or not record.rests or run.parked:
            return False
        if self._runtime.now() - last_heard(run.row) < after_s or self._journal.content != "full":
            return False
        if run.options.get("waits", True) or record.listens or record.stopping():
            return False
        soonest, is_open = self._clock.now() + after_s, self._runtime.questions.open
        return all(
            (rest.due is None or rest.due > soonest)
            and (rest.question is None or rest.question in is_open)
            for rest in record.rests.values()
        ) and tracking.only_rests(run, record.rests)

    def _park(self, run: Run) -> None:
        """Park a run. Nothing is awaited between `_can_park` and here, so no answer can be lost."""
        assert run.record is not None
        assert run.task is not None
        rests, until = list(run.record.rests.values()), run.options.get("until")
        self._waits.park(run.id, run.row.tenant, rests, until)
        for rest in rests:
            if rest.question is not None:
                self._runtime.questions.set_aside(rest.question)
        run.park()
        self._parks, self._leaving[run.id] = True, run.task
        run.task.add_done_callback(lambda task: self._leaving.pop(run.id))

    # -- and back ----------------------------------------------------------------------

    async def _revived(self, program_id: str) -> ServedRun | None:
        """Resume a parked run and return it; None if the run has ended. If the run is in memory
        already, return it without resuming it.

        Raises `QuestionClosedError` if this server does not serve the run's program.
        """
        if (leaving := self._leaving.get(program_id)) is not None:
            await asyncio.wait([leaving])
        async with self._one_at_a_time:
            if (served_run := self._runs.live(program_id)) is not None:
                return served_run
            row = await self._parked(program_id)
            left = None if row is None else await self._left(row)
            if left is None:
                return None
            if (program := self._programs.get(left.type)) is None:
                raise QuestionClosedError(f"this server does not serve program {left.type!r}")
            parked_questions = await self._waits.questions(0.0, _MOST_QUESTIONS, program=program_id)
            served_run = self._runs.go_on(program, left)
            self._reopen(served_run, parked_questions)
            return served_run

    def _reopen(self, served_run: ServedRun, parked_questions: list[ParkedQuestion]) -> None:
        """Remember the questions that a resumed run will ask again."""
        assert served_run.run.task is not None
        for question in parked_questions:
            opened = asyncio.get_running_loop().create_future()
            self._reopening[question.id] = question, opened

        def ended(task: asyncio.Task[None]) -> None:
            for question in parked_questions:
                self._opened(question.id)

        served_run.run.task.add_done_callback(ended)

    async def _parked(self, program_id: str) -> RecordedProgram | None:
        is_parked = await self._waits.of(program_id)
        rows = await self._journal.programs("id = ?", (program_id,)) if is_parked else []
        return rows[0] if rows else None

    async def _left(self, row: RecordedProgram) -> LeftRun | None:
        """Return how a parked run is resumed. If the run cannot be resumed or has passed its
        deadline, end the run and return None.
        """
        try:
            left = left_run(self._journal, row)
        except UnkeptError as error:
            _log.warning("run %s cannot be resumed because of its input: %s", row.id, error)
        else:
            until = left.durable.options.get("until")
            if until is None or until > self._clock.now():
                return left
        await self._ended(row.id)
        return None

    async def _ended(self, program_id: str) -> None:
        await self._journal.abandon(program_id)
        self._server.questions.changed()

    # -- for clients -------------------------------------------------------------------

    async def describe(self, tenant: str, name: str, run_id: str) -> dict[str, Any] | None:
        """Describe a run for clients; None if the tenant has no such run that is parked."""
        row = None if self._runs.has(run_id) else await self._parked(run_id)
        if row is None or (row.tenant, row.type) != (tenant, name):
            return None
        questions = await self._waits.questions(self._clock.now(), _MOST_QUESTIONS, program=run_id)
        timed = None in await self._waits.of(run_id)
        calls, output_tokens = await self._journal.usage(run_id)
        return {
            "id": row.id,
            "object": "program.run",
            "program": row.type,
            "state": str(ProgramState.RUNNING if timed else ProgramState.WAITING_FOR_HUMAN),
            "parked": True,
            "questions": [
                _question_view(question, self._clock).to_json() for question in questions
            ],
            "calls": calls,
            "output_tokens": output_tokens,
            "result": None,
            "error": None,
        }

    async def cancel(self, tenant: str, name: str, run_id: str) -> bool:
        """End a parked run without resuming it. Return False if the tenant has no such run that is
        parked.
        """
        async with self._one_at_a_time:
            row = None if self._runs.has(run_id) else await self._parked(run_id)
            if row is None or (row.tenant, row.type) != (tenant, name):
                return False
            await self._ended(run_id)
            return True

    async def open(self, viewer: Viewer, wanted: QuestionFilter) -> list[QuestionView]:
        if wanted.thread is not None:
            return []
        now, closed = self._clock.now(), self._runtime.questions.closed
        parked_questions = await self._waits.questions(now, wanted.limit, viewer.tenant, wanted.run)
        coming = [
            _question_view(question, self._clock)
            for question, _ in self._reopening.values()
            if viewer.sees(question.tenant)
            and wanted.run in (None, question.program)
            and (question.due is None or question.due > now)
        ]
        return coming + [
            _question_view(question, self._clock)
            for question in parked_questions
            if question.id not in closed
        ]

    async def find(self, viewer: Viewer, question_id: str) -> QuestionView | None:
        parked_question = await self._waits.question(question_id)
        # The program may have been resumed while the journal was read.
        if (back := self._reopening.get(question_id)) is not None:
            # The question counts as open: the resumed program decides if an answer is too late.
            view = replace(_question_view(back[0], self._clock), state="open")
        elif parked_question is None or question_id in self._runtime.questions.closed:
            return await self._server.questions.of_programs.find(viewer, question_id)
        else:
            view = _question_view(parked_question, self._clock)
        return view if viewer.sees(view.tenant) else None

    async def answer(self, viewer: Viewer, question: QuestionView, value: Any) -> Mapping[str, Any]:
        question.form.accept(value)  # check the answer before resuming a program for it
        assert question.run is not None
        served_run = await self._revived(question.run)
        if served_run is None:
            raise QuestionClosedError(f"question {question.id} was withdrawn already")
        if (back := self._reopening.get(question.id)) is not None:
            await self._asked_again(served_run.run, question.id, back[1])
        if served_run.run.error is not None:
            raise QuestionClosedError(
                f"question {question.id}: its program failed: {text_of(served_run.run.error)}"
            )
        self._runtime.questions.answer(question.id, value)
        return {}

    async def _asked_again(self, run: Run, question: str, opened: asyncio.Future[None]) -> None:
        """Wait until a resumed run has asked a question again, or has ended.

        Raises `QuestionClosedError` if the run's code continues without asking the question, or
        does not ask the question within `_ASKS_WITHIN_S` seconds.
        """
        for _ in range(int(_ASKS_WITHIN_S / _LOOK_S)):
            await asyncio.wait({opened}, timeout=_LOOK_S)
            if opened.done():
                return
            if (record := run.record) is not None and (
                record.has_left(question) or tracking.only_rests(run, record.rests)
            ):
                raise QuestionClosedError(
                    f"question {question}: run {run.id} was resumed and does not ask it any "
                    "more, because its code has changed"
                )
        raise QuestionClosedError(
            f"question {question}: run {run.id} was resumed and has not asked it again within "
            f"{_ASKS_WITHIN_S:g} s; its code has changed, or is slow; try again later"
        )

    def _on_question(self, question: Question) -> None:
        if question.state == "open":
            self._opened(question.id)

    def _opened(self, question_id: str) -> None:
        """Record that a question is open again, or that its program has ended."""
        if (back := self._reopening.pop(question_id, None)) is not None:
            back[1].set_result(None)


def _question_view(question: ParkedQuestion, clock: SteadyClock) -> QuestionView:
    content = json.loads(question.request)
    return QuestionView(
        question.id,
        text_of_question(content),
        question.type,
        question.tenant,
        AnswerForm(content["schema"]),
        run=question.program,
        state="expired" if question.due is not None and question.due <= clock.now() else "open",
        created_at=clock.time_of_day(question.began),
        expires_at=None if question.due is None else clock.time_of_day(question.due),
    )
