"""``agentrt compare``: a user's own programs under stock vLLM's order and under agentrt's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import click

from agentrt.cli.engine_log import opened_output
from agentrt.cli.execute import Job, execute
from agentrt.cli.human import Human
from agentrt.cli.load import load_program
from agentrt.cli.options import (
    Options,
    RunCommand,
    batch_option,
    history_option,
    model_option,
    seed_option,
)
from agentrt.cli.plan import Plan, Start
from agentrt.cli.report import conclude
from agentrt.cli.run import plan_of
from agentrt.cli.signals import Drain, Interrupts
from agentrt.cli.streams import say
from agentrt.cli.values import check_output, read_input
from agentrt.errors import UsageError
from agentrt.executors.base import Chunk, ForwardingExecutor
from agentrt.executors.history import NONE, HistoryFile, Values
from agentrt.executors.history import read as read_history
from agentrt.executors.history_folder import history_file
from agentrt.executors.vllm import engine
from agentrt.executors.vllm.options import EngineOptions, check_model
from agentrt.interrupts.questions import Answerer
from agentrt.lab.commands.options import silence_vllm, write
from agentrt.lab.commands.progress import Meter
from agentrt.lab.commands.replay import SIZES
from agentrt.lab.reports.orders import drawing, told, values
from agentrt.lab.runs.comparison import (
    STOCK,
    Comparison,
    Courses,
    Past,
    fitted,
    latencies,
    read,
    replay,
)
from agentrt.lab.runs.machine import Machine
from agentrt.request import Call
from agentrt.runtime.durable import Durable
from agentrt.runtime.run import Run, RunState
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import make_policy
from agentrt.scheduler.table import ProgramTotals

_EPILOG = """\b
Examples:
  agentrt compare mine.py --n 16
  agentrt compare demos/react.py demos/mcts.py --n 4 --plot ends.svg
  agentrt compare graph.py --input "Plan a tea" --input "Plan a feast"
  agentrt compare graph.py="Plan a tea" tools.py:search mine.py=@goal.txt
  agentrt compare mine.py --real -- --max-model-len 4096

\b
By default the programs run once on the engine, under stock's order. Then both orders are replayed,
each time with others of the programs first, by vLLM's real scheduler in virtual time, with step
times fitted to the run. That takes one run, and nothing differs but the order. --real runs both in
turns on the engine, after a run to warm up and one to learn: 2 x --repeat + 2 runs, with the
machine's noise, and sampled texts may differ. Use it to check.

