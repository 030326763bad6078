"""Code that benchmarks share: tables, turns, ratios, and results that are printed even after an
early end.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import statistics
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from agentrt.cli.options import RunCommand
from agentrt.cli.signals import Interrupts
from agentrt.errors import ConfigError
from agentrt.executors.base import Progress
from agentrt.lab.commands.options import note
from agentrt.lab.reports.tables import markdown

WHOLE = "{:.0f}"
"""The format of a column of whole numbers."""


Figures = Mapping[str, float]
"""The measurements of one side in one repeat, by name. A figure that the side does not have is NaN
or left out.
"""
SPREAD = "{:.2f} ({:.2f}-{:.2f})"


class FlagsCommand(RunCommand):
    """A command whose arguments after ``--`` go to vLLM: ``engine_flags``."""

    TARGETS = ""


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
    """A column of a table: its head, and the value of a row that it shows.

    ``shown`` is a function that returns the text for a row. For rows of `Results` it may be the
    name of a figure instead; then ``form`` formats the figure's median, least and greatest value.
    In the format, ``{total}`` is the sum over the repeats. ``unknown`` is the text of the cell if
    the figure is unknown.
    """

    head: str
    shown: str | Callable[[Any], object]
    form: str = SPREAD
    unknown: str = ""

    def text(self, row: Any) -> object:
        """Return the cell of a row."""
        if callable(self.shown):
            return self.shown(row)
        values = _values(row, self.shown)
        if not values:
            return self.unknown
        spread = statistics.median(values), min(values), max(values)
        return self.form.format(*spread, total=sum(values))


def table(rows: Iterable[Any], *columns: Column) -> str:
    """Return a Markdown table of rows; "" if there is none."""
    texts = [[column.text(row) for column in columns] for row in rows]
    return markdown([column.head for column in columns], texts) if texts else ""


def _values(samples: Sequence[Figures], name: str) -> list[float]:
    """Return the values of a figure in all repeats; empty if the figure is unknown in a repeat."""
    figures = [sample.get(name, math.nan) for sample in samples]
    return [] if any(map(math.isnan, figures)) else figures


class Results:
    """The figures of each repeat by key. A key has one or more parts, such as a side and a size.

    ``keys`` maps the JSON names of a key's parts to the heads of the first columns of tables.
    """

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._keys = keys
        self.samples: dict[tuple[object, ...], list[Figures]] = {}

    def expect(self, keys: Iterable[tuple[object, ...]]) -> None:
        """Set the order in which tables show these keys, independent of the order of
        measurement.
        """
        self.samples |= {key: [] for key in keys}

    def add(self, *key: object, figures: Figures) -> None:
        self.samples.setdefault(key, []).append(figures)

    def table(self, columns: Sequence[Column]) -> str:
        """Return a Markdown table with a row for each measured key; "" if there is none."""
        texts = [
            (*key, *(column.text(samples) for column in columns))
            for key, samples in self._measured().items()
        ]
        head = (*self._keys.values(), *(column.head for column in columns))
        return markdown(head, texts) if texts else ""

    def medians(self, *, spread: bool = False) -> list[dict[str, Any]]:
        """Return the median of every known figure by key, as JSON values; with ``spread``, the
        least and the greatest value of each, too.
        """
        return [
            dict(zip(self._keys, key, strict=True)) | _medians(samples, spread=spread)
            for key, samples in self._measured().items()
        ]

    def _measured(self) -> dict[tuple[object, ...], list[Figures]]:
        return {key: samples for key, samples in self.samples.items() if samples}


def _medians(samples: Sequence[Figures], *, spread: bool) -> dict[str, Any]:
    known = {name: values for name in samples[0] if (values := _values(samples, name))}
    figures: dict[str, Any] = {name: statistics.median(values) for name, values in known.items()}
    if spread:
        figures["spread"] = {name: [min(v), max(v)] for name, v in known.items()}
    return figures


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


def read_json_output(
    path: Path, option: str, benchmark: str, name: str, is_item: Callable[[Any], bool]
) -> list[dict[str, Any]]:
    """Return the list ``name`` of the JSON line in a file with the output of an earlier run of
    ``benchmark`` with ``--json``. ``option`` is the option that names the file.

    Raises `ConfigError` if the file cannot be read, if the list is empty, and if ``is_item``
    returns False or raises an error for an item of the list.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"{option} {str(path)!r} cannot be read: {reason}; name a file"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{option} {str(path)!r} is not UTF-8 text; name a file with the output of --json"
        ) from error
    try:
        items = json.loads([line for line in lines if line.startswith("{")][-1])[name]
        if items and all(map(is_item, items)):
            return list(items)
    except (ValueError, LookupError, TypeError, AttributeError):
        pass
    raise ConfigError(
        f"{option} {str(path)!r} is not the output of `python -m benchmarks {benchmark} --json`; "
        "save the whole output of a run with --json, and give that file"
    )


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


def ratios(
    mine: Figures, base: Figures, names: Sequence[str], suffix: str, of: str = ""
) -> Figures:
    """Return the ratios of the figures of ``mine`` to the figures of ``base`` in the same repeat.

    ``names`` are the first parts of the figures' names. The name of a figure is a first part
    followed by ``of``, and the name of its ratio is the same first part followed by ``suffix``.
    """
    return {f"{name}{suffix}": mine[f"{name}{of}"] / base[f"{name}{of}"] for name in names}


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Disable Python's garbage collector during the ``with`` block, because its pauses would
    disturb the measurements.
    """
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def spread_text(values: Sequence[float], form: str) -> str:
    """Return the median of values, with the least and the greatest in parentheses. ``form`` is the
    format of a number, such as ``.2f``.
    """
    least, most = (format(value, form) for value in (min(values), max(values)))
    return f"{statistics.median(values):{form}} ({least}-{most})"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile of values, by nearest rank. ``share`` is from 0 to 1."""
    ranked = sorted(values)
    at = max(0, -(-int(share * 1000) * len(ranked) // 1000) - 1)
    return ranked[min(at, len(ranked) - 1)]
