"""The demo's rounds: runs of its programs under one order of calls, when each program ended, the
means, and a verdict in words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrt.cli.demo.programs import lookup, report
from agentrt.cli.tables import split_wall
from agentrt.program import Program
from agentrt.runtime import Runtime
from agentrt.runtime.durable import Durable
from agentrt.runtime.run import Run
from agentrt.scheduler.config import SchedulerConfig

SLOTS = 4
"""Number of calls that the engine computes at the same time."""
LONG_PROGRAMS, SHORT_PROGRAMS = 3, 5
PROGRAMS: Sequence[Program] = [*[report] * LONG_PROGRAMS, *[lookup] * SHORT_PROGRAMS]
"""The programs that start together in each round, in this order."""
STOCK = SchedulerConfig("fcfs", retention="lru", admission="off")
"""Stock vLLM's order: first come, first served."""
OURS = SchedulerConfig.of_policy(history=None)
"""agentrt's defaults, without the history of earlier commands on this machine."""


class ConfigurableEngine(Protocol):
    """An engine whose order of calls can be changed between rounds."""

    async def configure(self, config: SchedulerConfig, /) -> None:
        """Change the order, and forget the statistics of programs."""

    async def forget_prefixes(self) -> None:
        """Empty the prefix cache."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """The runs of each round, by the order of calls: ``stock`` is stock vLLM's order, ``first`` is
    agentrt's order without statistics of the programs, and ``known`` is agentrt's order once it has
    such statistics.
    """

    stock: Sequence[Sequence[Run]]
    first: Sequence[Sequence[Run]]
    known: Sequence[Sequence[Run]]


Show = Callable[[str, Sequence[Run]], None]
"""A function that shows a round. It is called when the round has started, with the name and the
runs of the round.
"""


async def watched(runtime: Runtime, show: Show) -> list[Run]:
    """Run the programs once, and return their runs. Raises the error of a program that fails."""
    return await _play(runtime, PROGRAMS, "agentrt's order, first run", show)


async def both_orders(
    runtime: Runtime,
    engine: ConfigurableEngine,
    *,
    noisy: bool = False,
    show: Show = lambda name, runs: None,
) -> Rounds:
    """Run the programs once under stock's order, then twice under agentrt's order: a first run, and
    a run in which agentrt knows both types of programs.

    A ``noisy`` engine takes real time. On such an engine two programs warm the engine up first.
    Then the three rounds run twice. A last round has stock's order, so that stock's order runs both
    before and after agentrt's. Raises the error of a program that fails.
    """
    cycle: list[tuple[str, SchedulerConfig | None]] = [
        ("stock vLLM's order", STOCK),
        ("agentrt's order, first run", OURS),
        ("agentrt's order, types known", None),
    ]
    orders = [*cycle, *cycle, cycle[0]] if noisy else cycle
    if noisy:
        await _play(runtime, [report, lookup], "warming up", show)
    each = list[list[Run]]()
    for number, (name, order) in enumerate(orders, 1):
        if order is not None:
            await engine.configure(order)
        await engine.forget_prefixes()
        title = f"round {number} of {len(orders)}: {name}"
        each.append(await _play(runtime, PROGRAMS, title, show))
    return Rounds(each[0::3], each[1::3], each[2::3])


async def _play(runtime: Runtime, programs: Sequence[Program], name: str, show: Show) -> list[Run]:
    # Each round uses the same ids, because the simulated engine derives its answers from them.
    runs = [runtime.start(each, durable=Durable(number)) for number, each in enumerate(programs, 1)]
    show(name, runs)
    await asyncio.wait([run.task for run in runs if run.task is not None])
    for run in runs:
        await run.wait()
    return runs


# -- results -----------------------------------------------------------------------------


_EVEN = 0.03
"""Two values that differ by less than this share count as equal. A microsecond decides which of two
calls with equal priority runs first, and this decision alone changes a mean by up to 2%.
"""
_MARKS = (("█", "green"), ("▒", "yellow"), ("░", "blue"), (" ", ""))
"""The characters and colours of a bar's parts, in the order of `split_wall`: computing, waiting,
using a tool, anything else.
"""
_LEAST_BAR, _MOST_BAR = 6, 24
_BESIDE_BARS = 8 + 3 * 8
"""Number of characters of a row besides its bars: the name, the seconds under each order, and the
space between columns.
"""
_SHORT, _LONG = "lookup", "report"


@dataclass(frozen=True, slots=True)
class Means:
    """The durations of a round's programs, in seconds: the means over the short, the long and all
    programs, and the longest duration.
    """

    short: float
    long: float
    all: float
    longest: float

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Means:
        """Return the means over the programs of a round."""
        short, long = (
            fmean(seconds(run) for run in runs if run.type == kind) for kind in (_SHORT, _LONG)
        )
        took = [seconds(run) for run in runs]
        return cls(short, long, fmean(took), max(took))


@dataclass(frozen=True, slots=True)
class Change:
    """A mean duration under agentrt's order compared with stock's, in seconds.

    The change is ``sure`` if all rounds of one order are shorter than all rounds of the other
    order; otherwise the change may be chance.
    """

    stock: float
    ours: float
    sure: bool

    @classmethod
    def of(cls, stock: Sequence[float], ours: Sequence[float]) -> Change:
        """Compare the mean durations of the rounds under both orders."""
        apart = max(ours) < min(stock) or min(ours) > max(stock)
        return cls(fmean(stock), fmean(ours), apart)

    @property
    def share(self) -> float:
        """The change relative to stock's order: 0.1 means 10% more, -0.1 means 10% less."""
        return self.ours / self.stock - 1

    @property
    def is_even(self) -> bool:
        """Whether the values under both orders count as equal."""
        return abs(self.share) < _EVEN