\b
agentrt learns how long programs are, and keeps it for later runs. What it gains is measured after
it has run these once; beside it stands what it gains with what earlier runs have taught, which the
last line names, or the first time. --history none compares as if there had been no run before.
It is a gain if each pair of runs has one in the mean, and a larger one than the replay of stock's
order is off the run. Else it is nothing: with 5 pairs, chance alone makes a gain once in 32 times.
Exit codes: as those of agentrt run.
"""
_UNASKED = {"answers": (), "thread": None, "checkpointer": None}
_own, _output = Options("Comparison"), Options("Output")


class _Command(RunCommand):
    TARGETS = "PROGRAM.py[:NAME][=INPUT]…"


@click.command(cls=_Command, epilog=_EPILOG)
@click.argument("targets", metavar="PROGRAM.py[:NAME][=INPUT]…", nargs=-1, required=True)
@_own.count("--n", "Run N instances of each program, all at once.", default=8)
@_own.several(
    "--input",
    "inputs",
    "TEXT|JSON|@FILE",
    "The input of programs without one of their own, as of agentrt run. Of several inputs each "
    "instance has the next.",
)
@_own.flag("--real", "Run both orders on the engine; no replay.")
@_own.count("--repeat", "Pairs of runs.", least=3, default=5)
@seed_option
@history_option
@model_option
@batch_option
@_output.flag("--json", "Print one JSON object.", "as_json")
@_output.file("--plot", "Draw who ends when, as a moving picture: an .svg file.", dir_okay=True)
def compare(targets: Sequence[str], engine_flags: tuple[str, ...], **options: Any) -> int:
    """Compare stock vLLM's order of calls with agentrt's on your own programs.

    Says of each program when it ends, how long it waits and for whom, and what
    agentrt gains. That may be nothing: who waits for nobody ends no sooner.
    """
    check_output("--plot", options["plot"], (".svg",))
    if options["model"] is not None:
        check_model(options["model"])
    if options["history"] not in (None, NONE):
        read_history(Path(options["history"]))
    turns = 2 * options["repeat"] + 2
    past = _History(options["history"])
    plan = _Turns(_plans(targets, options, turns), turns if options["real"] else 1, past)
    batch = options["max_num_seqs"]
    settings = EngineOptions(options["model"], batch, scheduler=STOCK, flags=engine_flags)
    return _run(Job(plan, settings, seed=options["seed"], max_live=plan.size), plan, options)


def _run(job: Job, plan: _Turns, options: dict[str, Any]) -> int:
    """Run the programs, and tell how they compare. Returns the exit code."""
    silence_vllm()
    with opened_output(verbose=False) as (log, screen, last_words):
        plan.engine = _Recorder(engine.VLLMEngine(job.options))
        outcome = Interrupts(last_words).run(execute(job, plan.engine, screen, log, Drain()))
        runs, bad = outcome.runs, [run for run in outcome.runs if run.state is not RunState.DONE]
        if asks := [run.id for run in bad if run.state is RunState.INTERRUPTED]:
            raise UsageError(f"program {asks[0]} asks a human: compare programs that ask nobody")
        if bad:
            return conclude(job, replace(outcome, runs=bad), screen.console, log, as_json=False)
    each = [
        read(runs[at : at + plan.size], plan.engine.tokens) for at in range(0, len(runs), plan.size)
    ]
    past = plan.past
    past.open(plan.engine.info.history_key)
    if options["real"]:
        found = Comparison(each[2::2], each[3::2], each[1:2])
    else:
        found = _replayed(each[0], outcome.engine["sizes"], options["repeat"], past.values)
        past.add(plan.engine.totals)
    found = replace(found, past=past.of(dict.fromkeys(one.shape.type for one in each[0])))
    click.echo(json.dumps(values(found)) if options["as_json"] else told(found))
    write(options["plot"], drawing(found) if options["plot"] else "")
    return 0


def _plans(targets: Sequence[str], options: dict[str, Any], turns: int) -> list[Plan]:
    """One for each instance, with its own input if its target has one."""
    asked = [target.partition("=") for target in targets]
    programs = {name: load_program(name) for name, _, _ in asked}
    shared = options["inputs"] or [None]
    terms = {**options, **_UNASKED, "journal": None, "n": turns}
    return [
        plan_of(programs[name], read_input(text if own else shared[number % len(shared)]), terms)
        for number in range(options["n"])
        for name, own, text in asked
    ]


def _replayed(
    run: Courses, sizes: Mapping[str, Any], repeats: int, known: Values | None
) -> Comparison:
    sizes = {name: sizes[name] for name in SIZES if name in sizes}
    machine = Machine(step_model=fitted(run), **sizes)
    ours, meter = SchedulerConfig(), Meter(repeats)
    stock, first, again = (list[Courses]() for _ in range(3))
    for repeat in range(repeats):
        stock.append(replay(run, STOCK, machine, repeat)[0])
        begun, learned = replay(run, ours, machine, repeat, known)
        first.append(begun)
        again.append(replay(run, ours, machine, repeat, learned)[0])
        meter.now(repeat + 1)
    off = abs(fmean(latencies(stock[0])) / fmean(latencies(run)) - 1)
    return Comparison(stock, again, first, off)


class _History:
    """What earlier runs have taught, and what this comparison adds to it.

    It is in the file that is ``named``; None is that of the engine's model and size. ``values`` is
    what the file said when it was opened.
    """

    def __init__(self, named: str | None) -> None:
        self._named, self._is_open = named, False
        self.file: Path | None = None
        self.values: Values | None = None

    def open(self, engine_key: str) -> None:
        """Read the file, for an engine of this key. Once it is open, nothing more happens."""
        if self._is_open:
            return
        self._is_open = True
        self.file = history_file(self._named, engine_key, say)
        if self.file is not None:
            self.values = read_history(self.file)

    def add(self, totals: Sequence[ProgramTotals]) -> None:
        """Learn from programs that ran on the engine, and keep it."""
        if self.file is None:
            return
        policy = make_policy(SchedulerConfig())
        kept = HistoryFile(policy, str(self.file), learns=policy.learns, warn=say)
        for one in totals:
            kept.learn(one)
        kept.save()

    def of(self, types: Iterable[str]) -> Past:
        """Of which of these program types something was known, and of which nothing."""
        rows = [] if self.values is None else self.values["service"]
        seen = {name for _, name, what, *_ in rows if not what}
        known = [name for name in types if name in seen]
        new = [name for name in types if name not in seen]
        return Past(None if self.file is None else str(self.file), known, new)


class _Turns(Plan):
    """All programs at once in each turn, first under stock's order, then under ours, and so on.
    They have the same ids, and with them the same seeds. Ours learns in the file of its ``past``,
    or in one that goes with the command.
    """

    def __init__(self, plans: Sequence[Plan], turns: int, past: _History) -> None:
        super().__init__()
        self._plans, self._turns, self.past = plans, turns, past
        self.size = len(plans)
        self.engine: _Recorder

    @asynccontextmanager
    async def opened(
        self, human: Human, ask: Answerer
    ) -> AsyncIterator[AsyncGenerator[Start, None]]:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="agentrt-")))
            self._file = folder / "learned"
            starts = [
                await stack.enter_async_context(plan.opened(human, ask)) for plan in self._plans
            ]
            yield await stack.enter_async_context(aclosing(self._all_of(starts)))

    async def _all_of(
        self, starts: Sequence[AsyncGenerator[Start, None]]
    ) -> AsyncGenerator[Start, None]:
        for turn in range(self._turns):
            if turn:
                await self.engine.begin_anew(self._ours() if turn % 2 else STOCK)
            self._left, self._over = self.size, asyncio.Event()
            for number, one in enumerate(starts, 1):
                yield replace(await anext(one), durable=Durable(number))
            await self._over.wait()

    def _ours(self) -> SchedulerConfig:
        self.past.open(self.engine.info.history_key)
        return SchedulerConfig(history=str(self.past.file or self._file))

    async def after(self, start: Start, run: Run) -> Start | None:
        self._left -= 1
        if not self._left:
            self._over.set()
        return None


class _Recorder(ForwardingExecutor):
    """The engine, which keeps the tokens of its calls and what programs came to."""

    def __init__(self, inner: engine.VLLMEngine) -> None:
        super().__init__(inner)
        self._engine = inner
        self.tokens: dict[str, tuple[Sequence[int], Sequence[int]]] = {}
        self.totals: list[ProgramTotals] = []

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        async with aclosing(super().generate(call, stream=stream)) as chunks:
            async for chunk in chunks:
                if chunk.reply is not None:
                    prompt = call.spec.prompt_token_ids or ()
                    self.tokens[call.call_id] = prompt, chunk.reply.token_ids
                yield chunk

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        if totals is not None:
            self.totals.append(totals)
        await super().end_program(program_id, totals)

    async def begin_anew(self, order: SchedulerConfig) -> None:
        """With no call to be computed, under another order, with an empty cache."""
        await self._engine.configure(order)
        await self._engine.forget_prefixes()
