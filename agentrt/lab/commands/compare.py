"""``agentrt compare``: compares stock vLLM's order of calls with agentrt's on a user's programs.

The report is a text, JSON values, and an animated SVG drawing. Without animation, the drawing shows
its last state.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import asdict, replace
from html import escape
from itertools import groupby
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import click

from agentrt import engines
from agentrt.cli.engine_log import opened_output
from agentrt.cli.execute import Job, execute
from agentrt.cli.human import Human
from agentrt.cli.journal_text import aligned
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
from agentrt.cli.streams import counted, say, show_json
from agentrt.cli.values import check_output, read_input
from agentrt.errors import UsageError
from agentrt.executors.base import Chunk, ForwardingExecutor
from agentrt.executors.history import NONE, HistoryFile, Values
from agentrt.executors.history import read as read_history
from agentrt.executors.history_folder import history_file
from agentrt.executors.vllm.options import EngineOptions, check_model
from agentrt.interrupts.questions import Answerer
from agentrt.journal.analysis.shares import shares_of
from agentrt.journal.analysis.wall import EVENT, HUMAN, OWN, TOOL
from agentrt.journal.analysis.why import ALONE
from agentrt.lab.commands.options import SIZES, silence_vllm, write
from agentrt.lab.commands.progress import Meter
from agentrt.lab.reports.tables import Spread
from agentrt.lab.runs.comparison import (
    NOTHING,
    STOCK,
    ComparedHistory,
    Comparison,
    ProgramRun,
    fitted,
    latencies,
    metrics,
    read,
    replay,
)
from agentrt.lab.runs.machine import Machine
from agentrt.request import Call
from agentrt.request.spans import ADMISSION, PREEMPTED, QUEUED
from agentrt.runtime.durable import Durable
from agentrt.runtime.run import Run, RunState
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import make_policy
from agentrt.scheduler.table import ProgramTotals

_NAMES = "stock", "agentrt"
_TITLES = "stock vLLM", "agentrt"
_WAITS, _OUTSIDE = (QUEUED, ADMISSION, PREEMPTED), (TOOL, HUMAN, EVENT, OWN)
_NAMED = 5
"""Maximum number of programs that are named in a message."""
_MEASURES = {"mean": "mean_jct_s", "median": "median_jct_s", "P95": "p95_jct_s"}


def _report_text(comparison: Comparison) -> str:
    """Return the report: the times of the programs, where the time went, and what is gained."""
    both, names = comparison.typical, ["run"]
    for name in _TITLES:
        names += [f"{name}, s", "waiting, s", "mostly behind"]
    programs = [(a.shape.program_id, *_line(a), *_line(b)) for a, b in zip(*both, strict=True)]
    sums = [_seconds(run) for run in both]
    reasons = [reason for reason in ALONE if any(side[reason] for side in sums)]
    shares = [(ALONE[reason], *(side[reason] for side in sums)) for reason in reasons]
    sides = [metrics(run) for run in both]
    at_first = "with the earlier history" if comparison.learned.known else "the first time"
    heads = ["change once learned", f"change {at_first}"]
    if comparison.learned.known and not comparison.learned.new:
        heads = ["change"]  # agentrt knew all programs: it has nothing to learn from these runs
    ends = [
        (name, *(side[of] for side in sides), *_changes(comparison, of)[: len(heads)])
        for name, of in _MEASURES.items()
    ]
    tables = (
        [names, *programs],
        [("seconds of all runs, by reason", *_TITLES), *shares],
        [("seconds from start to end of a run", *_TITLES, *heads), *ends],
    )
    ratio, first = (median(ratios) for ratios in comparison.both_ratios())
    verdict = "no gain" if comparison.verdict == NOTHING else comparison.verdict
    than = _than(ratio)
    if comparison.verdict != NOTHING and _percent(ratio) == "0%":
        than = f"less than 1% {'less' if ratio < 1 else 'more'} time than"
    gained = f"{verdict}: on average, a run takes {than} under stock vLLM"
    if len(heads) > 1:
        gained += f" once agentrt has seen the programs, and {_than(first)} under stock vLLM "
        gained += at_first
    rule = ""
    if comparison.off or (comparison.verdict == NOTHING and _percent(ratio) != "0%"):
        rule = "; a change counts only if every pair of runs has it"
    if comparison.off:
        off = (
            f"{comparison.off:.0%}"
            if comparison.off >= 0.01
            else f"{max(0.001, comparison.off):.1%}"
        )
        rule += f" by more than {off}, because the replay of stock's order differs "
        rule += "by that much from the times that were measured"
    parts = ["\n".join(aligned(table)) for table in tables]
    return "\n\n".join([*parts, f"{gained}{rule}\n{_history_text(comparison.learned)}"])


def _changes(comparison: Comparison, measure: str) -> list[str]:
    return list(map(_change, comparison.both_ratios(measure)))


def _change(ratios: Sequence[float]) -> str:
    """Return the median change, with the least and the greatest in brackets: -26% is 26% less."""
    spread = Spread.of(ratios)
    median, least, most = map(_percent, (spread.median, spread.least, spread.most))
    return f"{median} ({least} to {most})"


def _percent(ratio: float) -> str:
    percent = round(100 * ratio - 100)
    return f"{percent:+}%" if percent else "0%"


def _than(ratio: float) -> str:
    percent = round(100 * ratio - 100)
    if percent == 0:
        return "the same time as"
    return f"{abs(percent)}% {'less' if percent < 0 else 'more'} time than"


def _history_text(learned: ComparedHistory) -> str:
    """Return a text that says which history the comparison started with, and where the history is
    saved.
    """
    if not learned.known:
        saved = "nothing is saved" if learned.file is None else f"it is now saved in {learned.file}"
        return f"agentrt had no history of these programs; {saved}"
    text = f"agentrt knew {', '.join(learned.known)} from {learned.file}"
    text += f", but not {', '.join(learned.new)}" if learned.new else ""
    return f"{text}; --history none ignores that file"


def _line(program: ProgramRun) -> tuple[float, float, str]:
    """Return the latency of a program, its waiting time, and the name of the program for which it
    waited the longest: "its own calls" for the program itself, and "" if it waited for none.
    """
    waits = [share for share in shares_of(program.pieces()) if share.reason in _WAITS]
    blames = sorted((blame for share in waits for blame in share.by), key=lambda by: by.seconds)
    name = blames[-1].program if blames else ""
    waited = sum(share.seconds for share in waits)
    return program.latency_s, waited, "its own calls" if name == program.shape.program_id else name


def _seconds(run: Sequence[ProgramRun]) -> Mapping[str, float]:
    seconds = defaultdict[str, float](float)
    for piece in (piece for program in run for piece in program.pieces()):
        seconds[piece.reason] += piece.seconds
    return seconds


def values(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as JSON values, with all programs of the typical pair of runs."""
    sides = [metrics(run) for run in comparison.typical]
    result: dict[str, Any] = {"verdict": comparison.verdict, "off": comparison.off}
    result["history"] = asdict(comparison.learned)
    result["metrics"] = dict(zip(_NAMES, sides, strict=True))
    for name, of in _MEASURES.items():
        result[name] = dict(zip(("ratios", "first"), comparison.both_ratios(of), strict=True))
    for name, run in zip(_NAMES, comparison.typical, strict=True):
        result[name] = [
            {
                "id": program.shape.program_id,
                "type": program.shape.type,
                "seconds": program.latency_s,
            }
            | {"reasons": [asdict(share) for share in shares_of(program.pieces())]}
            for program in run
        ]
    return result


