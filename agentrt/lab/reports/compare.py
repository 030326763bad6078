"""What runs come to, side by side: measures, their ratios to a baseline, tables, JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from agentrt.lab.outcome import Summary
from agentrt.lab.reports.tables import Spread, digits, in_digits
from agentrt.lab.runs.grid import RunResult, Setting

PLAIN = {
    "mean_s": ("mean", "mean latency, s"),
    "p50_s": ("P50", "P50 latency, s"),
    "p95_s": ("P95", "P95 latency, s"),
    "p99_s": ("P99", "P99 latency, s"),
    "slowdown": ("slowdown", "slowdown (latency / ideal), mean"),
    "token_latency_s": ("s/token", "program-level token latency, s/token"),
    "throughput_per_s": ("programs/s", "programs per second"),
    "makespan_s": ("makespan", "makespan, s"),
    "waiting_share": ("waiting", "waiting, share of all time"),
    "service_share": ("in engine", "in the engine, share of all time"),
    "tool_share": ("in tools", "in tools, share of all time"),
    "preemptions": ("preemptions", "preemptions"),
}
"""Fields of `Summary` that runs are compared by: a column's head, and what it is with its unit."""
MEASURES = {name: what for name, (_, what) in PLAIN.items()}
SHARES = ("waiting_share", "service_share", "tool_share", "prefix_hit_share")
"""Measures that read better as a percentage."""


@dataclass(slots=True)
class Series:
    """The runs of a policy, or of a router over ``replicas``, under a setting: summaries by seed.

    ``baseline`` are those of what it is compared with.
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
        """A measure by seed, NaN where it is not known."""
        found = (getattr(self.summaries[seed], measure) for seed in self.seeds)
        return [math.nan if value is None else float(value) for value in found]

    def ratios(self, measure: str, to: Series | None = None) -> list[float]:
        """A measure by seed, over that of the baseline, or of another, with the same programs.

        Empty where no seed was run with both, or where one is not known or the other's is nothing.
        """
        base = self.baseline if to is None else to.summaries
        pairs = [
            (getattr(self.summaries[seed], measure), getattr(base[seed], measure))
            for seed in self.seeds
            if seed in base
        ]
        found = (mine / theirs for mine, theirs in pairs if theirs and mine is not None)
        return [ratio for ratio in found if not math.isnan(ratio)]

    def median(self, measure: str) -> float:
        return median(self.values(measure))

    def median_ratio(self, measure: str, to: Series | None = None) -> float:
        """The median ratio to the baseline, or to another; NaN where there is none."""
        return median(self.ratios(measure, to) or [math.nan])


def cells(
    results: Iterable[RunResult], settings: Sequence[Setting], names: Sequence[str], baseline: str
) -> list[Series]:
    """The runs that are done, by setting and policy in the order in which they were asked for."""
    found: dict[tuple[Setting, str], Series] = {}
    for result in results:
        key = (result.spec.setting, result.spec.contender.name)
        found.setdefault(key, Series(*key)).summaries[result.spec.seed] = result.summary
    for (setting, _), cell in found.items():
        base = found.get((setting, baseline))
        cell.baseline = base.summaries if base else {}
    asked = ((setting, name) for setting in settings for name in names)
    return [found[key] for key in asked if key in found]


# -- tables ------------------------------------------------------------------------------


def value(cell: Series, measure: str) -> str:
    """A measure's median over the seeds, with the least and the greatest; a dash for unknown."""
    known = cell.values(measure)
    if any(map(math.isnan, known)):
        return "-"
    factor, unit = (100, "%") if measure in SHARES else (1, "")
    spread = Spread.of([factor * one for one in known])
    return in_digits(spread, unit) if len(known) > 1 else f"{digits(spread.median)}{unit}"


def ratio(cell: Series, measure: str) -> str:
    """A measure over the baseline's in the same seed: the median, the least and the greatest."""
    found = cell.ratios(measure)
    if not found:
        return "-"
    return str(Spread.of(found)) if len(found) > 1 else f"{found[0]:.2f}"


# -- for machines ------------------------------------------------------------------------


def as_dicts(cells: Sequence[Series], measures: Iterable[str] = MEASURES) -> list[dict[str, Any]]:
    """Each cell as JSON-able values, by seed, too; None is not known."""
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
    """In the order of ``seeds``; None is not known."""
    return [None if math.isnan(value) else value for value in cell.values(measure)]


def _measured(cell: Series, measure: str) -> dict[str, float | None]:
    values = cell.values(measure)
    known = not any(map(math.isnan, values))
    return {
        **_spread(values if known else [], ("median", "min", "max")),
        **_spread(cell.ratios(measure), ("ratio", "ratio_min", "ratio_max")),
    }


def _spread(values: Sequence[float], names: Sequence[str]) -> dict[str, float | None]:
    """A median, a least and a greatest value; None where there is none."""
    if not values:
        return dict.fromkeys(names)
    return dict(zip(names, (median(values), min(values), max(values)), strict=True))