@dataclass(frozen=True, slots=True)
class DemoComparison:
    """The means of each round, for stock's order and for agentrt's first and later runs."""

    stock: Sequence[Means]
    first: Sequence[Means]
    known: Sequence[Means]

    @classmethod
    def of(cls, rounds: Rounds) -> DemoComparison:
        """Compute the means of each round."""
        stock, first, known = (
            [Means.of(runs) for runs in each] for each in (rounds.stock, rounds.first, rounds.known)
        )
        return cls(stock, first, known)

    def change(self, part: str, rounds: Sequence[Means]) -> Change:
        """Compare the field ``part`` of the means between ``rounds``, which ran in agentrt's order,
        and the rounds in stock's order.
        """
        stock, ours = ([getattr(each, part) for each in of] for of in (self.stock, rounds))
        return Change.of(stock, ours)

    def sentences(self) -> Iterator[str]:
        """Yield the verdicts on the first run and on later runs, and a note about chance."""
        for name, rounds in (
            ("First run, while agentrt knows nothing of these programs", self.first),
            ("Once agentrt knows both types of programs", self.known),
        ):
            yield f"{name}: {_verdict(self.change('all', rounds))} {self._parts(rounds)}"
        if len(self.stock) > 1:
            yield (
                f"Stock's order ran in {len(self.stock)} rounds, and agentrt's order in "
                f"{len(self.first)} first runs and {len(self.known)} runs with known types. The "
                "table with a row for each program shows the first round of each; the means are "
                "over all rounds. A difference counts as chance unless all rounds agree on it."
            )

    def _parts(self, rounds: Sequence[Means]) -> str:
        short, long, longest = (
            _end(self.change(part, rounds)) for part in ("short", "long", "longest")
        )
        return f"Short programs end {short}, long programs {long}, and the last program {longest}."


def _verdict(change: Change) -> str:
    takes = f"A program takes {change.ours:.1f} s on average"
    if change.is_even or not change.sure:
        return f"no gain. {takes}, and {change.stock:.1f} s under stock's order."
    verdict, word = ("a gain", "less") if change.share < 0 else ("a loss", "more")
    than = f"{abs(change.share):.0%} {word} than the {change.stock:.1f} s under stock's order"
    return f"{verdict}. {takes}, {than}."


def _end(change: Change) -> str:
    if change.is_even:
        return "at the same time"
    end = f"{abs(change.share):.0%} {'sooner' if change.share < 0 else 'later'}"
    return end if change.sure else f"{end} (chance)"


def seconds(run: Run) -> float:
    """Return the duration of a run that has ended, in seconds."""
    assert run.ended_at is not None
    return run.ended_at - run.started_at


def print_comparison(rounds: Rounds) -> None:
    """Print when each program ended under each order, the means, and the verdicts, on stdout."""
    compared = DemoComparison.of(rounds)
    console = Console(markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        console.print(_legend())
        console.print(_ends(rounds, console.width))
        console.print()
        console.print(_means(compared))
        console.print()
        for sentence in compared.sentences():
            console.print(sentence)
    click.echo(captured.get(), nl=False, color=True)


_COLUMNS = ("stock vLLM's\norder", "agentrt,\nfirst run", "agentrt,\ntypes known")


def _table(first: str, *, figures: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right" if figures else "left", no_wrap=True)
    return table


def _ends(rounds: Rounds, width: int) -> Table:
    """Make a table with a row for each program: when it ended, and how it spent its time."""
    each = (rounds.stock[0], rounds.first[0], rounds.known[0])
    cells = max(_LEAST_BAR, min(_MOST_BAR, (width - _BESIDE_BARS) // len(each)))
    cell_s = max(seconds(run) for runs in each for run in runs) / cells
    table = _table("seconds", figures=False)
    for runs in zip(*each, strict=True):
        ends = (Text(f"{seconds(run):5.1f} ").append_text(_bar(run, cell_s)) for run in runs)
        table.add_row(runs[0].id, *ends)
    return table


def _legend() -> Text:
    text = Text("Seconds from start to end:  ")
    for (mark, colour), name in zip(_MARKS, ("computes", "waits", "uses a tool"), strict=False):
        text.append(mark, colour).append(f" {name}  ")
    text.rstrip()
    return text


def _bar(run: Run, cell_s: float) -> Text:
    """Draw how a run spent its time. Each character stands for ``cell_s`` seconds, and shows
    the activity that took most of this time.
    """
    bar = Text()
    for number in range(max(1, round(seconds(run) / cell_s))):
        begin = run.started_at + number * cell_s
        shares = split_wall(run.dag, begin, begin + cell_s)
        bar.append(*_MARKS[shares.index(max(shares))])
    return bar


_ROWS = {
    f"short ({_SHORT})": "short",
    f"long ({_LONG})": "long",
    "all": "all",
    "longest": "longest",
}


def _means(compared: DemoComparison) -> Table:
    table = _table("mean seconds", figures=True)
    for label, part in _ROWS.items():
        both = [compared.change(part, each) for each in (compared.first, compared.known)]
        table.add_row(label, f"{both[0].stock:.1f}", *map(_beside, both))
    return table


def _beside(change: Change) -> str:
    percent = round(100 * change.share)
    return f"{change.ours:.1f} ({percent:+d}%)" if percent else f"{change.ours:.1f} (same)"
