"""What benchmarks share: a run with one table, turns that alternate, ratios, percentiles."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from agentrt.lab.bench.results import Column, Figures, Results, run_shown, show
from agentrt.lab.runs.grid import turns

T = TypeVar("T")
WHOLE = "{:.0f}"
"""The form of a column of whole numbers."""


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
