"""``benchmarks memory``: compares contenders on programs that do not all fit into the KV cache.

The same programs arrive at the same times on an engine with each contender in turn: stock vLLM,
rules of rivals in front of vLLM or inside it, and the parts of agentrt's scheduler one by one.
vLLM's real scheduler and KV-cache manager run in virtual time: a step takes a computed time
(`StepTimeModel`), so the results do not depend on the machine. With ``--real``, real engines serve
the programs first; then the same programs run in virtual time with the measured step times.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product, takewhile
from statistics import median
from typing import Any

import click

from agentrt.lab.commands.options import (
    ManyCommand,
    file,
    flag_option,
    jobs_option,
    json_flag,
    kv_blocks_option,
    many,
    max_num_seqs_option,
    note,
    policy_option,
    programs_option,
    seeds_option,
    silence_vllm,
    step_time_option,
    text_option,
)
from agentrt.lab.engine.hardware import hardware
from agentrt.lab.engine.headless import BLOCK_SIZE
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.runs.contenders import STOCK, how
from agentrt.lab.runs.grid import turns
from agentrt.lab.runs.machine import vllm_version
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.lab.workloads.traces import KNOWN
from benchmarks.cells import cells_of, measured
from benchmarks.harness import Figures, run_shown, show
from benchmarks.memory.cells import (
    ALL_WORKS,
    RECORDED,
    TRACE_SCALE,
    WORKS,
    Memory,
    Scarce,
    Setup,
    in_virtual_time,
    recorded,
)
from benchmarks.memory.plan import CAPS, CONTENDERS, FIRST_HELD_OUT, QUICK_CAPS, Plan, plan
from benchmarks.memory.real import ON_CPU, SLOTS, Engines, engines_of, real_options
from benchmarks.memory.report import (
    ByContender,
    as_json,
    beside_earlier,
    joint_table,
    read_earlier,
    table,
)
from benchmarks.options import positive_option, workload_option

_NAMES = ", ".join(ALL_WORKS)
_HELD = f"{FIRST_HELD_OUT} with --held-out"
_HELD_OUT = (
    "Use seeds on which no constant was tuned, and print one table of all cells. Without "
    "--workload, all workloads run; without --policy, only stock and default are compared."
)

EPILOG = """\b
A single cell, which takes seconds:
  python -m benchmarks memory --workload chat --seeds 1 --policy adaptive,adaptive+cost --caps 0
Real engines, then virtual time with their step times:
  python -m benchmarks memory --real --model-shape small --workload bfcl --programs 48 --seeds 3 \\
    --tools 0.15 --policy default,stock+ample --caps 1

