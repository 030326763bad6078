"""``agentrt bench memory``: who serves programs best when they do not all fit into the KV cache.

The same programs arrive at the same times on one engine with each contender in turn: vLLM as it
is, rivals' rules before or inside it, and ours, part by part. vLLM's real scheduler and KV-cache
manager decide; a step takes what the step-time model says, so the machine does not matter.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click

from agentrt.errors import ConfigError
from agentrt.lab.bench.results import run_shown, show
from agentrt.lab.commands.options import count_option, json_flag, note, seed_option, split_commas
from agentrt.lab.commands.outputs import check_plot, silence_vllm
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.reports.memory import Found, as_json, draw, table
from agentrt.lab.runs.contenders import STOCK
from agentrt.lab.runs.memory import WORKS, Cell, Memory
from agentrt.lab.runs.rivals import CONTINUUM, DEFAULT, HOW, THUNDER, rival
from agentrt.lab.workloads.traces import read_programs
from agentrt.scheduler.retention.gaps import PRIOR_S

_CAPS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
_QUICK_CAPS = (0.75, 1.5, 3.0)
"""The caps that are tried, in multiples of the programs that fit into memory at a time."""
_CONTENDERS = (
    STOCK,
    DEFAULT,
    THUNDER,
    CONTINUUM,
    "atlas",
    "adaptive",
    "fcfs+cost",
    "adaptive+cost",
    "fcfs+memory",
    "adaptive+memory",
)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_names = partial(click.option, multiple=True, callback=split_commas)

EPILOG = """\b
One cell with what you want to compare, in seconds:
  agentrt bench memory --workload chat --repeat 1 --contender adaptive,adaptive+cost --caps 0

\b
--memory counts for all workloads but chat, the KV-bound chat of 1,024 blocks.
Contenders: {}.
""".format(HOW.replace("; ", ";\n  "))


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells, whom to run on each, and the caps to try."""

    cells: Sequence[Cell]
    contenders: Sequence[str]
    caps: Sequence[float]
    seeds: Sequence[int]


@click.command(epilog=EPILOG)
@_names("--workload", metavar="NAME,…", help=f"{', '.join(WORKS)}.  [default: all]")
@_names("--memory", metavar="X,…", help="Shares of the working set.  [default: 0.25]")
@_names("--tools", metavar="S,…", help="Median seconds of the commonest tool.")
@_names("--contender", metavar="NAME,…", help=f"Beside stock.  [default: {','.join(_CONTENDERS)}]")
@_names("--caps", metavar="X,…", help="Caps, in multiples of the programs that fit; 0: none.")
@click.option("--trace", type=_FILE, metavar="FILE", help="Recorded agents for 'coding'.")
@click.option("--trace-scale", default=0.1, show_default=True, metavar="X")
@click.option("--step-time", type=_FILE, metavar="FILE", help="What agentrt calibrate wrote.")
@count_option("--blocks", about="Of the KV cache, in place of --memory.")
@click.option("--load", type=float, metavar="X", help="Arrivals, in shares of the engine's.")
@count_option("--programs")
@count_option("--max-num-seqs", default=16)
@count_option("--repeat", about="With so many seeds.  [default: 5; 1 with --quick]")
@seed_option
@click.option("--quick", is_flag=True, help="One seed, fewer caps: some minutes on one core.")
@json_flag("End with all cells as one JSON line.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw the cells.")
def memory(**options: Any) -> None:
    """Programs whose contexts do not fit into the KV cache: stock, rivals, and our parts.

    In virtual time: vLLM's real scheduler and KV-cache manager, no model. The working set is the
    peak of all that is used again; recomputed is the prefill beyond what ample memory needs; a
    delay is a program's latency beyond its own with the engine to itself. best_cap is, figure by
    figure, the best of all caps on programs at a time; one_cap is the one of them with the least
    mean.
    """
    plan = _plan(options)
    check_plot(options["plot"])
    silence_vllm()
    bench = _bench(options)
    measured: dict[Cell, list[Found]] = {}

    def tell() -> None:
        cells = {cell: found for cell, found in measured.items() if found}
        tables = [f"{_head(cell, found)}\n\n{table(found)}" for cell, found in cells.items()]
        told = [as_json({**asdict(c), "seeds": len(f)}, f) for c, f in cells.items()]
        show(tables, {"cells": told}, as_json=options["as_json"])
        if options["plot"] and told:
            draw(told, options["plot"])

    run_shown(_seeds(bench, plan, measured), tell)


def _plan(options: dict[str, Any]) -> Plan:
    """What is asked for. Raises `ConfigError` before anything runs."""
    works = options["workload"] or tuple(WORKS)
    for name in works:
        if name not in WORKS:
            raise ConfigError(f"no workload is named {name!r}: there are {', '.join(WORKS)}")
    shares = _numbers(options, "memory") or [0.25]
    tools = _numbers(options, "tools", least=0.0)
    cells = [
        Cell(work, share, tool_s)
        for work, share in product(works, shares)
        for tool_s in tools or [WORKS[work].tool_s]
    ]
    names = list(dict.fromkeys([STOCK, *(options["contender"] or _CONTENDERS)]))
    for name in names:
        rival(name)
    quick = options["quick"]
    caps = _numbers(options, "caps", least=0.0) or (_QUICK_CAPS if quick else _CAPS)
    repeats = options["repeat"] or (1 if quick else 5)
    seeds = range(options["seed"], options["seed"] + repeats)
    return Plan(list(dict.fromkeys(cells)), names, [cap for cap in caps if cap], seeds)


def _numbers(options: dict[str, Any], name: str, least: float = 1e-3) -> list[float]:
    found = []
    for text in options[name]:
        try:
            found.append(float(text))
        except ValueError:
            found.append(-1.0)
        if not least <= found[-1] < float("inf"):
            raise ConfigError(f"--{name} {text!r}: give numbers such as 0.25,1")
    return found


def _bench(options: dict[str, Any]) -> Memory:
    trace = None
    if options["trace"] is not None:
        scale = options["trace_scale"]
        read = read_programs(
            options["trace"], context_scale=scale, output_scale=scale, gap_scale=1 / PRIOR_S
        )
        note(read.report())
        trace = read.programs
    file = options["step_time"]
    return Memory(
        None if file is None else StepTimeModel.load(file),
        options["max_num_seqs"],
        options["blocks"],
        options["programs"],
        options["load"],
        trace,
    )


async def _seeds(bench: Memory, plan: Plan, measured: dict[Cell, list[Found]]) -> None:
    for cell, seed in product(plan.cells, plan.seeds):
        began = time.monotonic()
        note(f"{cell}, seed {seed}")
        found = bench.run(cell, seed, plan.contenders, plan.caps, note)
        measured.setdefault(cell, []).append(found)
        note(f"  {time.monotonic() - began:.0f} s")
        await asyncio.sleep(0)  # where a signal stops it


def _head(cell: Cell, found: Sequence[Found]) -> str:
    stock = found[0][STOCK]
    return f"**{cell}**: {stock['blocks']:.0f} of {stock['wanted']:.0f} blocks, {len(found)} seeds"