# -- the drawing ---------------------------------------------------------------------------

_LEFT, _WIDE, _APART, _ROW, _TOP = 90, 320, 60, 22, 62
_COLOURS = {"waits for others": "#e0a030", "computes": "#3b6fb6", "tools, own code": "#c9ced6"}
_STYLE = """text{font:13px system-ui,sans-serif;fill:#24292f}
.cover{fill:#fff;opacity:0;transform-box:fill-box;transform-origin:right;
animation:play 10s linear infinite}
@keyframes play{0%{opacity:1}70%{opacity:1;transform:scaleX(0)}100%{transform:scaleX(0)}}
@media(prefers-reduced-motion:reduce){.cover{animation:none}}"""


def _drawing(comparison: Comparison) -> str:
    """Return an SVG drawing of the typical pair of runs, side by side: for each program, the times
    when it waits, computes and is outside the engine, and the time of its end.
    """
    width, height = _LEFT + 2 * (_WIDE + _APART), _TOP + _ROW * len(comparison.typical[0]) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        f'<style>{_STYLE}</style><rect width="100%" height="100%" rx="6" fill="#fff"/>',
    ]
    for number, (name, colour) in enumerate(_COLOURS.items()):
        at = _LEFT + 150 * number
        parts.append(f'<rect x="{at}" y="9" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{at + 18}" y="20">{name}</text>')
    for row, program in enumerate(comparison.typical[0]):
        parts.append(
            f'<text x="8" y="{_TOP + _ROW * row + 15}">{escape(program.shape.program_id)}</text>'
        )
    scale = _WIDE / max(program.ended for run in comparison.typical for program in run)
    for at, name, run in zip(
        (_LEFT, _LEFT + _WIDE + _APART), _NAMES, comparison.typical, strict=True
    ):
        mean = f"{name}: {fmean(latencies(run)):.1f} s on average"
        parts.append(f'<text x="{at}" y="{_TOP - 12}">{mean}</text>')
        for row, program in enumerate(run):
            parts += _bars(program, at, _TOP + _ROW * row, scale)
        size = f'width="{_WIDE + _APART}" height="{_ROW * len(run)}"'
        parts.append(f'<rect class="cover" x="{at}" y="{_TOP}" {size}/>')
    return "\n".join([*parts, "</svg>\n"])


