"""Routers side by side: the same programs on the same replicas, and what each makes of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import median

from agentrt.lab.outcome import Summary
from agentrt.lab.runs.contenders import Contender
from agentrt.lab.runs.grid import RunResult, RunSpec
from agentrt.lab.runs.machine import Machine
from agentrt.lab.runs.settings import Setting
from agentrt.scheduler import SchedulerConfig

MEASURES = {
    "mean_s": "mean, s",
    "p50_s": "P50, s",
    "p95_s": "P95, s",
    "p99_s": "P99, s",
    "slowdown": "slowdown",
    "prefix_hit_share": "hit rate",
    "balance": "balance",
    "throughput_per_s": "programs/s",
}
"""Fields of `Summary` that routers are compared by, with the heads of their columns."""


@dataclass(slots=True)
class Routed:
    """A router on so many replicas under a setting: its summaries by seed."""

    setting: Setting
    replicas: int
    router: str
    summaries: dict[int, Summary] = field(default_factory=dict)

    def values(self, measure: str) -> list[float]:
        """A measure, seed by seed; NaN where it is not known."""
        found = [getattr(self.summaries[seed], measure) for seed in sorted(self.summaries)]
        return [math.nan if value is None else float(value) for value in found]

    def ratios(self, measure: str, other: Routed) -> list[float]:
        """A measure over that of another router, for the seeds that both have."""
        both = sorted(self.summaries.keys() & other.summaries.keys())
        pairs = [
            (getattr(self.summaries[s], measure), getattr(other.summaries[s], measure))
            for s in both
        ]
        return [mine / theirs for mine, theirs in pairs if theirs]

    def median(self, measure: str) -> float:
        """The median over the seeds."""
        return median(self.values(measure))


def specs(
    settings: Sequence[Setting],
    replicas: Sequence[int],
    routers: Sequence[str],
    seeds: Sequence[int],
    scheduler: SchedulerConfig,
    machine: Machine,
) -> list[RunSpec]:
    """The runs, those with the same programs side by side.

    A setting's number of programs is for each replica: it is multiplied by how many there are.
    """
    return [
        RunSpec(
            replace(setting, programs=setting.count * count),
            seed,
            Contender(scheduler),
            replace(machine, replicas=count, router=router),
        )
        for setting, count, seed, router in product(settings, replicas, seeds, routers)
    ]


def gather(results: Iterable[RunResult]) -> list[Routed]:
    """The runs that are done, by setting, replicas and router, in the order of the first."""
    found: dict[tuple[Setting, int, str], Routed] = {}
    for result in results:
        machine = result.spec.machine
        key = (result.spec.setting, machine.replicas, machine.router)
        found.setdefault(key, Routed(*key)).summaries[result.spec.seed] = result.summary
    return list(found.values())


def groups(found: Sequence[Routed]) -> Iterator[list[Routed]]:
    """Those that ran the same programs on as many replicas, together."""
    keys = dict.fromkeys((one.setting, one.replicas) for one in found)
    for key in keys:
        yield [one for one in found if (one.setting, one.replicas) == key]


def best(group: Sequence[Routed], measure: str, but: Routed) -> Routed | None:
    """Of a group, the router with the least median of a measure, ``but`` that one."""
    others = [one for one in group if one is not but]
    return min(others, key=lambda one: one.median(measure), default=None)


@dataclass(frozen=True, slots=True)
class Scaled:
    """More replicas against the fewest, for one router: medians over seeds.

    ``steady_per_s`` are programs that end per second while others arrive. ``linear`` is which
    share that is of those that arrive, over the same share with the fewest replicas; ``mean``
    and ``p95`` are latencies over theirs.
    """

    setting: Setting
    router: str
    replicas: int
    steady_per_s: float
    linear: float
    mean: float
    p95: float


def scaling(found: Sequence[Routed]) -> list[Scaled]:
    """How each router's throughput and latency grow with the replicas."""
    answers = []
    for one in found:
        same = [o for o in found if (_what(o), o.router) == (_what(one), one.router)]
        base = min(same, key=lambda o: o.replicas)
        answers.append(
            Scaled(
                one.setting,
                one.router,
                one.replicas,
                one.median("steady_per_s"),
                _over(one, base, "steady_per_s") / _over(one, base, "offered_per_s"),
                _over(one, base, "mean_s"),
                _over(one, base, "p95_s"),
            )
        )
    return answers


def _what(one: Routed) -> tuple[str, str]:
    return one.setting.source.name, str(one.setting.pressure)


def _over(one: Routed, base: Routed, measure: str) -> float:
    return median(one.ratios(measure, base) or [math.nan])
