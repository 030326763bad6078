"""Throughput at equal latency: how much load each policy carries before latency passes a level.

That is how the paper compares systems (Agentix, Fig. 12 and 13). The level is one number for all.
Between loads the latency is interpolated. Only Poisson arrivals count, and sources with two loads
or more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from agentrt.lab.reports.compare import Series
from agentrt.lab.reports.tables import Spread, in_digits, markdown

MEASURES = {"token_latency_s": "mean", "token_p95_s": "P95", "token_p99_s": "P99"}
"""Of the programs' token latencies: what the level is a level of."""
MEAN = {"token_latency_s": "mean"}

_MARKS = {"": "", ">=": "≥", "<": "≤"}
Curve = list[tuple[float, float]]
"""Loads, rising, with the latency at each."""


Level = Callable[[Curve], float]
"""The seconds per token that all have to keep, given the baseline's medians."""


def exactly(seconds: float) -> Level:
    """So many seconds per token."""
    return lambda baseline: seconds


def times(factor: float) -> Level:
    """So many times the baseline's latency at the lowest load."""
    return lambda baseline: factor * baseline[0][1]


@dataclass(frozen=True, slots=True)
class Carried:
    """What one policy carries under a level, by repeat.

    ``bound`` says of the first repeat when the sweep only bounds its load: ``>=`` if even the
    highest load kept the level, ``<`` if the lowest did not. A ``mark`` says so of the ratio to
    the baseline: ``≥`` where the policy kept the level at the highest load, ``≤`` where it did not
    at the lowest or the baseline kept it at the highest, ``~`` where repeats differ in that.
    """

    workload: str
    measure: str
    level_s: float
    policy: str
    loads: tuple[float, ...]
    ratios: tuple[float, ...]
    bound: str = ""
    mark: str = ""


def at_equal_latency(
    cells: Sequence[Series],
    baseline: str,
    level: Level,
    measures: Mapping[str, str] = MEASURES,
) -> list[Carried]:
    """For each workload, measure and policy: a load for each repeat."""
    steady = [cell for cell in cells if cell.setting.pressure.kind in ("load", "rate")]
    answers: list[Carried] = []
    for workload in dict.fromkeys(cell.setting.source.name for cell in steady):
        by_policy: dict[str, list[Series]] = {}
        for cell in sorted(steady, key=lambda cell: cell.setting.pressure.value):
            if cell.setting.source.name == workload:
                by_policy.setdefault(cell.name, []).append(cell)
        base = by_policy.get(baseline, [])
        if len(base) < 2:
            continue
        for measure in measures:
            level_s = level(_medians(base, measure))
            for policy, mine in by_policy.items():
                pairs = [
                    tuple(crossing(curve, level_s) for curve in curves)
                    for curves in _curves(mine, base, measure)
                ]
                if not pairs:  # stopped before any seed had all loads
                    continue
                answers.append(
                    Carried(
                        workload,
                        measure,
                        level_s,
                        policy,
                        tuple(ours[0] for ours, _ in pairs),
                        tuple(ours[0] / theirs[0] for ours, theirs in pairs),
                        pairs[0][0][1],
                        "" if mine is base else _mark([(o[1], t[1]) for o, t in pairs]),
                    )
                )
    return answers


def crossing(curve: Curve, limit: float) -> tuple[float, str]:
    """Where a curve first rises above the limit, and how sure that is."""
    if curve[0][1] > limit:
        return curve[0][0], "<"
    for (x0, y0), (x1, y1) in pairwise(curve):
        if y1 > limit:
            return x0 + (x1 - x0) * (limit - y0) / (y1 - y0), ""
    return curve[-1][0], ">="


def _curves(
    mine: Sequence[Series], base: Sequence[Series], measure: str
) -> list[tuple[Curve, Curve]]:
    """A policy's curves beside the baseline's, by seed."""
    seeds = sorted(set.intersection(*(set(cell.summaries) for cell in (*mine, *base))))
    return [(_of_seed(mine, measure, seed), _of_seed(base, measure, seed)) for seed in seeds]


def _medians(cells: Sequence[Series], measure: str) -> Curve:
    return [(cell.setting.pressure.value, cell.median(measure)) for cell in cells]


def _of_seed(cells: Sequence[Series], measure: str, seed: int) -> Curve:
    return [
        (cell.setting.pressure.value, float(getattr(cell.summaries[seed], measure)))
        for cell in cells
    ]


def _mark(bounds: Sequence[tuple[str, str]]) -> str:
    """How the bounds of loads, ours and theirs, bound their ratio over all repeats."""
    found = {_bound(ours, theirs) for ours, theirs in bounds} - {""}
    return "" if not found else found.pop() if len(found) == 1 else "~"


def _bound(ours: str, theirs: str) -> str:
    if ours == theirs:
        return "" if not ours else "~"
    opposite = {"": "", ">=": "<", "<": ">="}
    bounds = {ours, opposite[theirs]} - {""}
    return _MARKS[bounds.pop()] if len(bounds) == 1 else "~"


def by_repeats(carried: Sequence[Carried], baseline: str) -> str:
    """As Markdown, with the spread over the repeats; above 1 is better."""
    head = ("latency of", "level, ms/token", "policy", "carries", f"/ {baseline}")
    rows = [
        (
            MEASURES[one.measure],
            f"{1000 * one.level_s:.1f}",
            one.policy,
            in_digits(Spread.of(one.loads)),
            f"{one.mark}{Spread.of(one.ratios)}",
        )
        for one in carried
    ]
    return markdown(head, rows)


def repeats_as_dicts(carried: Sequence[Carried]) -> list[dict[str, Any]]:
    """What `by_repeats` shows as JSON-able values."""
    return [
        {
            "measure": one.measure,
            "level_s_per_token": one.level_s,
            "policy": one.policy,
            "loads": list(one.loads),
            "ratio": median(one.ratios),
            "ratios": list(one.ratios),
            "bound": one.mark or "=",
        }
        for one in carried
    ]
