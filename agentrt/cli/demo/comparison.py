"""What the demo's rounds came to: who ended when, the means, and in words what is seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrt.cli.demo.rounds import Rounds
from agentrt.cli.tables import split_wall
from agentrt.runtime.run import Run

_EVEN = 0.01
"""A mean that differs by less than this share is called the same."""
_MARKS = (("█", "green"), ("▒", "yellow"), ("░", "blue"), (" ", ""))
"""Of a program that computes, waits, uses a tool, does something else: as `split_wall` has them."""
_LEAST_BAR, _MOST_BAR = 6, 24
_BESIDE_BARS = 8 + 3 * 8
"""Characters of a row that are not bars: a name, and the seconds of each order, with their gaps."""
SHORT, LONG = "lookup", "report"


@dataclass(frozen=True, slots=True)
class Means:
    """Seconds from a program's start to its end: the means of short programs, of long ones and of
    all, and the mean over the rounds of the longest.
    """

    short: float
    long: float
    all: float
    longest: float

    @classmethod
    def of(cls, rounds: Sequence[Sequence[Run]]) -> Means:
        """Return the means over all programs of these rounds."""
        runs = [run for each in rounds for run in each]
        short, long = (
            fmean(seconds(run) for run in runs if run.type == kind) for kind in (SHORT, LONG)
        )
        longest = fmean(max(map(seconds, each)) for each in rounds)
        return cls(short, long, fmean(map(seconds, runs)), longest)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The means of both orders, of which stock's had ``stock_rounds`` rounds. ``chance`` is how far
    two rounds of one order differ, as a share: a smaller difference between the orders says
    nothing.
    """

    stock: Means
    first: Means
    known: Means
    chance: float = _EVEN
    stock_rounds: int = 1

    @classmethod
    def of(cls, rounds: Rounds) -> Comparison:
        """Compare the rounds. The first and the last round of stock's order give the chance."""
        first, *_, last = (Means.of([each]).all for each in [*rounds.stock, *rounds.stock])
        return cls(
            stock=Means.of(rounds.stock),
            first=Means.of([rounds.first]),
            known=Means.of([rounds.known]),
            chance=max(_EVEN, abs(last / first - 1)),
            stock_rounds=len(rounds.stock),
        )

    def sentences(self) -> Iterator[str]:
        """Yield what is seen: of the first run, of the next one, and how much of it is chance."""
        for name, means in (
            ("First run, while agentrt knows nothing of these programs", self.first),
            ("Once agentrt knows both kinds of programs", self.known),
        ):
            yield f"{name}: {self._verdict(means.all)} {self._parts(means)}"
        if self.stock_rounds > 1:
            most = "at most " if self.chance == _EVEN else ""
            yield (
                f"Stock's order ran {self.stock_rounds} times (the first is drawn above), and its "
                f"means differ by {most}{self.chance:.0%}: a smaller difference counts as chance."
            )

    def _verdict(self, mean: float) -> str:
        stock, change = self.stock.all, mean / self.stock.all - 1
        takes = f"A program takes {mean:.1f} s on average"
        if abs(change) <= self.chance:
            return f"nothing is gained. {takes}, and {stock:.1f} s in stock's order."
        verdict, word = ("a gain", "less") if change < 0 else ("a loss", "more")
        than = f"{abs(change):.0%} {word} than the {stock:.1f} s in stock's order"
        return f"{verdict}. {takes}, {than}."

    def _parts(self, means: Means) -> str:
        short = self._end(means.short / self.stock.short - 1)
        long = self._end(means.long / self.stock.long - 1)
        longest = self._end(means.longest / self.stock.longest - 1)
        return f"Short programs end {short}, long ones {long}, and the last of all {longest}."

    def _end(self, change: float) -> str:
        if abs(change) <= _EVEN:
            return "at the same time"
        end = f"{abs(change):.0%} {'sooner' if change < 0 else 'later'}"
        return f"{end} (chance)" if abs(change) <= self.chance else end


def seconds(run: Run) -> float:
    """Return how long a run that has ended took."""
    assert run.ended_at is not None
    return run.ended_at - run.started_at


def print_comparison(rounds: Rounds) -> None:
    """Print on stdout who ended when under each order, the means, and what is seen."""
    compared = Comparison.of(rounds)
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


_COLUMNS = ("stock vLLM's\norder", "agentrt,\nfirst run", "agentrt,\nkinds known")


def _table(first: str, *, figures: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right" if figures else "left", no_wrap=True)
    return table


def _ends(rounds: Rounds, width: int) -> Table:
    """A row per program: when it ends under each order, and its course till then."""
    each = (rounds.stock[0], rounds.first, rounds.known)
    cells = max(_LEAST_BAR, min(_MOST_BAR, (width - _BESIDE_BARS) // len(each)))
    cell_s = max(seconds(run) for runs in each for run in runs) / cells
    table = _table("seconds", figures=False)
    for runs in zip(*each, strict=True):
        ends = (Text(f"{seconds(run):5.1f} ").append_text(_bar(run, cell_s)) for run in runs)
        table.add_row(runs[0].id, *ends)
    return table


def _legend() -> Text:
    text = Text("Until each program has ended:  ")
    for (mark, colour), name in zip(_MARKS, ("computes", "waits", "uses a tool"), strict=False):
        text.append(mark, colour).append(f" {name}  ")
    text.rstrip()
    return text


def _bar(run: Run, cell_s: float) -> Text:
    """Return a run's course: a character for each ``cell_s`` seconds, by what took most of them."""
    bar = Text()
    for number in range(max(1, round(seconds(run) / cell_s))):
        begin = run.started_at + number * cell_s
        shares = split_wall(run.dag, begin, begin + cell_s)
        bar.append(*_MARKS[shares.index(max(shares))])
    return bar


_ROWS = {
    f"short ({SHORT})": "short",
    f"long ({LONG})": "long",
    "all": "all",
    "the longest one": "longest",
}


def _means(compared: Comparison) -> Table:
    table = _table("mean seconds", figures=True)
    for label, part in _ROWS.items():
        stock = getattr(compared.stock, part)
        ours = (getattr(means, part) for means in (compared.first, compared.known))
        table.add_row(label, f"{stock:.1f}", *(_beside(mean, stock) for mean in ours))
    return table


def _beside(mean: float, stock: float) -> str:
    percent = round(100 * (mean / stock - 1))
    return f"{mean:.1f} ({percent:+d}%)" if percent else f"{mean:.1f} (same)"
