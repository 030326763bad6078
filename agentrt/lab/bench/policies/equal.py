"""Throughput at equal latency: how much load each policy carries before latency passes a level.

That is how the paper compares systems (Agentix, Fig. 12 and 13). The level is one number for
all; each repeat has its own curves of latency over load, and its own ratio to the baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from agentrt.errors import ConfigError
from agentrt.lab.reports.cells import in_digits
from agentrt.lab.reports.compare import Cell, crossing
from agentrt.lab.reports.tables import Spread, markdown

MEASURES = {"token_latency_s": "mean", "token_p95_s": "P95", "token_p99_s": "P99"}
"""Of the programs' token latencies: what the level is a level of."""

_MARKS = {"": "", ">=": "≥", "<": "≤"}


@dataclass(frozen=True, slots=True)
class Level:
    """A latency that all have to keep.

    Seconds per token (``s``), so many times the baseline's at the lowest load (``x``), or
    the baseline's at this load (``@``).
    """

    kind: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Level:
        """Read ``0.05``, ``2x`` or ``@0.9``. Raises `ConfigError` for anything else."""
        kind = "x" if text.endswith("x") else "@" if text.startswith("@") else "s"
        try:
            value = float(text.removesuffix("x").removeprefix("@"))
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise ConfigError(
                f"--slo {text!r}: give seconds per token such as 0.05, a multiple of stock's at "
                "the lowest rate such as 2x, or stock's at a rate such as @0.9"
            )
        return cls(kind, value)

    def seconds(self, baseline: Sequence[tuple[float, float]]) -> float:
        """The level, given the baseline's medians by load. Raises `ConfigError` for another."""
        if self.kind == "s":
            return self.value
        if self.kind == "x":
            return self.value * baseline[0][1]
        for load, latency in baseline:
            if load == self.value:
                return latency
        raise ConfigError(f"--slo @{self.value:g}: no run has this rate; name one of --rate")


@dataclass(frozen=True, slots=True)
class Carried:
    """What one policy carries under a level: loads and ratios to the baseline, by repeat.

    A ``mark`` says that the sweep bounds the ratio only: ``≥`` where the policy kept the level
    at the highest load, ``≤`` where it did not at the lowest or the baseline kept it at the
    highest, ``~`` where repeats differ in that.
    """

    measure: str
    level_s: float
    policy: str
    loads: tuple[float, ...]
    ratios: tuple[float, ...]
    mark: str = ""


def at_equal_latency(cells: Sequence[Cell], baseline: str, level: Level) -> list[Carried]:
    """For each measure and policy. Empty where there are not two loads of Poisson arrivals."""
    steady = [cell for cell in cells if cell.setting.pressure.kind in ("load", "rate")]
    by_policy: dict[str, list[Cell]] = {}
    for cell in sorted(steady, key=lambda cell: cell.setting.pressure.value):
        by_policy.setdefault(cell.policy, []).append(cell)
    base = by_policy.get(baseline, [])
    if len(base) < 2:
        return []
    return [
        _carried(measure, level.seconds(_medians(base, measure)), policy, mine, base)
        for measure in MEASURES
        for policy, mine in by_policy.items()
    ]


def _carried(
    measure: str, level_s: float, policy: str, mine: Sequence[Cell], base: Sequence[Cell]
) -> Carried:
    seeds = sorted(set.intersection(*(set(cell.summaries) for cell in (*mine, *base))))
    pairs = [
        tuple(crossing(_curve(cells, measure, seed), level_s) for cells in (mine, base))
        for seed in seeds
    ]
    return Carried(
        measure,
        level_s,
        policy,
        tuple(ours[0] for ours, _ in pairs),
        tuple(ours[0] / theirs[0] for ours, theirs in pairs),
        "" if mine is base else _mark([_bound(ours[1], theirs[1]) for ours, theirs in pairs]),
    )


def _bound(ours: str, theirs: str) -> str:
    """How two bounds of loads bound their ratio."""
    if ours == theirs:
        return "" if not ours else "~"
    opposite = {"": "", ">=": "<", "<": ">="}
    bounds = {ours, opposite[theirs]} - {""}
    return _MARKS[bounds.pop()] if len(bounds) == 1 else "~"


def _mark(bounds: Sequence[str]) -> str:
    found = set(bounds) - {""}
    return "" if not found else found.pop() if len(found) == 1 else "~"


def _medians(cells: Sequence[Cell], measure: str) -> list[tuple[float, float]]:
    return [(cell.setting.pressure.value, median(cell.values(measure))) for cell in cells]


def _curve(cells: Sequence[Cell], measure: str, seed: int) -> list[tuple[float, float]]:
    return [
        (cell.setting.pressure.value, float(getattr(cell.summaries[seed], measure)))
        for cell in cells
    ]


def table(carried: Sequence[Carried], baseline: str) -> str:
    """As Markdown; above 1 is better."""
    head = ("latency of", "level, ms/token", "policy", "carries", f"/ {baseline}")
    return markdown(
        head,
        [
            (
                MEASURES[one.measure],
                f"{1000 * one.level_s:.1f}",
                one.policy,
                in_digits(Spread.of(one.loads)),
                f"{one.mark}{Spread.of(one.ratios)}",
            )
            for one in carried
        ],
    )


def as_dicts(carried: Sequence[Carried]) -> list[dict[str, object]]:
    """As JSON-able values."""
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
