"""``agentrt bench routing``: what routing a call costs, by how many replicas and live programs.

The thread's CPU time is read around each part of the router's work; routers alternate, and
every repeat draws other traffic, the same for all.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import median
from typing import Any

import click

from agentrt.executors.base import Progress
from agentrt.lab.bench.decisions import clock_read_us, no_collections
from agentrt.lab.bench.results import WHOLE, Column, Figures, Results, processor, show
from agentrt.lab.bench.traffic import MOST_BLOCKS, PARTS, SYSTEM_BLOCKS, Traffic
from agentrt.lab.commands.options import (
    ManyCommand,
    count_option,
    counts,
    json_option,
    many,
    note,
    seed_option,
)
from agentrt.lab.runs.grid import turns
from agentrt.router import make_router, router_names

COLUMNS = (
    Column("us a call", "call_us", "{:.1f} ({:.1f}-{:.1f})"),
    *(Column(f"{part} us", f"{part}_us", "{:.1f}") for part in PARTS),
    Column("median send us", "median_send_us", "{:.1f}"),
)
"""The median call's decision is apart: what others on the machine do to the caches makes some
calls many times as long."""
FOOTPRINT = (
    Column("bytes a program", "program", WHOLE),
    Column("bytes a held block", "block", WHOLE, "-"),
    Column("blocks held", "blocks", WHOLE),
)


@click.command(cls=ManyCommand)
@many("--router", metavar="NAME…", help="Which.  [default: all]")
@many("--replicas", metavar="N…", help="Over how many engines.  [default: 1,4,16,64]")
@many("--live", metavar="N…", help="How many live programs.  [default: 10,1000,10000]")
@count_option("--calls", default=2000)
@count_option("--repeat", default=3)
@seed_option
@json_option
def routing(**options: Any) -> None:
    """The CPU time that a router spends on a call, and the memory that it takes.

    Needs no model: programs whose prompts grow, replicas whose caches fill up, and notes of
    what they store and remove.
    """
    routers = list(options["router"]) or router_names()
    for name in routers:
        make_router(name)
    replicas = counts("--replicas", options["replicas"] or ("1", "4", "16", "64"))
    live = counts("--live", options["live"] or ("10", "1000", "10000"))
    measured = measure(
        routers, replicas, live, options["repeat"], options["calls"], options["seed"], progress=note
    )
    memory = Results({"router": "router"})
    for name in routers:
        note(f"memory of {max(live)} live programs under {name}")
        figures = footprint(name, max(replicas), max(live), options["seed"])
        memory.add(name, figures=figures)
    about = (
        f"Prompts of up to {MOST_BLOCKS} blocks, of which {SYSTEM_BLOCKS} are shared by a type; "
        f"CPU time of one thread on {processor()}."
    )
    tables = f"{about}\n\n{measured.table(COLUMNS)}\n\n{memory.table(FOOTPRINT)}"
    show(tables, measured.medians(), as_json=options["as_json"])


def measure(
    routers: Sequence[str],
    replicas: Sequence[int],
    live: Sequence[int],
    repeats: int,
    calls: int,
    seed: int,
    progress: Progress,
) -> Results:
    """Sample every router with so many replicas and programs, ``repeats`` times."""
    measured = Results({"router": "router", "replicas": "replicas", "live": "live programs"})
    measured.expect(product(routers, replicas, live))
    for repeat, count, programs in product(range(repeats), replicas, live):
        progress(f"repeat {repeat + 1} of {repeats}: {count} replicas, {programs} live programs")
        for router in turns(routers, repeat):
            traffic = Traffic(router, count, programs, seed + repeat)
            measured.add(router, count, programs, figures=sample(traffic, calls, programs))
    return measured


def sample(traffic: Traffic, calls: int, live: int) -> Figures:
    """Mean microseconds of CPU of so many calls by part, once caches are full and each program is
    known.
    """
    spent: dict[str, list[int]] = {part: [] for part in PARTS}
    for _ in range(max(calls, min(2 * live, 10_000))):
        _step(traffic, {part: [] for part in PARTS})
    with no_collections():
        for _ in range(calls):
            _step(traffic, spent)
        clock = clock_read_us()
    us = {f"{part}_us": max(0.0, sum(ns) / 1000 / calls - clock) for part, ns in spent.items()}
    usual = max(0.0, median(spent["send"]) / 1000 - clock)
    return {"call_us": sum(us.values()), **us, "median_send_us": usual}


def _step(traffic: Traffic, spent: Mapping[str, list[int]]) -> None:
    traffic.prepare()
    for part in PARTS:
        act = getattr(traffic, part)
        start = time.thread_time_ns()
        act()
        spent[part].append(time.thread_time_ns() - start)
    traffic.grow()


def footprint(router: str, replicas: int, live: int, seed: int = 0) -> Figures:
    """Bytes that a router keeps for each live program and each cached block, by Python's own
    account, once most programs have called; and how many blocks it knows.
    """
    traffic = Traffic(router, replicas, live, seed)
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(live):
            _step(traffic, {part: [] for part in PARTS})
        gc.collect()
        blocks = len(traffic.dispatcher.cached_blocks)
        cached = _bytes_of("cached_blocks.py")
        homes = _bytes_of("dispatch.py") + _bytes_of("policies.py")
    finally:
        tracemalloc.stop()
    known = max(1, traffic.dispatcher.programs)
    return {
        "program": homes / known,
        "block": cached / blocks if blocks else float("nan"),
        "blocks": blocks,
    }


def _bytes_of(file: str) -> int:
    taken = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, f"*/{file}")])
    return sum(entry.size for entry in taken.statistics("filename"))
