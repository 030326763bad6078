"""``agentrt bench memory``: who serves programs best when they do not all fit into the KV cache.

The same programs arrive at the same times on one engine with each contender in turn: vLLM as it
is, rivals' rules before or inside it, and ours, part by part. vLLM's real scheduler and KV-cache
manager decide; a step takes what the step-time model says, so the machine does not matter. With
``--real`` engines serve them first, and then virtual time with the steps that were measured there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import click

from agentrt.errors import ConfigError
from agentrt.executors.vllm.options import prepare_environment
from agentrt.lab.bench.memory_engines import ON_CPU, SLOTS, Engines
from agentrt.lab.bench.results import Figures, hardware, run_shown, show
from agentrt.lab.commands.options import (
    count_option,
    json_flag,
    model_option,
    note,
    seed_option,
    split_commas,
)
from agentrt.lab.commands.outputs import check_plot, silence_vllm
from agentrt.lab.engine.engines import engine_options, model_in_words
from agentrt.lab.engine.headless import BLOCK_SIZE
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.outcome import Ran
from agentrt.lab.reports.memory import Found, as_json, draw, table
from agentrt.lab.reports.policies import vllm_version
from agentrt.lab.runs.contenders import STOCK
from agentrt.lab.runs.grid import turns
from agentrt.lab.runs.memory import WORKS, Cell, Load, Memory
from agentrt.lab.runs.rivals import CONTINUUM, DEFAULT, HOW, THUNDER, Rival, rival
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
_FACTOR = click.FloatRange(min=0, min_open=True)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_names = partial(click.option, multiple=True, callback=split_commas)

EPILOG = """\b
One cell with what you want to compare, in seconds:
  agentrt bench memory --workload chat --repeat 1 --contender adaptive,adaptive+cost --caps 0
Real engines, then virtual time with their steps:
  agentrt bench memory --real --model-shape small --workload bfcl --programs 48 --repeat 3 \\
    --tools 0.15 --contender default,stock+ample --caps 1

\b
--memory counts for all workloads but chat, the KV-bound chat of 1,024 blocks of 16 tokens.
With --real, fewer programs and slots: give chat fewer --blocks, of 32 tokens, and tools less time.
Contenders: {}.
""".format(HOW.replace("; ", ";\n  "))


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells, whom to run on each, and the caps to try."""

    cells: Sequence[Cell]
    contenders: Sequence[str]
    caps: Sequence[float]
    seeds: Sequence[int]


VIRTUAL, REAL = "virtual time", "real engines"
Key = tuple[Cell, str]
"""A cell, and on what it was served: `VIRTUAL` or `REAL`."""


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
@click.option("--scale", type=_FACTOR, default=1.0, metavar="X", help="Multiplies their tokens.")
@count_option("--max-num-seqs", about="Batch slots.  [default: 16; 4 with --real]")
@count_option("--repeat", about="With so many seeds.  [default: 5; 1 with --quick]")
@seed_option
@click.option("--quick", is_flag=True, help="One seed, fewer caps: some minutes on one core.")
@click.option("--real", is_flag=True, help="On real engines, and then in virtual time.")
@model_option
@click.option("--model-shape", metavar="NAME", help="With made-up weights: llama-8b, small, tiny.")
@json_flag("End with all cells as one JSON line.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw the cells.")
def memory(**options: Any) -> None:
    """Programs whose contexts do not fit into the KV cache: stock, rivals, and our parts.

    In virtual time: vLLM's real scheduler and KV-cache manager, no model. The working set is the
    peak of all that is used again; recomputed is the prefill beyond what ample memory needs; a
    delay is a program's latency beyond its own with the engine to itself. best_cap is, figure by
    figure, the best of all caps on programs at a time; one_cap is the one of them with the least
    mean. With --real each contender has a real engine for itself, in an order that alternates, and
    the same programs run in virtual time after it.
    """
    plan = _plan(options)
    check_plot(options["plot"])
    silence_vllm()
    engines = _engines(options)
    bench = _bench(options)
    measured: dict[Key, list[Found]] = {}
    about: list[str] = []

    def tell() -> None:
        cells = {key: found for key, found in measured.items() if found}
        tables = [f"{_head(key, found)}\n\n{table(found)}" for key, found in cells.items()]
        told = [
            as_json({**asdict(_as_served(cell, found)), "time": on, "seeds": len(found)}, found)
            for (cell, on), found in cells.items()
        ]
        show([*about, *tables] if tables else "", {"cells": told}, as_json=options["as_json"])
        if options["plot"] and told:
            draw(told, options["plot"])

    run_shown(_cells(bench, engines, plan, measured, about), tell)


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
    real = options["real"]
    usual = [name for name in _CONTENDERS if rival(name).on_engines or not real]
    names = list(dict.fromkeys([STOCK, *(options["contender"] or usual)]))
    for name in names:
        if not rival(name).on_engines and real:
            raise ConfigError(f"--real: {name!r} runs in virtual time only; leave it out")
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
    file, real = options["step_time"], options["real"]
    return Memory(
        None if file is None else StepTimeModel.load(file),
        options["max_num_seqs"] or (SLOTS if real else 16),
        options["blocks"],
        options["programs"],
        options["load"],
        trace,
        options["scale"],
        ON_CPU if real else BLOCK_SIZE,
    )