\b
--memory applies to all workloads except chat, whose KV cache has 1,024 blocks of 16 tokens.
With --real there are fewer slots, and blocks have 32 tokens: use fewer --programs and smaller
--tools, and for chat also fewer --kv-blocks.
Contenders, except +hints: {}.
""".format(how().replace("; ", ";\n  "))


def _listed(numbers: Sequence[float]) -> str:
    return ",".join(f"{number:g}" for number in numbers)


VIRTUAL, REAL = "virtual time", "real engines"
Key = tuple[Setup, str]
"""A cell, and where the cell was served: `VIRTUAL` or `REAL`."""


@click.command(cls=ManyCommand, epilog=EPILOG)
@workload_option(
    f"{_NAMES}, or one [FORMAT:]FILE: {', '.join(KNOWN)}.  [default: the first {len(WORKS)}]"
)
@many(
    "--memory",
    metavar="X,…",
    help="Sizes of the KV cache, as shares of the working set.  [default: 0.25]",
)
@many(
    "--tools",
    metavar="S,…",
    help="Median seconds of the commonest tool.  [default: the workload's own]",
)
@policy_option(
    f"Contenders in addition to stock.  [default: {','.join(CONTENDERS[1:])}]",
    former=["--contender"],
)
@many(
    "--caps",
    metavar="X,…",
    help="Maximum numbers of concurrent programs to try, in multiples of the number that fits; 0: "
    f"none.  [default: {_listed(CAPS)}; {_listed(QUICK_CAPS)} with --quick; 0 with --held-out]",
)
@text_option(
    "--trace",
    "[FORMAT:]FILE",
    f"File of recorded programs, from which the workload {RECORDED!r} draws its programs.",
)
@positive_option(
    "--trace-scale",
    "Multiplies the tokens of the programs in the file of --trace or --workload.",
    TRACE_SCALE,
)
@text_option("--tokenizer", "MODEL", "Model whose tokenizer counts recorded texts.")
@step_time_option()
@kv_blocks_option("Size of the KV cache in blocks, in place of --memory.", least=1)
@positive_option(
    "--load",
    "Arrival rate as a share of the engine's capacity.  [default: the workload's own]",
)
@programs_option("Number of programs of each workload.  [default: the workload's own]")
@positive_option("--scale", "Multiplies the tokens of programs.", 1.0)
@max_num_seqs_option(suffix="  [default: 16; 4 with --real]")
@seeds_option(suffix="  [default: 5; 1 with --quick]")
@text_option("--seed", "N", f"The first seed.  [default: 0; {_HELD}]", type=int)
@flag_option("--held-out", _HELD_OUT)
@file("--against", about="Compare with this file, the --json output of an earlier run.")
@flag_option("--quick", "Run one seed and fewer caps. This takes minutes on one core.")
@real_options("Run on real engines, and then in virtual time.")
@jobs_option
@json_flag("Print all cells as one JSON line at the end.")
def memory(**options: Any) -> None:
    """Compare stock vLLM, rivals and parts of agentrt on programs that exceed the KV cache.

    Runs are in virtual time: vLLM's real scheduler and KV-cache manager, without a model. The
    working set is the peak of the tokens that are used again. Recomputed is the prefill beyond the
    prefill with ample memory. Delay is the latency of a program, minus its latency when it has the
    engine to itself. best_cap is the best value of each figure over all caps on concurrent
    programs; one_cap is the cap with the smallest mean latency. With --real, each contender has a
    real engine of its own, in an order that changes with the seed; then the same programs run in
    virtual time.
    """
    requested = plan(options)
    earlier = None if options["against"] is None else read_earlier(options["against"])
    silence_vllm()
    engines = engines_of(options)
    bench = _bench(options)
    figures: dict[Key, list[ByContender]] = {}
    about: list[str] = []

    def tell() -> None:
        cells = {key: seeds for key, seeds in figures.items() if seeds}
        values = [_as_values(key, seeds, requested.seeds) for key, seeds in cells.items()]
        tables = _tables(cells, together=options["held_out"])
        if earlier is not None and values:
            tables.append(beside_earlier(earlier, values))
        show([*about, *tables] if tables else "", {"cells": values}, as_json=options["as_json"])

    if engines is not None:
        run_shown(_on_both(bench, engines, requested, figures, about), tell)
        return
    works = [Scarce(bench, setup) for setup in requested.cells]
    cells = cells_of(works, [requested.lineup], requested.seeds)
    with measured(cells, in_virtual_time, options["jobs"]) as runs:
        for (work, _), by_seed in runs.by_seed().items():
            # After a signal, keep the seeds before the interrupted one.
            whole = takewhile(by_seed.__contains__, requested.seeds)
            figures[work.setup, VIRTUAL] = [by_seed[seed] for seed in whole]
        tell()


def _bench(options: dict[str, Any]) -> Memory:
    trace: tuple[ProgramShape, ...] = ()
    if options["trace"] is not None:
        tokenizer = options["tokenizer"] or options["model"] or ""
        read = recorded(options["trace"], options["trace_scale"] * options["scale"], tokenizer)
        note(read.report())
        trace = tuple(read.programs)
    step_time, real = options["step_time"], options["real"]
    return Memory(
        None if step_time is None else StepTimeModel.load(step_time),
        options["max_num_seqs"] or (SLOTS if real else 16),
        options["kv_blocks"],
        options["programs"],
        options["load"],
        trace,
        options["scale"],
        ON_CPU if real else BLOCK_SIZE,
    )


async def _on_both(
    bench: Memory,
    engines: Engines,
    requested: Plan,
    figures: dict[Key, list[ByContender]],
    about: list[str],
) -> None:
    """Serve each cell on real engines, and then in virtual time. If no step times are given, they
    are measured on a real engine first.
    """
    if bench.step_time is None:
        bench = replace(bench, step_time=await engines.calibrated())
    about.append(_about(bench, engines))
    for setup, seed in product(requested.cells, requested.seeds):
        note(f"{setup}, seed {seed}")
        load = bench.make(setup, seed)
        everyone = requested.lineup.contenders(load)
        real: dict[str, Figures] = {}
        for each in turns(everyone, seed):
            began = time.monotonic()
            real[each.name] = load.figures(await engines.run(load, each))
            note(f"  {each.name}: {time.monotonic() - began:.0f} s")
        in_order = {each.name: real[each.name] for each in everyone}
        figures.setdefault((setup, REAL), []).append(in_order)
        await asyncio.sleep(0)  # let a signal stop the benchmark here
        figures.setdefault((setup, VIRTUAL), []).append(in_virtual_time(load, requested.lineup))


def _about(bench: Memory, engines: Engines) -> str:
    times = bench.step_time
    assert times is not None
    return (
        f"{REAL}: vLLM {vllm_version()} on {hardware()}, {engines.model}, {bench.slots} batch "
        f"slots, blocks of {bench.block_size} tokens; a step takes {1e3 * times.base_s:.1f} ms "
        f"and {1e6 * times.per_prefill_token_s:.0f} us more for each token of prompt; virtual "
        "time uses these times"
    )


def _tables(cells: Mapping[Key, Sequence[ByContender]], *, together: bool) -> list[str]:
    """Return a table for each cell. With ``together``, return one table for all cells in virtual
    time, and one for all cells on real engines.
    """
    if not together:
        return [f"{_head(key, figures)}\n\n{table(figures)}" for key, figures in cells.items()]
    shown: dict[str, dict[tuple[str, float, float], Sequence[ByContender]]] = {}
    for (cell, on), figures in cells.items():
        served = _as_served(cell, figures)
        shown.setdefault(on, {})[served.workload, served.memory, served.tool_s] = figures
    return [f"**{on}**\n\n{joint_table(group)}" for on, group in shown.items()]


def _as_values(key: Key, figures: Sequence[ByContender], seeds: Sequence[int]) -> dict[str, Any]:
    """Return a cell as JSON values. ``share`` is the requested share of the working set, and
    ``memory`` is the actual share.
    """
    cell, on = key
    about = {"share": cell.memory, "time": on, "first_seed": seeds[0], "seeds": len(figures)}
    return as_json({**asdict(_as_served(cell, figures)), **about}, figures)


def _head(key: Key, figures: Sequence[ByContender]) -> str:
    (cell, on), stock = key, figures[0][STOCK]
    size = f"{stock['blocks']:.0f} of {stock['wanted']:.0f} blocks"
    seeds = f"{len(figures)} {'seed' if len(figures) == 1 else 'seeds'}"
    return f"**{_as_served(cell, figures)}**, {on}: {size}, {seeds}"


def _as_served(cell: Setup, figures: Sequence[ByContender]) -> Setup:
    """Return the cell with the actual share of the working set, because ``--kv-blocks`` may have
    set the size of the KV cache.
    """
    shares = [each[STOCK]["blocks"] / each[STOCK]["wanted"] for each in figures]
    return replace(cell, memory=round(median(shares), 2))
