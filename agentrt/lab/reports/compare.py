"""Comparisons of runs: measures, their ratios to a baseline, tables, descriptions of the runs, and
JSON.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from agentrt.lab.outcome import Summary
from agentrt.lab.reports.tables import Spread, markdown, spread_text
from agentrt.lab.runs.grid import RunResult, RunSpec, Setting
from agentrt.scheduler.config import SchedulerConfig

PLAIN = {
    "mean_s": ("mean", "mean latency, s"),
    "p50_s": ("P50", "P50 latency, s"),
    "p95_s": ("P95", "P95 latency, s"),
    "p99_s": ("P99", "P99 latency, s"),
    "slowdown": ("slowdown", "slowdown (latency / latency alone), mean"),
    "token_latency_s": ("s/token", "latency / output tokens, s/token"),
    "throughput_per_s": ("programs/s", "programs per second"),
    "makespan_s": ("makespan", "makespan, s"),
    "waiting_share": ("waiting", "waiting, share of all time"),
    "service_share": ("in engine", "in the engine, share of all time"),
    "tool_share": ("in tools", "in tools, share of all time"),
    "preemptions": ("preemptions", "preemptions"),
}
"""The compared fields of `Summary`. Each has the head of its column, and a longer text with the
unit.
"""
MEASURES = {name: text for name, (_, text) in PLAIN.items()}
SHARES = ("waiting_share", "service_share", "tool_share", "prefix_hit_share")
"""Measures that are shown as percentages."""
NOTHING_WAITED = """No call waited for the engine, so all policies give the same times. A smaller
engine (--max-num-seqs, --kv-blocks) or a higher --load shows their differences."""


@dataclass(slots=True)
class Series:
    """The runs of one policy, or of a router over ``replicas``, under one setting.

    ``summaries`` has a summary for each seed. ``baseline`` has the summaries of the policy with
    which this policy is compared.
    """

    setting: Setting
    name: str
    replicas: int = 1
    summaries: dict[int, Summary] = field(default_factory=dict)
    baseline: dict[int, Summary] = field(default_factory=dict)

    @property
    def seeds(self) -> list[int]:
        return sorted(self.summaries)

    def values(self, measure: str) -> list[float]:
        """Return a measure for each seed, in order; NaN if it is unknown."""
        values = (getattr(self.summaries[seed], measure) for seed in self.seeds)
        return [math.nan if value is None else float(value) for value in values]

    def ratios(self, measure: str) -> list[float]:
        """Return, for each seed, the ratio of a measure to the same measure of the baseline.

        Seeds that were not run with the baseline are left out, and so are ratios with an unknown
        value or with a divisor of zero.
        """
        pairs = [
            (getattr(self.summaries[seed], measure), getattr(self.baseline[seed], measure))
            for seed in self.seeds
            if seed in self.baseline
        ]
        ratios = (mine / theirs for mine, theirs in pairs if theirs and mine is not None)
        return [ratio for ratio in ratios if not math.isnan(ratio)]

    def median(self, measure: str) -> float:
        return median(self.values(measure))


def cells(
    results: Iterable[RunResult], settings: Sequence[Setting], names: Sequence[str], baseline: str
) -> list[Series]:
    """Return a series of the finished runs for each setting and each name, in the order of
    ``settings`` and ``names``.
    """
    series: dict[tuple[Setting, str], Series] = {}
    for result in results:
        key = (result.spec.setting, result.spec.contender.name)
        series.setdefault(key, Series(*key)).summaries[result.spec.seed] = result.summary
    for (setting, _), cell in series.items():
        base = series.get((setting, baseline))
        cell.baseline = base.summaries if base else {}
    keys = ((setting, name) for setting in settings for name in names)
    return [series[key] for key in keys if key in series]


# -- tables ------------------------------------------------------------------------------


def value(cell: Series, measure: str) -> str:
    """Return a measure over the seeds as `spread_text`; "-" if the value of a seed is unknown."""
    values = cell.values(measure)
    if any(map(math.isnan, values)):
        return "-"
    return spread_text(values, percent=measure in SHARES)


def ratio(cell: Series, measure: str) -> str:
    """Return the ratio of a measure to the same measure of the baseline, as text.

    There is one ratio for each seed. The text has the median, the smallest and the largest ratio;
    with one seed, it is the ratio alone. It is "-" if there is no ratio.
    """
    ratios = cell.ratios(measure)
    if not ratios:
        return "-"
    return str(Spread.of(ratios)) if len(ratios) > 1 else f"{ratios[0]:.2f}"


def values_table(cells: Sequence[Series]) -> str:
    """Return a table of all measures of all policies under one setting."""
    rows = [[text, *(value(cell, measure) for cell in cells)] for measure, text in MEASURES.items()]
    return markdown(["", *(cell.name for cell in cells)], rows)


def ratios_table(cells: Sequence[Series], baseline: str) -> str:
    """Return a table of the ratios of each other policy's measures to the baseline's measures."""
    cells = [cell for cell in cells if cell.name != baseline]
    rows = [
        [text, *(ratio(cell, measure) for cell in cells)]
        for measure, text in MEASURES.items()
        if measure not in SHARES
    ]
    head = f"ratio to {baseline} (times: below 1 is faster)"
    return markdown([head, *(cell.name for cell in cells)], rows)


# -- descriptions of the runs --------------------------------------------------------------


def about_seeds(seeds: Sequence[int]) -> str:
    """Return a text that says over which seeds the medians are computed."""
    if len(seeds) == 1:
        return f"Seed {seeds[0]}"
    return f"{len(seeds)} seeds ({seeds[0]}-{seeds[-1]}): medians (least-most)"


def about_hints(specs: Sequence[RunSpec]) -> str:
    """Return a text about the correlation of size hints with the true sizes; "" if no policy gets
    hints.
    """
    hints = next((h for spec in specs if (h := spec.contender.hints) is not None), None)
    if hints is None:
        return ""
    return f"\n+hints: size hints have a correlation of {hints:g} with the true sizes."


# -- JSON --------------------------------------------------------------------------------


def as_dicts(cells: Sequence[Series], measures: Iterable[str] = MEASURES) -> list[dict[str, Any]]:
    """Return each series as JSON values: each measure over all seeds, and for each seed. None means
    unknown.
    """
    names = tuple(measures)
    return [
        {
            "workload": cell.setting.source.name,
            "arrivals": str(cell.setting.pressure),
            "policy": cell.name,
            "seeds": cell.seeds,
            "programs": next(iter(cell.summaries.values())).programs,
            "measures": {measure: _measured(cell, measure) for measure in names},
            "by_seed": {measure: by_seed(cell, measure) for measure in names},
        }
        for cell in cells
    ]


def by_seed(cell: Series, measure: str) -> list[float | None]:
    """Return a measure for each seed, in order; None means unknown."""
    return [None if math.isnan(value) else value for value in cell.values(measure)]


def _measured(cell: Series, measure: str) -> dict[str, float | None]:
    values = cell.values(measure)
    known = not any(map(math.isnan, values))
    return {
        **_spread(values if known else [], ("median", "min", "max")),
        **_spread(cell.ratios(measure), ("ratio", "ratio_min", "ratio_max")),
    }


def _spread(values: Sequence[float], names: Sequence[str]) -> dict[str, float | None]:
    """Return the median, the smallest and the largest value under the three ``names``; None for
    each of them if there are no values.
    """
    if not values:
        return dict.fromkeys(names)
    return dict(zip(names, (median(values), min(values), max(values)), strict=True))


def as_values(
    cells: Sequence[Series], specs: Sequence[RunSpec], common: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a comparison as JSON values."""
    complete = sum(len(cell.seeds) for cell in cells) == len(specs)
    return {"settings": common, "complete": complete, "cells": as_dicts(cells)}


def conditions(specs: Sequence[RunSpec], seeds: Sequence[int], baseline: str) -> dict[str, Any]:
    """Return the settings of the runs as JSON values. ``scheduler`` has the scheduler's settings of
    the first contender.
    """
    return {
        **specs[0].machine.to_dict(),
        "seeds": list(seeds),
        "baseline": baseline,
        "hints": next((h for spec in specs if (h := spec.contender.hints) is not None), None),
        "scheduler": (specs[0].contender.config or SchedulerConfig()).to_dict(),
    }
