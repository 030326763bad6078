"""What routing a call costs, by how many replicas and how many live programs there are.

The thread's CPU time is read around each part of the router's work; routers alternate, and
every repeat draws other traffic, the same for all.
"""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from agentrt.lab.bench.decisions import clock_read_us, no_collections
from agentrt.lab.bench.traffic import MOST_BLOCKS, SYSTEM_BLOCKS, Traffic
from agentrt.lab.reports.tables import Spread, markdown

PARTS = ("send", "end", "hear")
"""What happens with a call once: it is routed, it comes back, and its engine tells."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One router under one traffic: mean microseconds of CPU by part.

    ``usual_us`` is the median call's decision: what others on the machine do to the caches
    makes some calls many times as long.
    """

    us: Mapping[str, float]
    usual_us: float

    @property
    def call_us(self) -> float:
        """All that the router does for a call."""
        return sum(self.us.values())


Samples = Mapping[tuple[str, int, int], Sequence[Sample]]
"""By router, replicas and live programs, the samples of all repeats."""


def measure(
    routers: Sequence[str],
    replicas: Sequence[int],
    live: Sequence[int],
    repeats: int,
    calls: int,
    seed: int,
    tell: Callable[[str], None],
) -> Samples:
    """Sample every router with so many replicas and programs, ``repeats`` times."""
    found: dict[tuple[str, int, int], list[Sample]] = {}
    for repeat, count, programs in product(range(repeats), replicas, live):
        tell(f"repeat {repeat + 1} of {repeats}: {count} replicas, {programs} live programs")
        first = repeat % len(routers)
        for router in [*routers[first:], *routers[:first]]:
            traffic = Traffic(router, count, programs, seed + repeat)
            found.setdefault((router, count, programs), []).append(sample(traffic, calls, programs))
    return {key: found[key] for key in product(routers, replicas, live)}


def sample(traffic: Traffic, calls: int, live: int) -> Sample:
    """Route so many calls, after enough to fill the caches and to know each program."""
    spent: dict[str, list[int]] = {part: [] for part in PARTS}
    for _ in range(max(calls, min(2 * live, 10_000))):
        _step(traffic, {part: [] for part in PARTS})
    with no_collections():
        for _ in range(calls):
            _step(traffic, spent)
        clock = clock_read_us()
    means = {part: sum(ns) / 1000 / calls - clock for part, ns in spent.items()}
    usual = statistics.median(spent["send"]) / 1000 - clock
    return Sample({part: max(0.0, us) for part, us in means.items()}, max(0.0, usual))


def _step(traffic: Traffic, spent: dict[str, list[int]]) -> None:
    traffic.prepare()
    for part in PARTS:
        act = getattr(traffic, part)
        start = time.thread_time_ns()
        act()
        spent[part].append(time.thread_time_ns() - start)
    traffic.grow()


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a router's books: for each live program, and for each block that is known held."""

    program: float
    block: float
    blocks: int


def footprint(router: str, replicas: int, live: int, seed: int = 0) -> Footprint:
    """What the books take, by Python's own account, once most programs have called."""
    traffic = Traffic(router, replicas, live, seed)
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(live):
            traffic.prepare()
            for part in PARTS:
                getattr(traffic, part)()
            traffic.grow()
        gc.collect()
        index = _bytes_of("cached_blocks.py")
        homes = _bytes_of("dispatch.py") + _bytes_of("policies.py")
        known = max(1, traffic.dispatcher.programs)
        blocks = len(traffic.dispatcher.cached_blocks)
    finally:
        tracemalloc.stop()
    return Footprint(homes / known, index / blocks if blocks else 0.0, blocks)


def _bytes_of(file: str) -> int:
    taken = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, f"*/{file}")])
    return sum(entry.size for entry in taken.statistics("filename"))


# -- tables ----------------------------------------------------------------------------


def costs_table(samples: Samples) -> str:
    """Microseconds a call, median (least-most) over the repeats: the whole, and its parts."""
    rows = []
    for (router, replicas, live), found in samples.items():
        parts = [f"{Spread.of([one.us[part] for one in found]).median:.1f}" for part in PARTS]
        whole = Spread.of([one.call_us for one in found])
        told = f"{whole.median:.1f} ({whole.least:.1f}-{whole.most:.1f})"
        usual = f"{Spread.of([one.usual_us for one in found]).median:.1f}"
        rows.append([router, replicas, live, told, *parts, usual])
    head = ["router", "replicas", "live programs", "us a call", *(f"{part} us" for part in PARTS)]
    head.append("median send us")
    return markdown(head, rows)


def footprint_table(found: Mapping[str, Footprint]) -> str:
    """Bytes by router."""
    rows = [
        [router, f"{one.program:.0f}", f"{one.block:.0f}" if one.blocks else "-", one.blocks]
        for router, one in found.items()
    ]
    return markdown(["router", "bytes a program", "bytes a held block", "blocks held"], rows)


def conditions() -> str:
    """What the traffic is, and the CPU that it was measured on."""
    return (
        f"Prompts of up to {MOST_BLOCKS} blocks, of which {SYSTEM_BLOCKS} are shared by a type; "
        f"CPU time of one thread on {_cpu()}."
    )


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123  # a line is enough
            return next(line.split(":")[1].strip() for line in file if "model name" in line)
    except (OSError, StopIteration):
        return "an unknown CPU"


def as_dicts(samples: Samples) -> list[dict[str, Any]]:
    """The medians, for a program to read."""
    return [
        {
            "router": router,
            "replicas": replicas,
            "live": live,
            "call_us": Spread.of([one.call_us for one in found]).median,
            **{f"{p}_us": Spread.of([one.us[p] for one in found]).median for p in PARTS},
            "median_send_us": Spread.of([one.usual_us for one in found]).median,
        }
        for (router, replicas, live), found in samples.items()
    ]
