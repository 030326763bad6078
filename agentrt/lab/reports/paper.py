"""The page of ``agentrt bench paper``: load at equal latency, and what that does not show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentrt.lab.reports.compare import SHORT, Cell, cells
from agentrt.lab.reports.equal_latency import (
    MEAN,
    Carried,
    at_equal_latency,
    exactly,
    repeats_as_dicts,
)
from agentrt.lab.reports.plots import draw_panel, new_figure
from agentrt.lab.reports.policies import about_engine, about_scales, ratio
from agentrt.lab.reports.tables import Spread, digits, markdown
from agentrt.lab.runs.grid import RunResult
from agentrt.lab.runs.machine import Machine
from agentrt.lab.runs.settings import Setting

LEVELS = (2.0, 3.0, 5.0)
"""Multiples of the unloaded token latency."""
OURS = "adaptive"
"""Whose losses are listed."""
_OF_TYPES = ("token_latency_s", "mean_s", "p95_s", "p99_s")
_COMPARED = (*_OF_TYPES, "steady_per_s", "makespan_s")
_BEARABLE = {"token_latency_s": 1.02, "mean_s": 1.02, "p99_s": 1.10, "makespan_s": 1.03}
"""The ratios above which a loss is listed."""
_TYPED_LOADS = 2.0
"""Types have rows of their own from this load up: below it little waits."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A workload over one horizon: its settings by load, and what came of them.

    ``by_type`` has the same runs by the type of their programs, where there are several.
    """

    title: str
    settings: Sequence[Setting]
    policies: Sequence[str]
    cells: Sequence[Cell] = ()
    by_type: dict[str, list[Cell]] = field(default_factory=dict)

    @property
    def programs(self) -> int:
        return self.settings[0].count

    @property
    def baseline(self) -> str:
        return self.policies[0]

    @property
    def unloaded_s(self) -> float:
        """The token latency if each program had the engine to itself."""
        return self.cells[0].median("unloaded_token_s")

    def measured(self, results: Sequence[RunResult]) -> Panel:
        """With those of the results that are its own."""
        types = sorted({name for result in results for name in result.by_type})
        by_type = {
            name: self._cells(
                [replace(one, summary=one.by_type[name]) for one in results if name in one.by_type]
            )
            for name in types
        }
        by_type = {name: found for name, found in by_type.items() if found}
        if len(by_type) < 2:
            by_type = {}
        return replace(self, cells=self._cells(results), by_type=by_type)

    def _cells(self, results: Sequence[RunResult]) -> list[Cell]:
        return cells(results, self.settings, self.policies, self.baseline)

    def carried(self) -> Iterator[tuple[float, list[Carried]]]:
        """What each policy carries at each level; nothing where too few loads are done."""
        for times in LEVELS:
            level = exactly(times * self.unloaded_s)
            found = at_equal_latency(self.cells, self.baseline, level, MEAN)
            if found:
                yield times, found


# -- the page --------------------------------------------------------------------------

_HEAD = """# The paper's figures

`agentrt bench paper` measures as the paper does (Agentix, §6.2). *Token latency* is a program's
latency over the tokens that it generated, averaged over programs. The *load at equal latency* is
the highest load, interpolated, at which it stays below a level: 2, 3 or 5 times what it is for
programs that are alone on the engine. Arrivals are Poisson. A load is a share of what the engine
can do; above 1 it is overload for as long as programs come, and **how many come decides the
figures**: with more of them the latencies at one load part further, and the loads at equal latency
come closer, for in the long run no order carries more than 1. `stock` is vLLM's own scheduler, and
`fcfs` decides as it does; `srpt` knows the future."""
_EQUAL = """## Load at equal latency

For the first policy the load, for the others the ratio to it: above 1 is better. ≥ and ≤: the sweep
bounds it only; ~: it bounds both loads, and not their ratio."""
_BY_LOAD = """## Latencies by load

Ratios are to the first policy with the same programs. Below 1 is better, but above 1 for *ended in
time*: the programs that ended before the last one arrived."""
_BY_TYPE = """## By type

Token latency averages over programs, so that it weighs small ones most: most programs are small,
and most tokens are those of few large ones."""
_LOSSES = f"""## Where it does not help

- At a load of 0.8 and below the mean latency of programs hardly depends on the order of calls.
- The gain is one of overload that passes: large programs wait until fewer arrive.
- Where programs are of one class, the past tells little of who ends soon; `srpt`, which knows,
  shows what there would be to gain.
- LATS per token: its small programs wait behind its old large ones, whom the lane serves.

