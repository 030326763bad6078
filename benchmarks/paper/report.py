"""The report of ``benchmarks paper``: load at equal latency, and latencies by load and by type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentrt.lab.reports.compare import Series, about_seeds, as_dicts, cells, value
from agentrt.lab.reports.tables import Spread, digits, markdown
from agentrt.lab.runs.grid import Setting
from agentrt.lab.runs.machine import Machine
from benchmarks.equal_latency import (
    MEAN,
    Carried,
    at_equal_latency,
    exactly,
    repeats_as_dicts,
)
from benchmarks.harness import Column, table
from benchmarks.plots import draw_panels
from benchmarks.summaries import TypedResult
from benchmarks.tables import LOAD, MS_PER_TOKEN, POLICY, about_scales, ratios

LEVELS = (2.0, 3.0, 5.0)
"""The latency levels, as multiples of the unloaded token latency."""
_OF_TYPES = ("token_latency_s", "mean_s", "p95_s", "p99_s")
_COMPARED = (*_OF_TYPES, "steady_per_s", "makespan_s")
_TYPED_LOADS = 2.0
"""The lowest load for which the report has rows for each type. At lower loads, few calls wait."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One workload with one number of programs: a setting for each load, and the results of these
    settings.

    ``by_type`` has the same runs by program type, if there are several types.
    """

    title: str
    settings: Sequence[Setting]
    policies: Sequence[str]
    cells: Sequence[Series] = ()
    by_type: dict[str, list[Series]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.title}, {self.settings[0].count} programs"

    @property
    def baseline(self) -> str:
        return self.policies[0]

    @property
    def unloaded_s(self) -> float:
        """The token latency of programs that have the engine to themselves, in seconds."""
        return self.cells[0].median("unloaded_token_s")

    def measured(self, results: Sequence[TypedResult]) -> Panel:
        """Return the panel with the results that belong to it."""
        own = [result for result in results if result.spec.setting in self.settings]
        types = sorted({name for result in own for name in result.by_type})
        by_type = {
            name: self._cells(
                [
                    replace(result, summary=result.by_type[name])
                    for result in own
                    if name in result.by_type
                ]
            )
            for name in types
        }
        return replace(self, cells=self._cells(own), by_type=by_type if len(types) > 1 else {})

    def _cells(self, results: Sequence[TypedResult]) -> list[Series]:
        return cells(results, self.settings, self.policies, self.baseline)

    def carried(self) -> Iterator[tuple[float, list[Carried]]]:
        """Yield the load that each policy carries at each level, if enough loads have results."""
        for times in LEVELS:
            level = exactly(times * self.unloaded_s)
            carried = at_equal_latency(self.cells, self.baseline, level, MEAN)
            if carried:
                yield times, carried


# -- the page --------------------------------------------------------------------------

_HEAD = """# The paper's figures

`python -m benchmarks paper` measures as the paper does (Agentix, §6.2). *Token latency* is a
program's latency divided by the number of tokens that it generated, averaged over programs. The
*load at equal latency* is the highest load, interpolated, at which the token latency stays below a
level: 2, 3 or 5 times the token latency of programs that are alone on the engine. Arrivals are
Poisson. A load is a share of the engine's capacity. Above 1, the engine is overloaded as long as
programs arrive, and **the number of programs determines the figures**: with more programs, the
policies' latencies at one load differ more, and their loads at equal latency differ less, because
in the long run no policy carries a load above 1. `stock` is vLLM's own scheduler, and `fcfs` makes
the same decisions; `srpt` knows the future."""
_EQUAL = """## Load at equal latency

For the first policy, a cell has its load. For each other policy, a cell has the ratio of its load
to the first policy's load; above 1 is better. ≥ and ≤: the measured loads give only a bound of the
ratio; ~: the ratio is unknown."""
_BY_LOAD = """## Latencies by load

Ratios are to the first policy with the same programs. Below 1 is better. The exception is *ended in
time*, the programs that ended by the last arrival: above 1 is better."""
_BY_TYPE = """## By type

Token latency is an average over programs, so small programs dominate it: most programs are small,
but a few large ones generate most tokens."""


def page(panels: Sequence[Panel], machine: Machine, seeds: Sequence[int], command: str) -> str:
    """Return all tables as Markdown."""
    every = (panel.settings[0].source.scales for panel in panels)
    scales = max(every, key=lambda scales: scales.gap)
    scaled = f"Scaled: {about_scales(scales)} where tools are on."
    about = f"{machine.in_words()}\n{scaled} {about_seeds(seeds)}."
    parts = [_HEAD, f"`{command}`", about, _EQUAL, _equal(panels), _BY_LOAD]
    for panel in panels:
        parts += [_title(panel), _by_load(panel)]
    parts += [_BY_TYPE]
    for panel in panels:
        if panel.by_type:
            parts += [_title(panel), _by_type(panel)]
    return "\n\n".join(parts)


def _title(panel: Panel) -> str:
    return f"**{panel.name}**; {1000 * panel.unloaded_s:.1f} ms/token alone on the engine."


def _equal(panels: Sequence[Panel]) -> str:
    names = list(dict.fromkeys(name for panel in panels for name in panel.policies))
    rows = []
    for panel in panels:
        for times, carried in panel.carried():
            loads = {each.policy: _load_of(each, panel.baseline) for each in carried}
            row = [panel.title, panel.settings[0].count, f"{times:g}x"]
            rows.append([*row, *(loads.get(name, "-") for name in names)])
    return markdown(["workload", "programs", "level", *names], rows)


def _load_of(carried: Carried, baseline: str) -> str:
    if carried.policy == baseline:
        bound = {"<": "≤", ">=": "≥"}.get(carried.bound, "")
        return f"{bound}{digits(Spread.of(carried.loads).median)}"
    return f"{carried.mark}{Spread.of(carried.ratios).median:.2f}"


def _by_load(panel: Panel) -> str:
    mean = Column("mean, s", lambda cell: value(cell, "mean_s"))
    over = ratios(*_COMPARED, over=panel.baseline)
    return table(panel.cells, LOAD, POLICY, MS_PER_TOKEN, mean, *over)


def _by_type(panel: Panel) -> str:
    typed = {
        id(cell): name
        for name, series in panel.by_type.items()
        for cell in series
        if cell.setting.pressure.value >= _TYPED_LOADS
    }
    shown = [cell for series in panel.by_type.values() for cell in series if id(cell) in typed]
    kind = Column("type", lambda cell: typed[id(cell)])
    return table(shown, LOAD, kind, POLICY, MS_PER_TOKEN, *ratios(*_OF_TYPES, over=panel.baseline))


# -- JSON and drawings -----------------------------------------------------------------


def as_values(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Return all panels as JSON values."""
    return [
        {
            "title": panel.name,
            "unloaded_s_per_token": panel.unloaded_s,
            "equal_latency": [
                {"times": times, **row}
                for times, carried in panel.carried()
                for row in repeats_as_dicts(carried)
            ],
            "cells": as_dicts(panel.cells, _COMPARED),
            "by_type": {name: as_dicts(cells, _OF_TYPES) for name, cells in panel.by_type.items()},
        }
        for panel in panels
    ]


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Draw token latency against load for each panel. The dotted lines are the levels."""
    levels = {panel.name: [times * panel.unloaded_s for times in LEVELS] for panel in panels}
    draw_panels({panel.name: panel.cells for panel in panels}, path, ("token_latency_s",), levels)