def _engines(options: dict[str, Any]) -> Engines | None:
    """Real ones, if they are asked for. Checked before anything is loaded."""
    model, shape = options["model"], options["model_shape"]
    if not options["real"]:
        if model or shape:
            raise ConfigError("--model and --model-shape: a model needs --real")
        return None
    if model and shape:
        raise ConfigError("--model and --model-shape: give one of them")
    base = engine_options(model, shape, options["max_num_seqs"] or SLOTS, ())
    prepare_environment(base)
    return Engines(base, model_in_words(model, shape))


async def _cells(
    bench: Memory,
    engines: Engines | None,
    plan: Plan,
    measured: dict[Key, list[Found]],
    about: list[str],
) -> None:
    if engines is not None:
        if bench.step_time is None:
            bench = replace(bench, step_time=await engines.calibrated())
        about.append(_about(bench, engines))
    for cell, seed in product(plan.cells, plan.seeds):
        note(f"{cell}, seed {seed}")
        load = bench.make(cell, seed)
        names = [*plan.contenders, *load.capped(plan.caps)]
        if engines is not None:
            order = turns(names, seed)
            found = await _served(engines.run, load, order)
            measured.setdefault((cell, REAL), []).append({one: found[one] for one in names})
        found = await _served(_in_virtual_time, load, names)
        measured.setdefault((cell, VIRTUAL), []).append(found)


async def _served(
    run: Callable[[Load, Rival], Awaitable[Ran]], load: Load, names: Sequence[str]
) -> dict[str, Figures]:
    found: dict[str, Figures] = {}
    for name in names:
        began = time.monotonic()
        found[name] = load.figures(await run(load, rival(name)))
        note(f"  {name}: {time.monotonic() - began:.0f} s")
    return found


async def _in_virtual_time(load: Load, one: Rival) -> Ran:
    await asyncio.sleep(0)  # where a signal stops it
    return load.virtual(one)


def _about(bench: Memory, engines: Engines) -> str:
    times = bench.step_time
    assert times is not None
    return (
        f"{REAL}: vLLM {vllm_version()} on {hardware()}, {engines.model}, "
        f"{bench.slots} batch slots, blocks of {bench.block_size} tokens; a step takes "
        f"{1e3 * times.base_s:.1f} ms and {1e6 * times.per_prefill_token_s:.0f} us more for each "
        "token of prompt, as was measured first; virtual time goes by that"
    )


def _head(key: Key, found: Sequence[Found]) -> str:
    (cell, on), stock = key, found[0][STOCK]
    size = f"{stock['blocks']:.0f} of {stock['wanted']:.0f} blocks"
    seeds = f"{len(found)} {'seed' if len(found) == 1 else 'seeds'}"
    return f"**{_as_served(cell, found)}**, {on}: {size}, {seeds}"


def _as_served(cell: Cell, found: Sequence[Found]) -> Cell:
    """A cell with the share of the working set that the KV cache had: blocks may be given."""
    shares = [one[STOCK]["blocks"] / one[STOCK]["wanted"] for one in found]
    return replace(cell, memory=round(median(shares), 2))
