"""What benchmarks share: an end that keeps what is done, one table writer, turns, ratios."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import statistics
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import click

from agentrt.cli.signals import Interrupts
from agentrt.executors.base import Progress
from agentrt.lab.commands.options import note
from agentrt.lab.reports.tables import markdown
from agentrt.lab.runs.grid import turns

T = TypeVar("T")
WHOLE = "{:.0f}"
"""The form of a column of whole numbers."""


Figures = Mapping[str, float]
"""What was measured on one side in one repeat, by name; NaN where a side does not know."""
SPREAD = "{:.2f} ({:.2f}-{:.2f})"


def run_shown(
    work: Coroutine[Any, Any, object], report: Callable[[], None], progress: Progress = note
) -> None:
    """Run a benchmark's ``work``. ``report`` prints what was measured, however the work ends.

    Raises `StoppedError` where a signal stopped it.
    """
    first = threading.Lock()

    def once() -> None:
        if first.acquire(blocking=False):
            report()

    def last_words(text: str) -> None:
        once()  # servers may take longer to stop than a signal leaves
        progress(text)

    try:
        Interrupts(last_words).run(work)
    finally:
        once()


class Column(NamedTuple):
    """A column of a table: its head, the figure, and how its median, least and most are shown.

    ``{total}`` is the figure's sum over the repeats; ``unknown`` stands for one that is not known.
    """

    head: str
    name: str
    form: str = SPREAD
    unknown: str = ""


class Results:
    """The figures of each repeat by key: a side, or a side and a size.

    ``keys`` are the names of a key's parts: in JSON, and over a table's first columns.
    """

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._keys = keys
        self.samples: dict[tuple[object, ...], list[Figures]] = {}

    def expect(self, keys: Iterable[tuple[object, ...]]) -> None:
        """Show these keys in this order, in whichever they are measured."""
        self.samples |= {key: [] for key in keys}

    def add(self, *key: object, figures: Figures) -> None:
        self.samples.setdefault(key, []).append(figures)

    def values(self, key: tuple[object, ...], name: str) -> list[float]:
        """A figure in each repeat; empty where it is not known in all."""
        found = [sample.get(name, math.nan) for sample in self.samples[key]]
        return [] if any(map(math.isnan, found)) else found

    def table(self, columns: Sequence[Column]) -> str:
        """A row per key that was measured, as Markdown; empty where none was."""
        head = (*self._keys.values(), *(column.head for column in columns))
        rows = [(*key, *(self._cell(key, one) for one in columns)) for key in self._measured()]
        return markdown(head, rows) if rows else ""

    def medians(self, *, spread: bool = False) -> list[dict[str, Any]]:
        """The median of every known figure by key, for a program to read; with ``spread`` the least
        and the most of each beside them.
        """
        return [
            dict(zip(self._keys, key, strict=True)) | self._figures(key, spread=spread)
            for key in self._measured()
        ]

    def _figures(self, key: tuple[object, ...], *, spread: bool) -> dict[str, Any]:
        names = self.samples[key][0]
        known = {name: values for name in names if (values := self.values(key, name))}
        figures: dict[str, Any] = {
            name: statistics.median(values) for name, values in known.items()
        }
        if spread:
            figures["spread"] = {name: [min(v), max(v)] for name, v in known.items()}
        return figures

    def _measured(self) -> dict[tuple[object, ...], list[Figures]]:
        return {key: some for key, some in self.samples.items() if some}

    def _cell(self, key: tuple[object, ...], column: Column) -> str:
        values = self.values(key, column.name)
        if not values:
            return column.unknown
        spread = statistics.median(values), min(values), max(values)
        return column.form.format(*spread, total=sum(values))


def show(tables: str | Sequence[str], medians: Any, *, as_json: bool = False) -> None:
    """Print tables, and with ``--json`` their medians as one line; nothing if nothing was
    measured.
    """
    each = [tables] if isinstance(tables, str) else tables
    if not (text := "\n\n".join(filter(None, each))):
        return
    click.echo(text)
    if as_json:
        click.echo(json.dumps(medians))


def run_with_table(
    work: Coroutine[Any, Any, object],
    measured: Results,
    columns: Sequence[Column],
    *,
    as_json: bool,
) -> None:
    """Run a benchmark's ``work``, and print what it ``measured``, however it ends."""

    def print_table() -> None:
        show(measured.table(columns), measured.medians(spread=True), as_json=as_json)

    run_shown(work, print_table)


def in_turns(sides: Sequence[T], repeats: int) -> Iterator[tuple[int, T]]:
    """Each repeat with each side, in the order of the repeat."""
    return ((repeat, side) for repeat in range(repeats) for side in turns(sides, repeat))


def ratios(
    mine: Figures, base: Figures, names: Sequence[str], suffix: str, of: str = ""
) -> Figures:
    """Figures over those of ``base`` in the same repeat, under their names with ``suffix``.

    ``of`` ends the names that the figures themselves have.
    """
    return {f"{name}{suffix}": mine[f"{name}{of}"] / base[f"{name}{of}"] for name in names}


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Keep Python's garbage collector out: it would charge its pauses to whoever is at hand."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of the values do not exceed, by nearest rank."""
    ranked = sorted(values)
    at = max(0, -(-int(share * 1000) * len(ranked) // 1000) - 1)
    return ranked[min(at, len(ranked) - 1)]