def _bars(program: ProgramRun, left: int, top: int, scale: float) -> Iterator[str]:
    waits, computes, outside = _COLOURS.values()
    colours = dict.fromkeys(_WAITS, waits) | dict.fromkeys(_OUTSIDE, outside)
    for colour, group in groupby(
        program.pieces(), lambda piece: colours.get(piece.reason, computes)
    ):
        pieces = list(group)
        x, wide = left + scale * pieces[0].since, scale * (pieces[-1].until - pieces[0].since)
        place = f'x="{x:.1f}" y="{top + 2}" width="{wide:.1f}" height="{_ROW - 5}"'
        yield f'<rect {place} fill="{colour}"/>'
    at = f'x="{left + scale * program.ended + 4:.1f}" y="{top + 15}"'
    yield f"<text {at}>{program.ended:.1f} s</text>"


_EPILOG = """\b
Examples:
  agentrt compare mine.py --n 16
  agentrt compare demos/react.py demos/mcts.py --n 4 --plot ends.svg
  agentrt compare graph.py --input "Plan a tea" --input "Plan a feast"
  agentrt compare graph.py="Plan a tea" tools.py:search mine.py=@goal.txt
  agentrt compare mine.py --real -- --max-model-len 4096

\b
By default the programs run once on the engine, in stock's order. Then vLLM's real scheduler replays
both orders in virtual time, with step times that are fitted to the run; each repeat starts the
programs in another order. This takes a single run, and nothing differs but the order of calls.
--real runs both orders in turns on the engine, after a run to warm up and a run to learn: 2 x
--repeat + 2 runs. Other work on the machine disturbs these runs, and sampled texts may differ. Use
--real to check the replay.

\b
agentrt learns how long programs are, and saves it for later runs. The main result is measured after
agentrt has seen these programs once. The result beside it is for programs that agentrt has not
seen, or knows only from the history of earlier runs, which the last line names. --history none
ignores earlier runs.
The verdict is a gain (or a loss) if the mean time is shorter (or longer) in every pair of runs, by
more than the error of the replay. Otherwise the verdict is no gain ("nothing" in --json). With 5
pairs, chance alone makes a gain in 1 of 32 comparisons.
Exit codes: those of agentrt run.
"""
_ALONE = {"thread": None, "checkpointer": None}
_own, _output = Options("Comparison"), Options("Output")


