"""What runs come to, side by side: ratios to a baseline, and throughput at equal latency."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from agentrt.lab.outcome import Summary
from agentrt.lab.runs.grid import RunResult
from agentrt.lab.runs.settings import Setting

MEASURES = {
    "mean_s": "mean latency, s",
    "p50_s": "P50 latency, s",
    "p95_s": "P95 latency, s",
    "p99_s": "P99 latency, s",
    "slowdown": "slowdown (latency / ideal), mean",
    "token_latency_s": "program-level token latency, s/token",
    "throughput_per_s": "programs per second",
    "makespan_s": "makespan, s",
    "waiting_share": "waiting, share of all time",
    "service_share": "in the engine, share of all time",
    "tool_share": "in tools, share of all time",
    "preemptions": "preemptions",
}
"""Fields of `Summary` that runs are compared by: name → what it is, with its unit."""

OF_ENGINE = {
    "token_p95_s": "P95 of token latency, s/token",
    "token_p99_s": "P99 of token latency, s/token",
    "mean_steps": "mean latency, engine steps",
    "p95_steps": "P95 latency, engine steps",
    "prefix_hit_share": "prefix hits, share of prompt tokens",
    "recomputed_tokens": "tokens computed again after preemptions",
    "cpu_us": "the scheduler's CPU per step, us",
}
"""Those that are of interest, or known, where an engine with a memory ran."""


@dataclass(slots=True)
class Cell:
    """A policy under a setting: its summaries by seed, and those of the baseline."""

    setting: Setting
    policy: str
    summaries: dict[int, Summary] = field(default_factory=dict)
    baseline: dict[int, Summary] = field(default_factory=dict)

    @property
    def seeds(self) -> list[int]:
        """The seeds whose runs are done."""
        return sorted(self.summaries)

    def values(self, measure: str) -> list[float]:
        """A measure by seed, NaN where it is not known."""
        found = (getattr(self.summaries[seed], measure) for seed in self.seeds)
        return [math.nan if value is None else float(value) for value in found]

    def ratios(self, measure: str) -> list[float]:
        """A measure by seed, over that of the baseline with the same programs.

        Empty where no seed was run with both, or where the baseline's is nothing or not known.
        """
        pairs = [
            (getattr(self.summaries[seed], measure), getattr(self.baseline[seed], measure))
            for seed in self.seeds
            if seed in self.baseline
        ]
        return [mine / base for mine, base in pairs if base and mine is not None]

    def median(self, measure: str) -> float:
        """The median of a measure over the seeds."""
        return median(self.values(measure))

    def median_ratio(self, measure: str) -> float:
        """The median ratio to the baseline, or NaN where there is none."""
        return median(self.ratios(measure) or [math.nan])


def cells(
    results: Iterable[RunResult],
    settings: Sequence[Setting],
    policies: Sequence[str],
    baseline: str,
) -> list[Cell]:
    """The runs that are done, by setting and policy in the order in which they were asked for."""
    found: dict[tuple[Setting, str], Cell] = {}
    for result in results:
        key = (result.spec.setting, result.spec.contender.name)
        found.setdefault(key, Cell(*key)).summaries[result.spec.seed] = result.summary
    for (setting, _), cell in found.items():
        base = found.get((setting, baseline))
        cell.baseline = base.summaries if base else {}
    asked = ((setting, policy) for setting in settings for policy in policies)
    return [found[key] for key in asked if key in found]


# -- throughput at equal latency -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sustained:
    """The highest load at which a policy keeps the token latency under a limit.

    ``bound`` says when the sweep only bounds it: ``>=`` if even the highest load did,
    ``<`` if the lowest did not.
    """

    workload: str
    policy: str
    limit_s: float
    load: float
    bound: str = ""
    ratio: float = math.nan


def sustained(
    cells: Sequence[Cell], baseline: str, limit: float, relative: bool
) -> list[Sustained]:
    """What load each policy sustains, with the ratio to the baseline (Agentix, Fig. 12).

    The limit on the median token latency is in seconds per token, or if ``relative``
    in multiples of the baseline's at the lowest load. Between loads the latency is
    interpolated. Only Poisson arrivals count, and sources with two loads or more.
    """
    answers: list[Sustained] = []
    steady = [cell for cell in cells if cell.setting.pressure.kind in ("load", "rate")]
    for name in dict.fromkeys(cell.setting.source.name for cell in steady):
        curves = _curves([cell for cell in steady if cell.setting.source.name == name])
        base = curves.get(baseline)
        if base is None or len(base) < 2:
            continue
        limit_s = limit * base[0][1] if relative else limit
        ours = crossing(base, limit_s)[0]
        for policy, curve in curves.items():
            load, bound = crossing(curve, limit_s)
            answers.append(Sustained(name, policy, limit_s, load, bound, load / ours))
    return answers


def _curves(cells: Sequence[Cell]) -> dict[str, list[tuple[float, float]]]:
    """By policy: load and median token latency, by increasing load."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for cell in cells:
        point = (cell.setting.pressure.value, cell.median("token_latency_s"))
        curves.setdefault(cell.policy, []).append(point)
    return {policy: sorted(points) for policy, points in curves.items()}


def crossing(curve: Sequence[tuple[float, float]], limit: float) -> tuple[float, str]:
    """Where a curve first rises above the limit, and how sure that is."""
    if curve[0][1] > limit:
        return curve[0][0], "<"
    for (x0, y0), (x1, y1) in pairwise(curve):
        if y1 > limit:
            return x0 + (x1 - x0) * (limit - y0) / (y1 - y0), ""
    return curve[-1][0], ">="
