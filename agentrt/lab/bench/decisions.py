"""``agentrt bench decisions``: what a policy's decisions cost, by how many programs are live.

The real queues and the real table run a crowd of programs (`agentrt.lab.bench.crowd`) without
an engine, and the calling thread's CPU time is read around each part of a step. Policies
alternate; every repeat draws another crowd, the same one for all policies.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise, product
from typing import Any

import click

from agentrt.lab.bench.crowd import BASELINE, SLOTS, Crowd, baseline_first
from agentrt.lab.bench.results import Column, Figures, Results, ratios, show
from agentrt.lab.commands.options import (
    ManyCommand,
    count_option,
    counts,
    json_option,
    many,
    note,
    seed_option,
)
from agentrt.lab.reports.tables import Spread, markdown
from agentrt.lab.runs.grid import turns
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import policy_names

WARM_UP_STEPS = 300
PARTS = ("arrive", "choose", "end")
"""What happens to a call once, however long it runs: together, a decision."""
COLUMNS = (
    *(Column(f"{part} us", f"{part}_us") for part in (*PARTS, "charge")),
    Column("starts a step", "starts_a_step", "{:.2f}"),
    Column(f"decision / {BASELINE}", "decision_to_fcfs"),
)


@click.command(cls=ManyCommand)
@many("--policies", metavar="NAME…", help="Which, beside fcfs.  [default: all]")
@many("--live", metavar="N…", help="How many programs wait.  [default: 10,1000,100000]")
@count_option("--steps", default=1000)
@count_option("--repeat", default=5)
@seed_option
@json_option
def decisions(**options: Any) -> None:
    """The CPU time of a policy's decisions, by how many programs are live.

    Needs no model: the real queues and process table, 64 calls that run, and so many
    programs with a call that waits. In each step a call ends and another arrives.
    """
    names = baseline_first(options["policies"] or policy_names())
    live = sorted(counts("--live", options["live"] or ("10", "1000", "100000")))
    measured = measure(names, live, options["repeat"], options["steps"], options["seed"], tell=note)
    tables = f"{measured.table(COLUMNS)}\n\n{growth_table(measured, names, live)}"
    show(tables, measured.medians(), as_json=options["as_json"])


def measure(
    policies: Sequence[str],
    sizes: Sequence[int],
    repeats: int,
    steps: int,
    seed: int,
    tell: Callable[[str], None],
) -> Results:
    """Sample every policy at every number of live programs, ``repeats`` times."""
    measured = Results({"policy": "policy", "live": "live"})
    measured.expect(product(policies, sizes))
    for repeat, live in product(range(repeats), sizes):
        tell(f"repeat {repeat + 1} of {repeats}: {live} live programs")
        here = {
            policy: sample(Crowd(SchedulerConfig(policy=policy), live, seed + repeat), steps)
            for policy in turns(policies, repeat)
        }
        for policy, mine in here.items():
            over = ratios(mine, here[BASELINE], ["decision"], "_to_fcfs", of="_us")
            measured.add(policy, live, figures={**mine, **over})
    return measured


def sample(crowd: Crowd, steps: int) -> Figures:
    """Mean microseconds by part of so many steps, after some that warm the crowd up.

    ``choose`` is per started call, since a step that preempts chooses several; ``charge`` is per
    running call and step; ``arrive`` and ``end`` happen once a step. A decision is a call that
    arrives, is chosen once, and ends.
    """
    for _ in range(WARM_UP_STEPS):
        crowd.step()
    spent = dict.fromkeys((*PARTS, "charge"), 0)
    before = crowd.started
    with no_collections():
        for _ in range(steps):
            _step(crowd, spent)
        clock_us = clock_read_us()
    starts = (crowd.started - before) / steps
    per = {"charge": SLOTS - 1, "choose": starts}
    us = {
        f"{part}_us": max(0.0, ns / 1000 / steps - clock_us) / per.get(part, 1)
        for part, ns in spent.items()
    }
    decision_us = sum(us[f"{part}_us"] for part in PARTS)
    return {**us, "starts_a_step": starts, "decision_us": decision_us}


def _step(crowd: Crowd, spent: dict[str, int]) -> None:
    crowd.prepare()
    for part, act in crowd.parts.items():
        start = time.thread_time_ns()
        act()
        spent[part] += time.thread_time_ns() - start


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


def growth_table(measured: Results, policies: Sequence[str], sizes: Sequence[int]) -> str:
    """What a decision costs in larger crowds over what it costs in the smallest, by repeats.

    Beside that, how log n and n grow; n counts the programs that run, too.
    """
    least, *more = sizes
    rows: list[Sequence[object]] = []
    for policy in policies:
        base, *others = (measured.values((policy, live), "decision_us") for live in sizes)
        over = [[a / b for a, b in zip(mine, base, strict=True)] for mine in others]
        rows.append([policy, f"{statistics.median(base):.1f}", *map(Spread.of, over)])
    n, larger = least + SLOTS, [live + SLOTS for live in more]
    rows.append(["log n", "", *(f"{math.log(live) / math.log(n):.2f}" for live in larger)])
    rows.append(["n", "", *(f"{live / n:.2f}" for live in larger)])
    return markdown(["policy", f"us at {least}", *(f"at {live}" for live in more)], rows)