class _Command(RunCommand):
    TARGETS = "PROGRAM.py[:NAME][=INPUT]…"


@click.command(cls=_Command, epilog=_EPILOG)
@click.argument("targets", metavar="PROGRAM.py[:NAME][=INPUT]…", nargs=-1, required=True)
@_own.count("--n", "Number of instances of each program, which run all at once.", default=8)
@_own.several(
    "--input",
    "inputs",
    "TEXT|JSON|@FILE",
    "Input of each program that has no =INPUT, as for agentrt run. Repeat the option to give each "
    "instance the next input in turn.",
)
@_own.several(
    "--human",
    "answers",
    "TEXT|JSON",
    "Answer to the first question that each program asks a human. Repeat the option for the next "
    "question. Graphs that ask with interrupt() cannot be compared.",
)
@_own.flag("--real", "Run both orders on the engine, without a replay.")
@_own.count("--repeat", "Number of pairs of runs.", least=3, default=5)
@seed_option
@history_option
@model_option
@batch_option
@_output.flag("--json", "Print one JSON object.", "as_json")
@_output.file("--plot", "Draw when each program ends, as an animated .svg file.", dir_okay=True)
def compare(targets: Sequence[str], engine_flags: tuple[str, ...], **options: Any) -> int:
    """Compare stock vLLM's order of calls with agentrt's on your own programs.

    Shows the end of each program, how long and for which program it waits, and what agentrt gains.
    The gain may be nothing: programs that never queue gain nothing.
    """
    check_output("--plot", options["plot"], (".svg",))
    if options["model"] is not None:
        check_model(options["model"])
    if options["history"] not in (None, NONE):
        read_history(Path(options["history"]))
    turns = 2 * options["repeat"] + 2
    past = _History(options["history"])
    plans = _plans(targets, options, turns)
    plan = _Turns(plans, turns if options["real"] else 1, past, options["answers"])
    batch = options["max_num_seqs"]
    settings = EngineOptions(options["model"], batch, scheduler=STOCK, flags=engine_flags)
    return _run(Job(plan, settings, seed=options["seed"], max_live=plan.size), plan, options)


def _run(job: Job, plan: _Turns, options: dict[str, Any]) -> int:
    """Run the programs, print the comparison, and return the exit code."""
    silence_vllm()
    with opened_output(verbose=False) as (log, screen, last_words):
        plan.engine = _Recorder(engines.VLLMEngine(job.options))
        outcome = Interrupts(last_words).run(execute(job, plan.engine, screen, log, Drain()))
        runs = outcome.runs
        if bad := [run for run in runs if run.state is not RunState.DONE]:
            return conclude(job, replace(outcome, runs=bad), screen.console, log, as_json=False)
    turns = [runs[at : at + plan.size] for at in range(0, len(runs), plan.size)]
    each, left_out = read(turns, plan.engine.tokens)
    if left_out:
        names = ", ".join(left_out[:_NAMED]) + ", …" * (len(left_out) > _NAMED)
        say(
            f"left out, because no call was answered in one of their runs: {len(left_out)} of "
            f"{counted(plan.size, 'program')} ({names})"
        )
    past = plan.past
    past.open(plan.engine.info.history_key)
    if options["real"]:
        comparison = Comparison(each[2::2], each[3::2], each[1:2])
    else:
        comparison = _replayed(each[0], outcome.engine["sizes"], options["repeat"], past.values)
        past.add(plan.engine.totals)
    types = dict.fromkeys(program.shape.type for program in each[0])
    comparison = replace(comparison, learned=past.of(types))
    if options["as_json"]:
        show_json(values(comparison))
    else:
        click.echo(_report_text(comparison))
    write(options["plot"], _drawing(comparison) if options["plot"] else "")
    return 0


def _plans(targets: Sequence[str], options: dict[str, Any], turns: int) -> list[Plan]:
    """Return a plan for each instance of each program. The input of an instance is the input of its
    target, or one of the inputs of ``--input``.
    """
    parts = [target.partition("=") for target in targets]
    programs = {name: load_program(name) for name, _, _ in parts}
    shared = options["inputs"] or [None]
    terms = {**options, **_ALONE, "journal": None, "n": turns}
    return [
        plan_of(programs[name], read_input(text if own else shared[number % len(shared)]), terms)
        for number in range(options["n"])
        for name, own, text in parts
    ]


