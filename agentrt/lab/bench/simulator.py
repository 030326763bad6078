"""``agentrt bench simulator``: how fast the step simulator is, and what a live program takes.

Rates are per CPU second of the one thread that simulates; policies alternate and see the
same programs at the same times.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import click

from agentrt.lab.backends.steps import simulate
from agentrt.lab.bench.crowd import BASELINE, SLOTS, Crowd, baseline_first
from agentrt.lab.bench.results import WHOLE, Column, Figures, Results, ratios, show
from agentrt.lab.commands.options import (
    ManyCommand,
    count_option,
    counts,
    json_option,
    many,
    note,
    seed_option,
)
from agentrt.lab.runs.contenders import Contender
from agentrt.lab.runs.grid import RunSpec, arrivals, turns
from agentrt.lab.runs.machine import Machine
from agentrt.lab.runs.pressure import Pressure
from agentrt.lab.runs.settings import Setting, Source
from agentrt.scheduler.config import SchedulerConfig

_POLICIES = (BASELINE, "atlas", "adaptive")
"""What is timed by default: the plainest, the paper's, and ours."""
SPEED = (
    Column("s", "wall_s"),
    Column("CPU s", "cpu_s"),
    *(Column(f"{what}/CPU s", f"{what}_per_s", WHOLE) for what in ("programs", "calls", "events")),
    Column(f"CPU s / {BASELINE}", "cpu_to_fcfs"),
)
MEMORY = (
    Column("bytes a program", "bytes", WHOLE),
    Column("later", "bytes_later", WHOLE),
    Column(f"ratio to {BASELINE}", "ratio", "{:.2f}"),
)


@click.command(cls=ManyCommand)
@many("--policies", metavar="NAME…", help=f"Which, beside fcfs.  [default: {', '.join(_POLICIES)}]")
@many("--programs", metavar="N…", help="How many are simulated.  [default: 1000,10000]")
@click.option("--workload", default="mixed", show_default=True, metavar="NAME")
@click.option("--load", default="0.95", show_default=True, metavar="X", help="Share of capacity.")
@click.option(
    "--live",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    metavar="N",
    help="How many programs wait where memory is measured.",
)
@count_option("--repeat", default=1)
@seed_option
@json_option
def simulator(**options: Any) -> None:
    """How fast the step simulator is, and the memory that a live program takes."""
    names = baseline_first(options["policies"] or _POLICIES)
    sizes = counts("--programs", options["programs"] or ("1000", "10000"))
    speed = measure(
        *(names, sizes, options["workload"], options["load"]),
        *(options["repeat"], options["seed"], note),
    )
    memory = Results({"policy": "policy"})
    base = None
    for name in names:
        note(f"memory of {options['live']} live programs under {name}")
        figures = footprint(name, options["live"], options["seed"])
        base = base or figures
        memory.add(name, figures={**figures, "ratio": figures["bytes"] / base["bytes"]})
    medians = {"speed": speed.medians(), "memory": memory.medians()}
    for one in medians["memory"]:
        del one["ratio"]
    tables = f"{speed.table(SPEED)}\n\n{memory.table(MEMORY)}"
    show(tables, medians, as_json=options["as_json"])


def measure(
    policies: Sequence[str],
    sizes: Sequence[int],
    workload: str,
    load: str,
    repeats: int,
    seed: int,
    tell: Callable[[str], None],
) -> Results:
    """Simulate so many programs of a workload under every policy, ``repeats`` times."""
    measured = Results({"policy": "policy", "programs": "programs"})
    measured.expect(product(policies, sizes))
    source, pressure = Source(workload), Pressure.parse(load)
    for repeat, count in product(range(repeats), sizes):
        setting, here = Setting(source, pressure, count), {}
        for policy in turns(policies, repeat):
            tell(f"repeat {repeat + 1} of {repeats}: {count} programs under {policy}")
            contender = Contender(SchedulerConfig(policy=policy))
            here[policy] = timed(RunSpec(setting, seed + repeat, contender, Machine()))
        for policy, mine in here.items():
            over = ratios(mine, here[BASELINE], ["cpu"], "_to_fcfs", of="_s")
            measured.add(policy, count, figures={**mine, **over})
    return measured


def timed(spec: RunSpec) -> Figures:
    """Simulate a run: its seconds on the clock and of CPU time, and what it did per CPU second."""
    programs = arrivals(spec)
    cpu, wall = time.thread_time(), time.perf_counter()
    batch, step_s = spec.machine.batch, spec.machine.step_s
    result = simulate(programs, spec.contender.scheduler, batch=batch, step_s=step_s)
    cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
    calls = sum(len(program.calls) for program in programs)
    done = {"programs": len(programs), "calls": calls, "events": result.events}
    per_s = {f"{name}_per_s": number / cpu for name, number in done.items()}
    return {"wall_s": wall, "cpu_s": cpu, **per_s}


def footprint(policy: str, live: int, seed: int = 0) -> Figures:
    """Bytes per live program in the process table and the queues, by Python's own account.

    ``bytes`` once the crowd has gathered, ``bytes_later`` after as many steps as it has
    programs, in each of which a call ended and another came. Names are included.
    """
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        crowd = Crowd(SchedulerConfig(policy=policy), live, seed)
        fresh = tracemalloc.get_traced_memory()[0] - before
        for _ in range(live):
            crowd.step()
        later = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    return {"bytes": fresh / (live + SLOTS), "bytes_later": later / (live + SLOTS)}
