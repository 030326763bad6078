"""``benchmarks interrupts``: the cost of a tool call in a program, compared with the same call made
only with the library of the transport (threads, processes, MCP, MQTT).

Both sides call the same function over the same transport (`benchmarks.interrupts.transports`). The
sides take turns of at most `TURN` calls in one process.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import click

from agentrt import Context, Runtime, program
from agentrt.interrupts import Tool
from agentrt.lab.commands.options import (
    ManyCommand,
    count_option,
    flag_option,
    many,
    note,
)
from agentrt.lab.runs.grid import turns
from benchmarks.harness import (
    SPREAD,
    Column,
    Figures,
    Results,
    no_collections,
    percentile,
    run_shown,
    show,
)
from benchmarks.interrupts.transports import TRANSPORTS, Call
from benchmarks.options import (
    json_option,
    repeat_option,
)
from tests.doubles.scripted import ScriptedExecutor

TURN = 10
"""The largest number of calls that a side makes in a turn, before the turn of the other side."""
AT_ONCE = 1000
ROUNDS = 5
"""In each repeat, the number of times that `AT_ONCE` calls start together; ``--quick`` makes
fewer.
"""
_FIND_S = 30.0
Sides = Mapping[str, Call]
"""The two sides by key: the call of the bare library (``bare_``), and agentrt's call (""). The
names of a side's figures begin with its key.
"""
_QUICK = {"calls": 200, "repeat": 3, "rounds": 2}
COLUMNS = (
    Column("bare P50 us", "bare_p50_us", "{:.0f}"),
    Column("P50 us", "p50_us", "{:.0f}"),
    Column("P50 / bare", "p50_ratio", SPREAD),
    Column("bare P99 us", "bare_p99_us", "{:.0f}"),
    Column("P99 us", "p99_us", "{:.0f}"),
    Column("P99 / bare", "p99_ratio", SPREAD),
    Column("bare 1,000 at once s", "bare_at_once_s", "{:.2f}"),
    Column("1,000 at once s", "at_once_s", "{:.2f}"),
    Column("at once / bare", "at_once_ratio", SPREAD),
)


@click.command(cls=ManyCommand)
@many(
    "--transport",
    metavar="NAME,…",
    help=f"Transports to measure: {', '.join(TRANSPORTS)}.  [default: all]",
    former=["--transports"],
)
@count_option("--calls", default=1000, about="Number of calls of each side in a repeat.")
@repeat_option(5)
@flag_option(
    "--quick",
    "Make 3 repeats, each with 200 calls one after the other, and 2 rounds of 1,000 calls at "
    "once. --calls and --repeat then have no effect.",
)
@json_option
def interrupts(**options: Any) -> None:
    """Compare the time of a tool call in a program with the bare library's round trip.

    Needs no model. MCP needs agentrt[mcp], MQTT agentrt[mqtt] and Mosquitto.
    """
    names = options["transport"] or tuple(TRANSPORTS)
    if unknown := [name for name in names if name not in TRANSPORTS]:
        raise click.UsageError(
            f"unknown --transport {unknown[0]!r}; available: {', '.join(TRANSPORTS)}"
        )
    sizes = _QUICK if options["quick"] else {**options, "rounds": ROUNDS}
    measured = Results({"transport": "transport"})
    measured.expect((name,) for name in names)
    turned = sizes["calls"], sizes["repeat"], note, AT_ONCE, sizes["rounds"]

    def print_tables() -> None:
        values = {"transports": measured.medians()}
        show(measured.table(COLUMNS), values, as_json=options["as_json"])

    run_shown(measure(measured, names, *turned), print_tables)


async def measure(
    measured: Results,
    names: Sequence[str],
    calls: int,
    repeats: int,
    progress: Callable[[str], None],
    at_once: int = AT_ONCE,
    rounds: int = ROUNDS,
) -> None:
    """Measure each transport in each repeat."""
    for name in names:

        async def sample_all(sides: Sides, name: str = name) -> None:
            await both_at_once(sides, 0, at_once, 1)  # import modules and start workers
            for repeat in range(repeats):
                progress(f"{name}: repeat {repeat + 1} of {repeats}")
                each = await one_by_one(sides, calls, repeat)
                together = await both_at_once(sides, repeat, at_once, rounds)
                measured.add(name, figures={**each, **together})

        await in_a_program(name, sample_all)


async def in_a_program(name: str, work: Callable[[Sides], Awaitable[None]]) -> None:
    """Do the work inside a program, with the call of the bare library and with agentrt's call."""
    async with (
        TRANSPORTS[name]() as (bare, tool, transports),
        Runtime(ScriptedExecutor(), tools=transports) as runtime,
    ):

        @program
        async def calling(ctx: Context) -> None:
            own = tool if isinstance(tool, Tool) else await _offered(ctx, tool)
            await work({"bare_": bare, "": lambda x: ctx.tool(own, x=x)})

        await runtime.start(calling).wait()


async def _offered(ctx: Context, name: str) -> Tool:
    """Wait until a tool is offered, and return it."""
    async with asyncio.timeout(_FIND_S):
        while True:
            for tool in await ctx.tools():
                if tool.name == name:
                    return tool
            await asyncio.sleep(0.05)


async def one_by_one(sides: Sides, calls: int, repeat: int) -> Figures:
    """Make calls of each side, in turns. Return the median and the 99th percentile of each side's
    times in microseconds, and the ratios of agentrt's values to the bare library's.
    """
    times: dict[str, list[float]] = {side: [] for side in sides}
    with no_collections():
        for turn, first in enumerate(range(0, calls, TURN)):
            for side in turns(list(sides), repeat + turn):
                for x in range(min(TURN, calls - first)):
                    began = time.perf_counter()
                    await sides[side](x)
                    times[side].append(time.perf_counter() - began)
    figures: dict[str, float] = {}
    for side, each in times.items():
        for percent in (50, 99):
            figures[f"{side}p{percent}_us"] = percentile(each, percent / 100) * 1e6
    for name in ("p50", "p99"):
        figures[f"{name}_ratio"] = figures[f"{name}_us"] / figures[f"bare_{name}_us"]
    return figures


async def both_at_once(sides: Sides, repeat: int, at_once: int, rounds: int) -> Figures:
    """Start ``at_once`` calls at the same time, and wait until all have ended. Return the median
    seconds that this takes in ``rounds`` rounds, for each side, and the ratio of agentrt's median
    to the bare library's.
    """
    times: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(rounds):
        for side in turns(list(sides), repeat + turn):
            gc.collect()  # so that a side does not pay for the garbage of the other
            began = time.perf_counter()
            await asyncio.gather(*(sides[side](x) for x in range(at_once)))
            times[side].append(time.perf_counter() - began)
    figures = {f"{side}at_once_s": statistics.median(each) for side, each in times.items()}
    figures["at_once_ratio"] = figures["at_once_s"] / figures["bare_at_once_s"]
    return figures