def _replayed(
    run: Sequence[ProgramRun], sizes: Mapping[str, Any], repeats: int, known: Values | None
) -> Comparison:
    sizes = {name: sizes[name] for name in SIZES if name in sizes}
    machine = Machine(step_model=fitted(run), **sizes)
    ours, meter = SchedulerConfig(), Meter(repeats)
    stock, first, again = (list[Sequence[ProgramRun]]() for _ in range(3))
    for repeat in range(repeats):
        stock.append(replay(run, STOCK, machine, repeat)[0])
        begun, learned = replay(run, ours, machine, repeat, known)
        first.append(begun)
        again.append(replay(run, ours, machine, repeat, learned)[0])
        meter.now(repeat + 1)
    off = abs(fmean(latencies(stock[0])) / fmean(latencies(run)) - 1)
    return Comparison(stock, again, first, off)


class _History:
    """The learned history of earlier runs, to which this comparison adds.

    ``named`` is the history's file; with None, it is the file for the engine's model and size, and
    with `NONE` there is no file. ``values`` are the values in the file when it was opened.
    """

    def __init__(self, named: str | None) -> None:
        self._named, self._is_open = named, False
        self.file: Path | None = None
        self.values: Values | None = None

    def open(self, engine_key: str) -> None:
        """Read the named file, or the file of the engine that has this key. Idempotent."""
        if self._is_open:
            return
        self._is_open = True
        self.file = history_file(self._named, engine_key, say)
        if self.file is not None:
            self.values = read_history(self.file)

    def add(self, totals: Sequence[ProgramTotals]) -> None:
        """Learn from programs that ran on the engine, and save the file."""
        if self.file is None:
            return
        policy = make_policy(SchedulerConfig())
        kept = HistoryFile(policy, str(self.file), learns=policy.learns, warn=say)
        for program_totals in totals:
            kept.learn(program_totals)
        kept.save()

    def of(self, types: Iterable[str]) -> ComparedHistory:
        """Return which of these program types had a history, and which were new."""
        rows = [] if self.values is None else self.values["service"]
        seen = {name for _, name, place, *_ in rows if not place}
        known = [name for name in types if name in seen]
        new = [name for name in types if name not in seen]
        return ComparedHistory(None if self.file is None else str(self.file), known, new)


class _Turns(Plan):
    """A plan with several turns. Each turn runs all programs at the same time, alternately in the
    order of stock vLLM and of agentrt.

    The programs have the same ids in each turn, and therefore the same seeds. agentrt's learned
    history is in the file of ``past``, or in a temporary file. ``answers`` are the prepared answers
    to the questions of each program.
    """

    def __init__(
        self, plans: Sequence[Plan], turns: int, past: _History, answers: Sequence[str]
    ) -> None:
        super().__init__(answers=answers)
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
            for number, starts_of_plan in enumerate(starts, 1):
                yield replace(await anext(starts_of_plan), durable=Durable(number))
            await self._over.wait()

    def _ours(self) -> SchedulerConfig:
        self.past.open(self.engine.info.history_key)
        return SchedulerConfig(history=str(self.past.file or self._file))

    async def after(self, start: Start, run: Run) -> Start | None:
        if run.state is RunState.INTERRUPTED:  # at once, and not when all programs have ended
            raise UsageError(
                f"graph run {run.id} asks a human with interrupt(), and agentrt compare cannot "
                "resume graphs; give it an input for which it asks nothing"
            )
        self._left -= 1
        if not self._left:
            self._over.set()
        return None


class _Recorder(ForwardingExecutor):
    """An executor that forwards calls to the engine, and records the tokens of the calls and the
    totals of the programs.
    """

    def __init__(self, inner: engines.VLLMEngine) -> None:
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
        """Set the scheduler's settings ``order``, and empty the prefix cache. No call may be
        running.
        """
        await self._engine.configure(order)
        await self._engine.forget_prefixes()
