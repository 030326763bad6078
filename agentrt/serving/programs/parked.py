"""Runs that have left memory: they wait in the journal alone, for a human or for a time."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentrt import tracking
from agentrt.errors import QuestionClosedError
from agentrt.interrupts.answers import AnswerForm
from agentrt.interrupts.questions import Question
from agentrt.journal import Journal
from agentrt.journal.codec import UnkeptError
from agentrt.journal.journal import ParkedQuestion, Waits
from agentrt.journal.schema import RecordedProgram
from agentrt.runtime.run import Run
from agentrt.scheduler.table import ProgramState, last_heard
from agentrt.serving.programs.left import LeftRun, left_run
from agentrt.serving.programs.runs import ProgramRuns, ServedRun
from agentrt.serving.questions.asked import Asked, Viewer, Wanted
from agentrt.serving.server import Server
from agentrt.steady import SteadyClock

_AT_ONCE = 1000
"""So many are brought back in one sweep: those that run then are in memory."""
_AT_A_STOP_S = 1.0
"""When the server stops, who has waited so long is parked."""
_MOST_QUESTIONS = 1000
_LOOK_S = 0.1
_ASKS_WITHIN_S = 30.0
"""A program that is brought back for an answer asks its question again within so long."""

_log = logging.getLogger(__name__)


class Parking:
    """Parks runs that do nothing but wait, and brings them back. It is a `QuestionSource`.

    A run is parked as a server's stop leaves it: its code is cancelled, and begins again from its
    top. Rows of the journal say what it waits for, until it has begun again.
    """

    def __init__(self, server: Server, runs: ProgramRuns, journal: Journal) -> None:
        self._server, self._runtime = server, server.runtime
        self._runs, self._journal = runs, journal
        self._waits, self._clock = Waits(journal), journal.clock
        self._programs = {program.name: program for program in server.native.values()}
        self._one_at_a_time = asyncio.Lock()
        # Questions of programs that are brought back, until their code asks them again.
        self._reopening: dict[str, tuple[ParkedQuestion, asyncio.Future[None]]] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._next, self._parks = 0.0, False

    def open_source(self) -> None:
        """Be a source of questions from now on."""
        self._server.questions.sources.append(self)
        self._runtime.questions.listen(self._asked)

    def close(self) -> None:
        """The server stops: park what can be, so that the next one need not bring it back."""
        self._park_all(_AT_A_STOP_S)
        self._runtime.questions.unlisten(self._asked)
        self._server.questions.sources.remove(self)

    async def sweep(self) -> None:
        """Park who has waited for long, and bring back whose time has come."""
        draining = self._server.draining
        self._park_all(_AT_A_STOP_S if draining else self._server.park_s)
        if draining or (self._clock.now() < self._next and not self._parks):
            return
        self._next, self._parks = 0.0, False  # so it stays if the journal cannot be read
        self._next = await self._bring_back()

    async def _bring_back(self) -> float:
        """Bring back whose time has come, and say when the next time is."""
        found, left, due = [(0.0, "")], _AT_ONCE, math.inf
        while found := await self._waits.first_due(self._programs, _AT_ONCE, found[-1]):
            for due, program_id in found:
                if due > self._clock.now() or not left:
                    return due
                # One that has come back already, and could not begin, is let be.
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
        """Whether it has waited so long, and will, for nothing but humans and the time."""
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
        """From its last answer to here nothing was awaited: nothing is lost."""
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
        """The run of a program that was parked, in memory; None if it is over."""
        if (leaving := self._leaving.get(program_id)) is not None:
            await asyncio.wait([leaving])
        async with self._one_at_a_time:
            if (one := self._runs.live(program_id)) is not None:
                return one
            row = await self._parked(program_id)
            left = None if row is None else await self._left(row)
            if left is None:
                return None
            if (program := self._programs.get(left.type)) is None:
                raise QuestionClosedError(f"no program {left.type!r} is served now")
            asked = await self._waits.questions(0.0, _MOST_QUESTIONS, program=program_id)
            one = self._runs.go_on(program, left)
            self._reopen(one, asked)
            return one

    def _reopen(self, one: ServedRun, asked: list[ParkedQuestion]) -> None:
        """Remember what the run will ask again."""
        assert one.run.task is not None
        for each in asked:
            opened = asyncio.get_running_loop().create_future()
            self._reopening[each.id] = each, opened

        def ended(task: asyncio.Task[None]) -> None:
            for each in asked:
                self._opened(each.id)

        one.run.task.add_done_callback(ended)

    async def _parked(self, program_id: str) -> RecordedProgram | None:
        is_parked = await self._waits.of(program_id)
        rows = await self._journal.programs("id = ?", (program_id,)) if is_parked else []
        return rows[0] if rows else None

    async def _left(self, row: RecordedProgram) -> LeftRun | None:
        """How it goes on. One that cannot, or is over its time, ends."""
        try:
            left = left_run(self._journal, row)
        except UnkeptError as error:
            _log.warning("run %s does not go on: its input: %s", row.id, error)
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
        """A parked run, as clients see one; None if there is none."""
        row = None if self._runs.has(run_id) else await self._parked(run_id)
        if row is None or (row.tenant, row.type) != (tenant, name):
            return None
        questions = await self._waits.questions(self._clock.now(), _MOST_QUESTIONS, program=run_id)
        timed = None in await self._waits.of(run_id)
        return {
            "id": row.id,
            "object": "program.run",
            "program": row.type,
            "state": str(ProgramState.RUNNING if timed else ProgramState.WAITING_FOR_HUMAN),
            "parked": True,
            "questions": [_asked(one, self._clock).to_json() for one in questions],
            "result": None,
            "error": None,
        }

    async def cancel(self, tenant: str, name: str, run_id: str) -> bool:
        """End a parked run without any of its code. False if there is none."""
        async with self._one_at_a_time:
            row = None if self._runs.has(run_id) else await self._parked(run_id)
            if row is None or (row.tenant, row.type) != (tenant, name):
                return False
            await self._ended(run_id)
            return True

    async def open(self, viewer: Viewer, wanted: Wanted) -> list[Asked]:
        if wanted.thread is not None:
            return []
        now, closed = self._clock.now(), self._runtime.questions.closed
        found = await self._waits.questions(now, wanted.limit, viewer.tenant, wanted.program)
        coming = [
            _asked(one, self._clock)
            for one, _ in self._reopening.values()
            if viewer.sees(one.tenant)
            and wanted.program in (None, one.program)
            and (one.due is None or one.due > now)
        ]
        return coming + [_asked(one, self._clock) for one in found if one.id not in closed]

    async def find(self, viewer: Viewer, question_id: str) -> Asked | None:
        found = await self._waits.question(question_id)
        # Its program may have come back while the journal was read.
        if (back := self._reopening.get(question_id)) is not None:
            # Its program says whether it is too late: it may have the answer by then.
            asked = replace(_asked(back[0], self._clock), state="open")
        elif found is None or question_id in self._runtime.questions.closed:
            return await self._server.questions.of_programs.find(viewer, question_id)
        else:
            asked = _asked(found, self._clock)
        return asked if viewer.sees(asked.tenant) else None

    async def answer(self, viewer: Viewer, asked: Asked, value: Any) -> Mapping[str, Any]:
        asked.form.accept(value)  # before a program is brought back for it
        assert asked.program is not None
        one = await self._revived(asked.program)
        if one is None:
            raise QuestionClosedError(f"question {asked.id} was withdrawn already")
        if (back := self._reopening.get(asked.id)) is not None:
            await self._asked_again(one.run, asked.id, back[1])
        if one.run.error is not None:
            raise QuestionClosedError(f"question {asked.id}: its program failed: {one.run.error}")
        self._runtime.questions.answer(asked.id, value)
        return {}

    async def _asked_again(self, run: Run, question: str, opened: asyncio.Future[None]) -> None:
        """Wait until a question is open again, or never will be. Raises `QuestionClosedError`
        where the run's code goes on without it.
        """
        for _ in range(int(_ASKS_WITHIN_S / _LOOK_S)):
            await asyncio.wait({opened}, timeout=_LOOK_S)
            if opened.done():
                return
            if (record := run.record) is not None and (
                record.has_left(question) or tracking.only_rests(run, record.rests)
            ):
                raise QuestionClosedError(
                    f"question {question}: program {run.id} has come back and does not ask it any "
                    "more: its code has changed"
                )
        raise QuestionClosedError(
            f"question {question}: program {run.id} has come back and has not asked it again "
            f"within {_ASKS_WITHIN_S:g} s: its code has changed, or is slow; try again later"
        )

    def _asked(self, question: Question) -> None:
        if question.state == "open":
            self._opened(question.id)

    def _opened(self, question_id: str) -> None:
        """It is open again, or never will be."""
        if (back := self._reopening.pop(question_id, None)) is not None:
            back[1].set_result(None)


def _asked(one: ParkedQuestion, clock: SteadyClock) -> Asked:
    asked = json.loads(one.request)
    return Asked(
        one.id,
        asked["question"],
        one.type,
        one.tenant,
        AnswerForm(asked["schema"]),
        program=one.program,
        state="expired" if one.due is not None and one.due <= clock.now() else "open",
        created_at=clock.time_of_day(one.began),
        expires_at=None if one.due is None else clock.time_of_day(one.due),
    )
