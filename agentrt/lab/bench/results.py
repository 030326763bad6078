"""What benchmarks share: how they end, figures by side, and tables."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import statistics
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from agentrt.cli.signals import Interrupts
from agentrt.executors.base import Progress
from agentrt.lab.commands.options import note
from agentrt.lab.reports.tables import markdown

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


def hardware() -> str:
    """One line about what computes: the GPU, or else the processor and its cores."""
    import torch

    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return f"{processor()}, {len(os.sched_getaffinity(0))} cores"


def processor() -> str:
    """The processor's name."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next((line.split(":")[1].strip() for line in lines if "model name" in line), name)
    return name
