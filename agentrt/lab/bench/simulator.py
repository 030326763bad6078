"""How fast the step simulator is, and what a live program takes in memory.

Rates are per CPU second of the one thread that simulates; policies alternate and see the
same programs at the same times.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from agentrt.lab.backends.steps import simulate
from agentrt.lab.bench.crowd import SLOTS, Crowd
from agentrt.lab.reports.tables import Spread, markdown
from agentrt.lab.runs.contenders import Contender
from agentrt.lab.runs.grid import RunSpec, arrivals
from agentrt.lab.runs.machine import Machine
from agentrt.lab.runs.pressure import Pressure
from agentrt.lab.runs.settings import Setting, Source
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.scheduler.config import SchedulerConfig

BASELINE = "fcfs"


@dataclass(frozen=True, slots=True)
class Timing:
    """One simulated run: how much there was to do, and the seconds that it took.

    ``cpu_s`` is CPU time, ``wall_s`` what a clock on the wall says.
    """

    programs: int
    calls: int
    events: int
    cpu_s: float
    wall_s: float


Timings = Mapping[tuple[str, int], Sequence[Timing]]
"""By policy and number of programs, the timings of all repeats."""


def measure(
    policies: Sequence[str],
    sizes: Sequence[int],
    workload: str,
    load: str,
    repeats: int,
    seed: int,
    tell: Callable[[str], None],
) -> Timings:
    """Simulate so many programs of a workload under every policy, ``repeats`` times."""
    found: dict[tuple[str, int], list[Timing]] = {}
    source, pressure = Source(workload), Pressure.parse(load)
    for repeat, count in product(range(repeats), sizes):
        first = repeat % len(policies)
        for policy in [*policies[first:], *policies[:first]]:
            tell(f"repeat {repeat + 1} of {repeats}: {count} programs under {policy}")
            config = SchedulerConfig(policy=policy)
            spec = RunSpec(
                Setting(source, pressure, count), seed + repeat, Contender(config), Machine()
            )
            found.setdefault((policy, count), []).append(_timed(spec, arrivals(spec)))
    return {key: found[key] for key in product(policies, sizes)}


def _timed(spec: RunSpec, programs: Sequence[ProgramShape]) -> Timing:
    cpu, wall = time.thread_time(), time.perf_counter()
    batch, step_s = spec.machine.batch, spec.machine.step_s
    result = simulate(programs, spec.contender.scheduler, batch=batch, step_s=step_s)
    cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
    calls = sum(len(program.calls) for program in programs)
    return Timing(len(programs), calls, result.events, cpu, wall)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes per live program in the process table and the queues, names included.

    ``fresh`` after the crowd has gathered, ``later`` after as many steps as it has
    programs, in each of which a call ended and another came.
    """

    fresh: float
    later: float


def footprint(policy: str, live: int, seed: int = 0) -> Footprint:
    """What a crowd of ``live`` waiting programs takes, by Python's own account."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        crowd = Crowd(SchedulerConfig(policy=policy), live, seed)
        fresh = tracemalloc.get_traced_memory()[0] - before
        for _ in range(live):
            crowd.prepare()
            for act in crowd.parts.values():
                act()
        later = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    return Footprint(fresh / (live + SLOTS), later / (live + SLOTS))


# -- tables ----------------------------------------------------------------------------


def speed_table(timings: Timings) -> str:
    """Medians, and seconds as median (least-most) over the repeats."""
    head = ("policy", "programs", "s", "CPU s", "programs/CPU s", "calls/CPU s", "events/CPU s")
    rows = [
        (
            policy,
            count,
            str(Spread.of([one.wall_s for one in found])),
            str(Spread.of([one.cpu_s for one in found])),
            *(f"{_rate(found, what).median:.0f}" for what in ("programs", "calls", "events")),
            str(_ratio(found, timings[BASELINE, count])),
        )
        for (policy, count), found in timings.items()
    ]
    return markdown((*head, f"CPU s / {BASELINE}"), rows)


def footprint_table(found: Mapping[str, Footprint]) -> str:
    """Bytes per live program by policy."""
    base = found[BASELINE]
    rows = [
        (policy, f"{one.fresh:.0f}", f"{one.later:.0f}", f"{one.fresh / base.fresh:.2f}")
        for policy, one in found.items()
    ]
    return markdown(("policy", "bytes a program", "later", f"ratio to {BASELINE}"), rows)


def as_dict(timings: Timings, footprints: Mapping[str, Footprint]) -> dict[str, Any]:
    """The medians, for a program to read."""
    speed = [
        {
            "policy": policy,
            "programs": count,
            "wall_s": Spread.of([one.wall_s for one in found]).median,
            "cpu_s": Spread.of([one.cpu_s for one in found]).median,
            **{f"{w}_per_s": _rate(found, w).median for w in ("programs", "calls", "events")},
            "cpu_to_fcfs": _ratio(found, timings[BASELINE, count]).median,
        }
        for (policy, count), found in timings.items()
    ]
    memory = [
        {"policy": policy, "bytes": one.fresh, "bytes_later": one.later}
        for policy, one in footprints.items()
    ]
    return {"speed": speed, "memory": memory}


def _rate(found: Sequence[Timing], what: str) -> Spread:
    return Spread.of([getattr(one, what) / one.cpu_s for one in found])


def _ratio(mine: Sequence[Timing], base: Sequence[Timing]) -> Spread:
    """Repeat by repeat."""
    return Spread.of([one.cpu_s / other.cpu_s for one, other in zip(mine, base, strict=True)])
