"""Throughput at equal latency: the highest load at which each policy keeps a latency level.

The paper compares systems in this way (Agentix, Fig. 12 and 13). The level is the same for all
policies. Latencies between measured loads are interpolated. Only Poisson arrivals count, and at
least two loads are necessary.
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
"""The statistics of the programs' token latencies that may be compared with the level."""
MEAN = {"token_latency_s": "mean"}

_MARKS = {"": "", ">=": "≥", "<": "≤"}
Curve = list[tuple[float, float]]
"""Pairs of a load and the latency at this load, in the order of loads."""


Level = Callable[[Curve], float]
"""A function that returns the level in seconds per token, from the medians of the baseline."""


def exactly(seconds: float) -> Level:
    """Return a level of ``seconds`` per token."""
    return lambda baseline: seconds


def times(factor: float) -> Level:
    """Return a level of ``factor`` times the baseline's latency at the lowest load."""
    return lambda baseline: factor * baseline[0][1]


@dataclass(frozen=True, slots=True)
class Carried:
    """The highest loads at which one policy keeps the latency below a level, one for each repeat.

    ``ratios`` compares these loads with those of the baseline. The true load is unknown if it is
    outside the measured loads. Then the nearest measured load stands for it, and two fields say so:

    - ``bound`` is about the load of the first repeat. It is ``>=`` if the policy kept the level
      even at the highest measured load, and ``<`` if the policy did not keep the level even at the
      lowest measured load.
    - ``mark`` stands before the ratio. It is ``≥`` if the true ratio is at least the shown ratio,
      and ``≤`` if it is at most the shown ratio. It is ``~`` if nothing is known about the true
      ratio, because both loads are bounded on the same side, or because the marks of the repeats
      differ.
    """

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
    """Return the loads that each policy carries, for each measure. All ``cells`` have the same
    workload.
    """
    by_policy: dict[str, list[Series]] = {}
    for cell in sorted(cells, key=lambda cell: cell.setting.pressure.value):
        if cell.setting.pressure.kind in ("load", "rate"):
            by_policy.setdefault(cell.name, []).append(cell)
    base = by_policy.get(baseline, [])
    if len(base) < 2:
        return []
    answers: list[Carried] = []
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
    """Return the load at which a curve first rises above the limit, and "".

    If the curve begins above the limit, return its first load and "<". If it never rises above the
    limit, return its last load and ">=".
    """
    if curve[0][1] > limit:
        return curve[0][0], "<"
    for (x0, y0), (x1, y1) in pairwise(curve):
        if y1 > limit:
            return x0 + (x1 - x0) * (limit - y0) / (y1 - y0), ""
    return curve[-1][0], ">="


def _curves(
    mine: Sequence[Series], base: Sequence[Series], measure: str
) -> list[tuple[Curve, Curve]]:
    """Return the curves of a policy and of the baseline for each seed that both have."""
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
    """Return the mark of a ratio of two loads, from the bounds of both loads in all repeats."""
    marks = {_bound(ours, theirs) for ours, theirs in bounds} - {""}
    return "" if not marks else marks.pop() if len(marks) == 1 else "~"


def _bound(ours: str, theirs: str) -> str:
    if ours == theirs:
        return "" if not ours else "~"
    opposite = {"": "", ">=": "<", "<": ">="}
    bounds = {ours, opposite[theirs]} - {""}
    return _MARKS[bounds.pop()] if len(bounds) == 1 else "~"


def by_repeats(carried: Sequence[Carried], baseline: str) -> str:
    """Return a Markdown table with the spread over the repeats. Ratios above 1 are better."""
    head = ("token latency", "level, ms/token", "policy", "load carried", f"/ {baseline}")
    rows = [
        (
            MEASURES[row.measure],
            f"{1000 * row.level_s:.1f}",
            row.policy,
            in_digits(Spread.of(row.loads)),
            f"{row.mark}{Spread.of(row.ratios)}",
        )
        for row in carried
    ]
    return markdown(head, rows)


def repeats_as_dicts(carried: Sequence[Carried]) -> list[dict[str, Any]]:
    """Return the values of `by_repeats` for JSON."""
    return [
        {
            "measure": row.measure,
            "level_s_per_token": row.level_s,
            "policy": row.policy,
            "loads": list(row.loads),
            "ratio": median(row.ratios),
            "ratios": list(row.ratios),
            "bound": row.mark or "=",
        }
        for row in carried
    ]
