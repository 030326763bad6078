"""Code that benchmarks share: printing results after an early end, tables, turns and ratios."""

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
"""The format of a column of whole numbers."""


Figures = Mapping[str, float]
"""The measurements of one side in one repeat, by name; NaN for a figure that the side lacks."""
SPREAD = "{:.2f} ({:.2f}-{:.2f})"


def run_shown(
    work: Coroutine[Any, Any, object], report: Callable[[], None], progress: Progress = note
) -> None:
    """Run a benchmark's ``work``, and call ``report`` at its end, also after an error or a signal.

    Raises `StoppedError` if a signal stopped the work.
    """
    first = threading.Lock()

    def once() -> None:
        if first.acquire(blocking=False):
            report()

    def last_words(text: str) -> None:
        once()  # report first, because servers may take longer to stop than a signal allows
        progress(text)

    try:
        Interrupts(last_words).run(work)
    finally:
        once()


class Column(NamedTuple):
    """A column of a table: its head, the name of the figure, and the format of its median, least
    and greatest value.

    In the format, ``{total}`` is the sum over the repeats. ``unknown`` is shown for an unknown
    figure.
    """

    head: str
    name: str
    form: str = SPREAD
    unknown: str = ""


class Results:
    """The figures of each repeat by key. A key is a side, or a side and a size.

    ``keys`` maps the JSON names of a key's parts to the heads of the first columns of tables.
    """

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._keys = keys
        self.samples: dict[tuple[object, ...], list[Figures]] = {}

    def expect(self, keys: Iterable[tuple[object, ...]]) -> None:
        """Show these keys in this order, independent of the order of measurement."""
        self.samples |= {key: [] for key in keys}

    def add(self, *key: object, figures: Figures) -> None:
        self.samples.setdefault(key, []).append(figures)

    def values(self, key: tuple[object, ...], name: str) -> list[float]:
        """Return a figure in each repeat; empty if it is unknown in any."""
        figures = [sample.get(name, math.nan) for sample in self.samples[key]]
        return [] if any(map(math.isnan, figures)) else figures

    def table(self, columns: Sequence[Column]) -> str:
        """Return a Markdown table with a row for each measured key; "" if there is none."""
        head = (*self._keys.values(), *(column.head for column in columns))
        rows = [
            (*key, *(self._cell(key, column) for column in columns)) for key in self._measured()
        ]
        return markdown(head, rows) if rows else ""

    def medians(self, *, spread: bool = False) -> list[dict[str, Any]]:
        """Return the median of every known figure by key, as JSON values; with ``spread``, the
        least and the greatest value of each, too.
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
        return {key: samples for key, samples in self.samples.items() if samples}

    def _cell(self, key: tuple[object, ...], column: Column) -> str:
        values = self.values(key, column.name)
        if not values:
            return column.unknown
        spread = statistics.median(values), min(values), max(values)
        return column.form.format(*spread, total=sum(values))


def show(tables: str | Sequence[str], medians: Any, *, as_json: bool = False) -> None:
    """Print tables, and with ``as_json`` their medians as one JSON line. Print nothing if there are
    no tables.
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
    """Run a benchmark's ``work``, and print its results, also after an error or a signal."""

    def print_table() -> None:
        show(measured.table(columns), measured.medians(spread=True), as_json=as_json)

    run_shown(work, print_table)


def in_turns(sides: Sequence[T], repeats: int) -> Iterator[tuple[int, T]]:
    """Yield each repeat with each side. The order of the sides alternates with the repeats."""
    return ((repeat, side) for repeat in range(repeats) for side in turns(sides, repeat))


def ratios(
    mine: Figures, base: Figures, names: Sequence[str], suffix: str, of: str = ""
) -> Figures:
    """Return the ratios of figures to those of ``base`` in the same repeat.

    The names of ratios end in ``suffix``; those of the figures end in ``of``.
    """
    return {f"{name}{suffix}": mine[f"{name}{of}"] / base[f"{name}{of}"] for name in names}


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Disable Python's garbage collector, whose pauses would disturb the measurements."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile of values, by nearest rank. ``share`` is from 0 to 1."""
    ranked = sorted(values)
    at = max(0, -(-int(share * 1000) * len(ranked) // 1000) - 1)
    return ranked[min(at, len(ranked) - 1)]