`{OURS}` is worse than the first policy here (token latency or mean above 1.02, P99 above 1.10,
makespan above 1.03):"""


def page(panels: Sequence[Panel], machine: Machine, seeds: Sequence[int], command: str) -> str:
    """All tables, as Markdown."""
    parts = [
        _HEAD,
        f"`{command}`",
        _about(panels, machine, seeds),
        _EQUAL,
        _equal(panels),
        _BY_LOAD,
    ]
    for panel in panels:
        parts += [_title(panel), _by_load(panel.cells)]
    parts += [_BY_TYPE]
    for panel in panels:
        if panel.by_type:
            parts += [_title(panel), _by_type(panel)]
    return "\n\n".join([*parts, _LOSSES, _losses(panels)])


def _about(panels: Sequence[Panel], machine: Machine, seeds: Sequence[int]) -> str:
    sources = {panel.settings[0].source for panel in panels}
    scale = max(sources, key=lambda source: source.gap_scale)
    which = f"Seed {seeds[0]}." if len(seeds) == 1 else f"Medians over {len(seeds)} seeds."
    return f"{about_engine(machine)}\nScaled: {about_scales(scale)} where tools are on. {which}"


def _title(panel: Panel) -> str:
    alone = 1000 * panel.unloaded_s
    return (
        f"**{panel.title}**, {panel.programs} programs; {alone:.1f} ms/token alone on the engine."
    )


def _equal(panels: Sequence[Panel]) -> str:
    names = list(dict.fromkeys(name for panel in panels for name in panel.policies))
    rows = []
    for panel in panels:
        for times, found in panel.carried():
            carried = {one.policy: _load_of(one, panel.baseline) for one in found}
            row = [
                panel.title,
                panel.programs,
                f"{times:g}x",
                *(carried.get(n, "-") for n in names),
            ]
            rows.append(row)
    return markdown(["workload", "programs", "level", *names], rows)


def _load_of(one: Carried, baseline: str) -> str:
    if one.policy == baseline:
        bound = {"<": "≤", ">=": "≥"}.get(one.bound, "")
        return f"{bound}{digits(Spread.of(one.loads).median)}"
    return f"{one.mark}{Spread.of(one.ratios).median:.2f}"


def _by_load(found: Sequence[Cell]) -> str:
    head = ["load", "policy", "ms/token", "mean, s", *(SHORT[name] for name in _COMPARED)]
    rows = [
        [
            *(cell.setting.label, cell.name, f"{1000 * cell.median('token_latency_s'):.1f}"),
            digits(cell.median("mean_s")),
            *(ratio(cell, name) for name in _COMPARED),
        ]
        for cell in found
    ]
    return markdown(head, rows)


def _by_type(panel: Panel) -> str:
    head = ["load", "type", "policy", "ms/token", *(SHORT[name] for name in _OF_TYPES)]
    rows = [
        [
            *(cell.setting.label, name, cell.name, f"{1000 * cell.median('token_latency_s'):.1f}"),
            *(ratio(cell, measure) for measure in _OF_TYPES),
        ]
        for name, found in panel.by_type.items()
        for cell in found
        if cell.setting.pressure.value >= _TYPED_LOADS
    ]
    return markdown(head, rows)


def _losses(panels: Sequence[Panel]) -> str:
    rows: list[tuple[float, list[object]]] = []
    for panel in panels:
        for name, found in {"all": panel.cells, **panel.by_type}.items():
            for cell in found:
                for measure, most in _BEARABLE.items():
                    worse = cell.median_ratio(measure)
                    alone = name != "all" and measure == "makespan_s"
                    if cell.name == OURS and worse > most and not alone:
                        where = [panel.title, panel.programs, cell.setting.label, name]
                        rows.append((worse, [*where, SHORT[measure], f"{worse:.2f}"]))
    rows.sort(key=lambda row: -row[0])
    head = ["workload", "programs", "load", "type", "measure", "ratio"]
    return markdown(head, [row for _, row in rows]) if rows else "None."


# -- for machines, and drawn -----------------------------------------------------------


def as_values(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """All of it as JSON-able values."""
    return [
        {
            "title": panel.title,
            "workload": panel.settings[0].source.name,
            "programs": panel.programs,
            "unloaded_s_per_token": panel.unloaded_s,
            "equal_latency": [
                {"times": times, **row}
                for times, found in panel.carried()
                for row in repeats_as_dicts(found)
            ],
            "cells": [_values(cell, _COMPARED) for cell in panel.cells],
            "by_type": {
                name: [_values(cell, _OF_TYPES) for cell in found]
                for name, found in panel.by_type.items()
            },
        }
        for panel in panels
    ]


def _values(cell: Cell, measures: Iterable[str]) -> dict[str, Any]:
    known = {name: round(cell.median(name), 6) for name in measures}
    ratios = {f"{name}_ratio": round(cell.median_ratio(name), 4) for name in measures}
    return {"load": cell.setting.pressure.value, "policy": cell.name, **known, **ratios}


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Token latency against load, one drawing per panel; the dotted lines are the levels."""
    columns = min(4, len(panels))
    figure = new_figure(4 * columns, 3.4 * -(-len(panels) // columns))
    axes = list(figure.subplots(-(-len(panels) // columns), columns, squeeze=False).flat)
    for axis, panel in zip(axes, panels, strict=False):
        draw_panel(axis, panel.cells, "token_latency_s")
        axis.set_title(f"{panel.title}, {panel.programs} programs", fontsize=9)
        for times in LEVELS:
            axis.axhline(times * panel.unloaded_s, color="grey", linestyle=":", linewidth=0.8)
    axes[0].set_ylabel("token latency, s")
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    lines = axes[0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside lower center", ncols=min(6, 3 * columns), fontsize=8)
    figure.savefig(path)
