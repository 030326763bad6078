"""The end of `agentrt run`: results on stdout, report and errors on stderr, an exit code."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from agentrt.batch.plain import as_json, tidy
from agentrt.cli.engine_log import EngineLog
from agentrt.cli.execute import CommandOutcome, Job
from agentrt.cli.faults import FAILED, INTERRUPTED, branch_code, place_of, program_fault, summary
from agentrt.cli.human import UnansweredError
from agentrt.cli.plan import OpenQuestion
from agentrt.cli.streams import reader_left, say, show, show_json
from agentrt.cli.tables import print_report
from agentrt.cli.values import write_dags
from agentrt.errors import (
    CallRejectedError,
    EngineDiedError,
    JournalError,
    JournalWriteError,
    NotServedError,
    ProgramError,
    UsageError,
)
from agentrt.journal.analysis.rendering import short
from agentrt.request.text import ReadsAsText
from agentrt.runtime.run import Run, RunState

_FAULTS_SHOWN = 3
"""Number of failed programs whose errors are shown in full, and of stopped threads whose commands
are shown.
"""


def conclude(
    job: Job, outcome: CommandOutcome, console: Console, log: EngineLog, *, as_json: bool
) -> int:
    """Write the results, the report and the errors of a finished job. Return the exit code.

    Raises `ConfigError` if the graph or the timeline cannot be written, after the results, the
    report and the errors have been written. Raises `BrokenPipeError`, and writes nothing, if a
    program failed because the reader has closed the output.
    """
    losers = [run for run in outcome.runs if failed(run)]
    for run in losers:
        if isinstance(run.error, BrokenPipeError) and reader_left():
            raise run.error  # the reader has closed our output, as `| head` does
    if as_json:
        show_json(to_json(outcome))
    else:
        _print_results(outcome.runs)
        print_report(outcome, console)
    for run in losers[:_FAULTS_SHOWN]:
        if run.id in job.plan.resumes:
            say(f"resume {run.id} with: {job.plan.resumes[run.id]}")
        say(_fault(run, job, log))
    if len(losers) > _FAULTS_SHOWN:
        say(f"error: {len(losers)} of {len(outcome.runs)} runs failed")
    if job.plan.is_cut_short:
        say("error: SIGTERM came before all programs had started; the other programs did not run")
    _tell_questions(outcome.questions)
    _write_dag(job, outcome.runs)
    _write_timeline(job, outcome.runs)
    if job.plan.is_cut_short:
        return max(_code(losers), FAILED)
    return _code(losers) or (INTERRUPTED if outcome.questions else 0)


def tell_way_on(job: Job) -> None:
    """Say how the programs of a job that a signal has stopped can be resumed, if they can."""
    if job.journal is not None and job.journal.options.content == "full":
        say(f"recorded so far: {job.journal.place}; the same command resumes the programs")
    commands = job.plan.unfinished()
    for _, command in commands[:_FAULTS_SHOWN]:
        say(f"resume with: {command}")
    # All are named: their ids are random, and no command lists the threads of a checkpointer.
    if rest := [thread for thread, _ in commands[_FAULTS_SHOWN:]]:
        more = "1 more thread" if len(rest) == 1 else f"{len(rest)} more threads"
        say(f"{more} can be resumed in the same way, with --thread: {' '.join(rest)}")


def _print_results(runs: Sequence[Run]) -> None:
    # A program that waits for a human has no result yet, unless it continued without an answer.
    answered = [run for run in runs if run.state is not RunState.INTERRUPTED or run.result]
    for run in answered:
        if not failed(run):
            text = _as_text(run.result)
            show(f"{run.id}: {text}" if len(answered) > 1 else text)


def _tell_questions(questions: Sequence[OpenQuestion]) -> None:
    """Print the open questions, and the command that answers them: one command per thread."""
    for question in questions:
        program = question.program or "the graph"
        question_id = f" ({question.id})" if question.id else ""
        text = short(str(question.value), 200)
        say(f"{program} waits for a human in thread {question.thread}: {text}{question_id}")
    for command in dict.fromkeys(question.answer_with for question in questions):
        say(f"continue with: {command}")


def _as_text(result: Any) -> str:
    """Return a result as text for people: a text unchanged, the last message of a chat, and any
    other value as JSON.

    A model's reply becomes its text, also within lists; with ``--json`` it has all its fields.
    """
    if isinstance(result, str | ReadsAsText):
        return str(result)
    if isinstance(result, dict) and list(result) == ["messages"] and result["messages"]:
        text = getattr(result["messages"][-1], "text", "")
        if isinstance(text, str) and text:
            return str(text)
    return as_json(result)


def _fault(run: Run, job: Job, log: EngineLog) -> str:
    error = run.error
    if error is None:
        late = run.id in job.timed_out
        why = f"took longer than {job.timeout:g} s (--timeout)" if late else "was cancelled"
        kept = job.journal is not None and job.journal.options.content == "full"
        resume = "; run the same command again to resume it" if kept else ""
        return f"error: run {run.id} {why}{resume}"
    if isinstance(error, UnansweredError | JournalError | JournalWriteError):
        return f"error: {error}"
    if isinstance(error, NotServedError):
        return f"error: run {run.id}: {error}, or start the engine with --model"
    if isinstance(error, UsageError | CallRejectedError):  # the message says what to do
        return f"error: run {run.id}: {error}{place_of(error)}"
    if isinstance(error, EngineDiedError):
        return f"error: {summary(error)} ({log.name_it()})"
    return program_fault(ProgramError(run.id, run.type, error))


def _write_dag(job: Job, runs: Sequence[Run]) -> None:
    if job.dag is not None:
        dags = [run.dag for run in runs]
        write_dags(dags[0] if len(dags) == 1 else dags, job.dag)


def _write_timeline(job: Job, runs: Sequence[Run]) -> None:
    if job.timeline is not None:
        from agentrt.cli.perfetto import write
        from agentrt.cli.timeline import of_run

        write([of_run(run) for run in runs], job.timeline)


def _code(losers: Sequence[Run]) -> int:
    return max((branch_code(run.error) for run in losers), default=0)


def to_json(outcome: CommandOutcome) -> dict[str, Any]:
    """Return the object that ``--json`` prints. A program that failed has null as its result."""
    programs = [
        {
            **dataclasses.asdict(report),
            "session": run.row.session,
            "error": summary(run.error) if run.error else None,
        }
        for run, report in zip(outcome.runs, outcome.reports(), strict=True)
    ]
    return {
        "results": [tidy(run.result) for run in outcome.runs],
        "programs": programs,
        "interrupts": [tidy(question) for question in outcome.questions],
        "outside_calls": outcome.outside_calls,
        "engine": dict(outcome.engine),
        "policy": outcome.policy,
    }


def failed(run: Run) -> bool:
    """Return whether a run ended without a result and without an open question."""
    return run.state not in (RunState.DONE, RunState.INTERRUPTED)
