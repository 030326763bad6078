"""``agentrt run --inputs``: check the records, run the program on each record, and show the
progress.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from signal import SIGTERM
from typing import Any

import click
from rich.console import Console

from agentrt.batch.inputs import Condition, Fields, InputFile, InputsError, Item
from agentrt.batch.limits import ItemLimits, read_share
from agentrt.batch.results import Result, ResultFile, read_results
from agentrt.batch.runner import (
    DEFAULT_LIVE,
    Batch,
    BatchSettings,
    check_program,
    digest_of,
    items_of,
    journal_beside,
)
from agentrt.batch.scores import Score, score_process, scores_among
from agentrt.batch.statistics import summarize
from agentrt.batch.targets import ProgramTarget, Target, opened_target, threads_beside
from agentrt.batch.tokens import TokenFile, check_executor
from agentrt.cli.engine_log import EngineLog, opened_output, start_engine
from agentrt.cli.engines import NOTES, check_kind, engine_options, make_executor, read_fleet
from agentrt.cli.execute import make_room, shown
from agentrt.cli.faults import FAILED, ImportFailedError, StoppedError
from agentrt.cli.journals import (
    JournalPlan,
    describe_engine,
    journal_options,
    opened_journal,
    read_journal,
)
from agentrt.cli.load import LoadedGraph, LoadedTarget, import_file, load_program, split_target
from agentrt.cli.results import print_summary, shortened
from agentrt.cli.screen import LiveScreen, Screen
from agentrt.cli.signals import Drain, Interrupts
from agentrt.cli.streams import say, show_json
from agentrt.cli.tools import ToolSources, read_tools
from agentrt.cli.traces import opened_runtime, read_traces
from agentrt.errors import (
    AgentrtError,
    ConfigError,
    EngineError,
    JournalWriteError,
    ProgramLoadError,
    UsageError,
)
from agentrt.executors.base import Executor
from agentrt.executors.vllm.options import EngineOptions
from agentrt.interrupts.questions import Question
from agentrt.runtime import Runtime
from agentrt.serving.questions.server_questions import ServerQuestions

_NOT_WITH_INPUTS = {
    "input_text": "--input",
    "answers": "--human",
    "thread": "--thread",
    "dag": "--dag",
    "trace": "--trace",
}
_COMMAND = "cmd:"
_LIVE_S, _PLAIN_S = 0.5, 10.0
"""Seconds between two lines of progress. The first value is for a terminal, where each line
replaces the previous line; the second value is for all other output.
"""


@dataclass(frozen=True, slots=True)
class _BatchJob:
    """The options of a batch."""

    program: LoadedTarget
    inputs: InputFile
    out: ResultFile
    tokens: TokenFile | None
    settings: BatchSettings
    scores: Sequence[Score]
    engine: EngineOptions
    tools: ToolSources
    journal: JournalPlan
    checkpointer: str | None
    seed: int
    traces: str | None
    dashboard: int | None


def run_batch(target: str, engine_flags: tuple[str, ...], options: Mapping[str, Any]) -> int:
    """Run the program ``target`` on each record of ``--inputs``, and return the exit code. Raises
    `UsageError` for an invalid option.
    """
    for name, flag in _NOT_WITH_INPUTS.items():
        if options[name]:
            raise UsageError(f"{flag} is for a single input, and not for --inputs; leave it out")
    if options["n"] != 1:
        raise UsageError(
            "--n is for a single input; to run each record of --inputs several times, give "
            "--samples N"
        )
    if options["out"] is None:
        raise UsageError("--inputs needs a file for the results: give --out FILE.jsonl")
    check_kind(options["kind"], click.get_current_context(), engine_flags)
    engine, fleet = engine_options(dict(options), engine_flags), read_fleet(dict(options))
    tools, traces = read_tools(dict(options)), read_traces(options["traces"], engine_flags)
    settings, journal = _settings(options), _journal(options)
    for name in ("input_field", "id_field"):
        if options[name] == "":
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} '': give the name of a field, or leave the option out")
    conditions = [Condition.parse(text) for text in options["where"]]
    program = load_program(target)
    if isinstance(program, LoadedGraph):
        _refuse_journal(program, options)
    scores = _scores(target, options["score_targets"])
    fields = Fields(options["input_field"], options["id_field"])
    inputs = InputFile(options["inputs"], fields, conditions=conditions, limit=options["limit"])
    names = [score.name for score in scores]
    with ExitStack() as stack:
        stack.callback(inputs.close)
        out = ResultFile(options["out"], retry=options["retry"], scores=names)
        stack.push(out)
        token_file = None
        if options["tokens"] is not None:
            token_file = TokenFile(options["tokens"], out)
            stack.push(token_file)
        job = _BatchJob(
            program,
            inputs,
            out,
            token_file,
            settings,
            scores,
            engine,
            tools,
            journal,
            options["checkpointer"],
            options["seed"],
            traces,
            options["dashboard"],
        )
        with opened_output(verbose=engine.verbose) as (log, screen, last_words):
            executor = make_executor(engine, fleet, screen.progress, restarts=True)
            if settings.tokens:
                check_executor(executor.info)
            if note := NOTES.get(fleet.kind):
                screen.announce(note)
            drain = Drain(SIGTERM)
            work = _execute(job, executor, screen, log, drain)
            try:
                complete = Interrupts(last_words, drain).run(work)
            except (EngineError, JournalWriteError, OSError, StoppedError):
                say(f"results so far: {out.path}; the same command resumes the batch")
                raise
            return _conclude(job, screen.console, complete=complete, as_json=options["as_json"])


def _settings(options: Mapping[str, Any]) -> BatchSettings:
    limits = ItemLimits(options["max_tokens_total"], options["max_calls"], options["timeout"])
    price = None
    if options["price"] is not None:
        price = _price(options["price"])
    source = click.get_current_context().get_parameter_source("on_unrecordable")
    return BatchSettings(
        options["samples"] or 1,
        options["max_live"] or DEFAULT_LIVE,
        limits,
        read_share(options["stop_when"], "--stop-when"),
        price,
        skips=options["journal"] is None and source is not click.core.ParameterSource.COMMANDLINE,
        tokens=options["tokens"] is not None,
    )


def _price(text: str) -> tuple[float, float]:
    try:
        prompt, output = map(float, text.split(","))
    except ValueError:
        prompt = output = math.nan
    if not (0 <= prompt < math.inf and 0 <= output < math.inf):
        raise ConfigError(
            f"--price {text!r}: give two numbers of at least 0, such as 0.15,0.6: the prices of a "
            "million prompt tokens and of a million output tokens"
        )
    return prompt, output


def _journal(options: Mapping[str, Any]) -> JournalPlan:
    """Return the journal that ``--journal`` names, by default a journal next to the results."""
    if options["journal_content"] != "full":
        raise UsageError(
            f"--journal-content {options['journal_content']}: a batch resumes from its journal, "
            "which must record the full content; leave this option out"
        )
    if (named := options["journal"]) is not None:
        plan = read_journal(options)
        assert plan is not None, named
        return plan
    path = journal_beside(options["out"])
    return JournalPlan.of_file(path, journal_options(options))


def _refuse_journal(graph: LoadedGraph, options: Mapping[str, Any]) -> None:
    """Raise `UsageError` if an option of the journal is set, which a graph does not have."""
    if options["journal"] is not None:
        raise UsageError(
            f"--journal is for agentrt programs, and {graph.name!r} is a LangGraph graph: a batch "
            "resumes its threads, which are next to the results or in --checkpointer; leave "
            "--journal out"
        )
    read_journal(options, is_graph=True)


def _scores(target: str, named: Sequence[str]) -> list[Score]:
    """Return the scores of the program's file, if it is a Python file, and the scores that
    ``--score`` names. Raises `UsageError` for a score that does not exist, and for two scores of
    the same name.
    """
    path, _ = split_target(target)
    scores = scores_among(vars(import_file(path))) if path.suffix == ".py" else []
    for text in named:
        if text.startswith(_COMMAND):
            scores.append(score_process(text.removeprefix(_COMMAND)))
            continue
        if not text:
            raise UsageError("--score '': give a Python file with @score functions, or cmd:COMMAND")
        path, name = split_target(text)
        there = scores_among(vars(import_file(path)))
        chosen = [score for score in there if name is None or score.name == name]
        if not chosen:
            known = ", ".join(score.name for score in there) or "none"
            raise UsageError(
                f"--score {text}: unknown score; {path} has the scores: {known}. A score is a "
                "function with agentrt's decorator @score; its arguments are a record and a result"
            )
        scores += chosen
    distinct = [*{id(score): score for score in scores}.values()]
    names = [score.name for score in distinct]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two scores are called {name!r}; rename one: @score(name=...)")
    return distinct


@asynccontextmanager
async def _opened(job: _BatchJob) -> AsyncIterator[Target]:
    """Open the batch's program or graph during the ``with`` block, and yield it as a `Target`.

    Raises `UsageError` if ``--checkpointer`` is set for a program, and `ProgramLoadError`,
    `ImportFailedError` or another `AgentrtError` if a graph cannot be opened.
    """
    async with AsyncExitStack() as stack:
        program = job.program
        if not isinstance(program, LoadedGraph):
            if job.checkpointer is not None:
                raise UsageError(
                    f"--checkpointer is for LangGraph graphs, and {program.name!r} is an agentrt "
                    "program; leave it out"
                )
            opening = opened_target(program)
        else:
            opening = opened_target(
                program.value,
                name=program.name,
                checkpointer=job.checkpointer,
                beside=job.out.path,
                tokens_of=None if job.tokens is None else job.out,
            )
        try:
            opened = await stack.enter_async_context(opening)
        except ProgramLoadError as error:
            assert isinstance(program, LoadedGraph)
            raise ProgramLoadError(
                f"{program.path}: {program.name!r} is not a graph: {error}"
            ) from None
        except AgentrtError:
            raise
        except Exception as error:
            assert isinstance(program, LoadedGraph)
            raise ImportFailedError(str(program.path)) from error
        yield opened


async def _execute(
    job: _BatchJob, executor: Executor, screen: Screen, log: EngineLog, drain: Drain
) -> bool:
    """Check all records, and run the records that have no result. Return whether the batch has
    ended.
    """
    async with AsyncExitStack() as stack:
        threads = threads_beside(job.out.path)
        is_new = not threads.exists()
        target = await stack.enter_async_context(_opened(job))
        try:
            total, left = _check(job, target)
        except UsageError:
            await stack.aclose()
            if is_new:
                threads.unlink(missing_ok=True)
            raise
        await stack.enter_async_context(screen.showing())
        if not left:
            screen.announce(f"all {total} results are in {job.out.path} already")
            # An earlier process may have ended after the last result, but before this.
            job.out.finish()
            target.finish()
            if job.tokens is not None:
                job.tokens.finish(job.out)
            return True
        if left < total:
            screen.announce(f"{total - left} of {total} results are in {job.out.path} already")
        journal = None
        if isinstance(target, ProgramTarget):
            journal = await stack.enter_async_context(opened_journal(job.journal))
        others_answer = job.dashboard is not None or job.tools.broker is not None
        runtime = stack.enter_context(
            opened_runtime(
                executor,
                job.traces,
                ask_human=None if others_answer else _nobody,
                tools=job.tools.transports(screen.announce),
                events=job.tools.events(),
                seed=job.seed,
                journal=journal,
            )
        )
        make_room(job.settings.max_live)
        await start_engine(runtime, screen.progress, log)
        stack.push_async_callback(_close, runtime, screen)
        await describe_engine(runtime, job.engine.scheduler)
        await stack.enter_async_context(shown(runtime, job.dashboard, screen.announce))
        await stack.enter_async_context(job.tools.asking(ServerQuestions(runtime)))
        batch = Batch(
            target,
            runtime,
            job.settings,
            scores=job.scores,
            out=job.out,
            tokens=job.tokens,
            total=total,
        )
        return await _play(job, batch, screen, drain, left)


async def _nobody(question: Question) -> Any:
    """Refuse a question by raising `UsageError`. This is the answerer of a batch without a page or
    a broker at which people can answer.
    """
    raise UsageError(
        f"run {question.program_id} asks a human, but nobody can answer in this batch: "
        f"{question.text!r}; add --dashboard or --broker URL, where people can answer"
    )


async def _close(runtime: Runtime, screen: Screen) -> None:
    screen.progress("stopping the engine")
    await runtime.close()


def _check(job: _BatchJob, target: Target) -> tuple[int, int]:
    """Return the number of results of the whole batch, and how many of them are still missing.

    Raises `InputsError` after it has printed a line for each of the first records that cannot be
    used, and `UsageError` if a result is from another program.
    """
    left = changed = 0

    def count(item: Item) -> None:
        nonlocal left, changed
        for sample in range(job.settings.samples):
            if not job.out.has(item.id, sample):
                left += 1
                continue
            result = job.out.read(item.id, sample)
            check_program(result, target.name, job.out.path)
            changed += result.digest != digest_of(item.input)

    try:
        total = job.inputs.check(target.accept, each=count) * job.settings.samples
    except InputsError as error:
        for problem in error.problems:
            say(f"error: {problem}")
        raise
    if changed:
        say(
            f"warning: the inputs of {changed} results in {job.out.path} have changed since these "
            "results were written; --retry all repeats all results"
        )
    return total, left


async def _play(job: _BatchJob, batch: Batch, screen: Screen, drain: Drain, left: int) -> bool:
    """Run the batch, and show its progress on the screen. Return whether the batch has ended."""
    progress = _BatchProgress(batch, screen, left)

    def draining(signal: str) -> None:
        batch.drain()
        screen.announce(f"{signal}: finishing {batch.live} live programs, starting no more")

    ticking = asyncio.create_task(progress.tick(), name="progress")
    try:
        with drain.possible(draining):
            async with aclosing(batch.results(items_of(job.inputs), earlier=False)) as results:
                async for result in results:
                    progress.saw(result)
    finally:
        ticking.cancel()
        await asyncio.wait([ticking])
    if drain.first is not None and not batch.is_complete:
        return False
    if batch.total is not None and (unbegun := batch.total - batch.ended) > 0:
        screen.announce(
            f"{unbegun} runs did not start, because enough runs had ended (--stop-when)"
        )
    return True


class _BatchProgress:
    """The progress of a batch on the screen: on a terminal, one line that is updated; elsewhere, a
    new line every 10 seconds.
    """

    def __init__(self, batch: Batch, screen: Screen, left: int) -> None:
        self._batch, self._screen, self._left = batch, screen, left
        self._began = time.monotonic()
        self._ended = self._failed = 0
        self._pause = _LIVE_S if isinstance(screen, LiveScreen) else _PLAIN_S

    def saw(self, result: Result) -> None:
        """Count a new result."""
        self._ended += 1
        self._failed += result.failed

    async def tick(self) -> None:
        """Show the progress repeatedly, until this call is cancelled."""
        while True:
            self._screen.progress(self.line())
            await asyncio.sleep(self._pause)

    def line(self) -> str:
        """Return the progress as text."""
        seconds = max(1e-3, time.monotonic() - self._began)
        rate = self._ended / seconds
        left = max(0, self._left - self._ended)
        words = [f"{self._ended} of {self._left} ended", f"{self._failed} failed"]
        words.append(f"{self._batch.live} live")
        if self._batch.scoring:
            words.append(f"{self._batch.scoring} being scored")
        if self._ended:
            speed = f"{rate:.1f}/s" if rate >= 1 else f"{rate * 60:.1f}/min"
            words += [speed, f"{_duration(left / rate)} left"]
        line = ", ".join(words)
        if slowest := self._batch.slowest():
            named = ", ".join(
                f"{shortened(item, 40)} ({_duration(length)})" for item, length in slowest
            )
            line += f"; slowest: {named}"
        return line


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _conclude(job: _BatchJob, console: Console, *, complete: bool, as_json: bool) -> int:
    """Print a summary of the results, and return the exit code."""
    summary = summarize(read_results(job.out.path))
    if as_json:
        show_json(summary)
    print_summary(summary, console)
    path = job.out.path
    where = f"results: {path}"
    if not complete:
        say(f"{where}; the batch was stopped before its end; the same command resumes it")
        return FAILED
    say(where)
    fault = any(each["errors"] for each in summary["scores"].values()) or summary["failed"]
    return FAILED if fault or any(over != "stop-when" for over in summary["over"]) else 0
