"""What a policy's decisions cost, by how many programs are live.

The real queues and the real table run a crowd of programs (`agentrt.lab.bench.crowd`) without
an engine, and the calling thread's CPU time is read around each part of a step. Policies
alternate; every repeat draws another crowd, the same one for all policies.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from agentrt.lab.bench.crowd import SLOTS, Crowd
from agentrt.lab.reports.tables import Spread, markdown
from agentrt.scheduler.config import SchedulerConfig

BASELINE = "fcfs"
WARM_UP_STEPS = 300
PARTS = ("arrive", "choose", "end")
"""What happens to a call once, however long it runs: together, a decision."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One policy in one crowd: mean microseconds by part, and how many calls a step started.

    ``choose`` is per started call, since a step that preempts chooses several; ``charge``
    is per running call and step; ``arrive`` and ``end`` happen once a step.
    """

    us: Mapping[str, float]
    starts: float

    @property
    def decision_us(self) -> float:
        """A call arrives, is chosen once, and ends."""
        return sum(self.us[part] for part in PARTS)


Samples = Mapping[tuple[str, int], Sequence[Sample]]
"""By policy and number of live programs, the samples of all repeats."""


def measure(
    policies: Sequence[str],
    sizes: Sequence[int],
    repeats: int,
    steps: int,
    seed: int,
    tell: Callable[[str], None],
) -> Samples:
    """Sample every policy at every number of live programs, ``repeats`` times."""
    found: dict[tuple[str, int], list[Sample]] = {}
    for repeat, live in product(range(repeats), sizes):
        tell(f"repeat {repeat + 1} of {repeats}: {live} live programs")
        first = repeat % len(policies)
        for policy in [*policies[first:], *policies[:first]]:
            crowd = Crowd(SchedulerConfig(policy=policy), live, seed + repeat)
            found.setdefault((policy, live), []).append(sample(crowd, steps))
    return {key: found[key] for key in product(policies, sizes)}


def sample(crowd: Crowd, steps: int) -> Sample:
    """Let a crowd take so many steps, after some that warm it up."""
    for _ in range(WARM_UP_STEPS):
        _step(crowd, {})
    spent: dict[str, float] = {}
    before = crowd.started
    with no_collections():
        for _ in range(steps):
            _step(crowd, spent)
        clock_us = clock_read_us()
    starts = (crowd.started - before) / steps
    per = {"charge": SLOTS - 1, "choose": starts}
    return Sample(
        {
            part: max(0.0, ns / 1000 / steps - clock_us) / per.get(part, 1)
            for part, ns in spent.items()
        },
        starts,
    )


def _step(crowd: Crowd, spent: dict[str, float]) -> None:
    crowd.prepare()
    for part, act in crowd.parts.items():
        start = time.thread_time_ns()
        act()
        spent[part] = spent.get(part, 0.0) + time.thread_time_ns() - start


@contextmanager
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


def clock_read_us() -> float:
    """What reading the clock costs; it is in every part once."""
    reads = [time.thread_time_ns() for _ in range(1000)]
    return statistics.median(b - a for a, b in pairwise(reads)) / 1000


# -- tables ----------------------------------------------------------------------------


def costs_table(samples: Samples) -> str:
    """Microseconds as median (least-most) over the repeats, and the ratio to FCFS."""
    head = ("policy", "live", *(f"{part} us" for part in PARTS), "charge us", "starts a step")
    rows = [
        (
            policy,
            live,
            *(str(_spread(found, part)) for part in (*PARTS, "charge")),
            f"{statistics.median(one.starts for one in found):.2f}",
            str(_ratio(found, samples[BASELINE, live])),
        )
        for (policy, live), found in samples.items()
    ]
    return markdown((*head, f"decision / {BASELINE}"), rows)


def growth_table(samples: Samples) -> str:
    """What a decision costs in larger crowds over what it costs in the smallest.

    Beside that, how log n and n grow; n counts the programs that run, too.
    """
    policies, sizes = _axes(samples)
    least, *more = sorted(sizes)
    rows: list[Sequence[object]] = [
        [
            policy,
            f"{_decision(samples[policy, least]).median:.1f}",
            *(str(_ratio(samples[policy, live], samples[policy, least])) for live in more),
        ]
        for policy in policies
    ]
    n, larger = least + SLOTS, [live + SLOTS for live in more]
    rows.append(["log n", "", *(f"{math.log(live) / math.log(n):.2f}" for live in larger)])
    rows.append(["n", "", *(f"{live / n:.2f}" for live in larger)])
    return markdown(["policy", f"us at {least}", *(f"at {live}" for live in more)], rows)


def as_dicts(samples: Samples) -> list[dict[str, Any]]:
    """The medians, for a program to read."""
    return [
        {
            "policy": policy,
            "live": live,
            **{f"{part}_us": _spread(found, part).median for part in (*PARTS, "charge")},
            "starts_a_step": statistics.median(one.starts for one in found),
            "decision_us": _decision(found).median,
            "decision_to_fcfs": _ratio(found, samples[BASELINE, live]).median,
        }
        for (policy, live), found in samples.items()
    ]


def _axes(samples: Samples) -> tuple[list[str], list[int]]:
    policies, sizes = zip(*samples, strict=True)
    return list(dict.fromkeys(policies)), list(dict.fromkeys(sizes))


def _spread(found: Sequence[Sample], part: str) -> Spread:
    return Spread.of([one.us[part] for one in found])


def _decision(found: Sequence[Sample]) -> Spread:
    return Spread.of([one.decision_us for one in found])


def _ratio(mine: Sequence[Sample], base: Sequence[Sample]) -> Spread:
    """Repeat by repeat."""
    pairs = zip(mine, base, strict=True)
    return Spread.of([one.decision_us / other.decision_us for one, other in pairs])
