"""``agentrt bench retention``: agents with tools over a small KV cache, virtual or real."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from agentrt.executors.vllm.options import EngineOptions
from agentrt.lab.bench.retention import (
    BASELINE,
    SMALL_CPU,
    RealRun,
    Results,
    agents,
    measure,
    ratios,
    recorded,
    table,
    virtual,
)
from agentrt.lab.bench.retention_bfcl import drawn, shapes
from agentrt.lab.commands.options import count_option, note, numbers, seed_option
from agentrt.lab.commands.outputs import silence_vllm
from agentrt.lab.engine.engines import LabEngine
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.runs.grid import turns
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.lab.workloads.traces import read_programs
from agentrt.runtime import Runtime
from agentrt.scheduler.config import SchedulerConfig

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--real", is_flag=True, help="On a real engine, not in virtual time.")
@click.option("--trace", type=_FILE, metavar="FILE", help="Recorded programs, not made-up agents.")
@click.option(
    "--workload",
    type=click.Choice(["react", "bfcl"]),
    default="react",
    show_default=True,
    help="Made-up agents of BFCL's sizes, or BFCL's own tasks (bfcl-eval) and, on a real "
    "engine, its tools.",
)
@click.option(
    "--decide",
    type=click.Choice(["replay", "model"]),
    default="replay",
    show_default=True,
    help="With --real --workload bfcl: replay the right tool calls, or let the model choose.",
)
@click.option("--context-scale", type=float, default=1.0, show_default=True, metavar="X")
@click.option(
    "--output-scale", type=float, metavar="X", help="Of --trace; default: --context-scale."
)
@click.option("--gap-scale", type=float, default=1.0, show_default=True, metavar="X")
@count_option("--calls", default=20)
@count_option("--programs", default=32)
@click.option("--rate", type=float, default=0.3, show_default=True, help="Programs a second.")
@click.option(
    "--blocks",
    default="500,800,4000",
    show_default=True,
    metavar="N,N,…",
    help="Sizes of the KV cache, in blocks of --block-size tokens.",
)
@click.option("--block-size", type=click.IntRange(min=1), default=16, show_default=True)
@click.option("--max-num-seqs", type=click.IntRange(min=1), default=8, show_default=True)
@click.option(
    "--max-num-batched-tokens", type=click.IntRange(min=1), default=512, show_default=True
)
@click.option("--max-model-len", type=click.IntRange(min=1), default=4096, show_default=True)
@click.option("--retentions", default="lru,ttl,cost", show_default=True, metavar="NAME,NAME,…")
@click.option("--policy", default="fcfs", show_default=True, metavar="NAME")
@click.option("--step-time", type=_FILE, metavar="FILE", help="What agentrt calibrate wrote.")
@click.option("--model", metavar="MODEL", help="With --real: a folder or a Hugging Face name.")
@count_option("--repeat", default=5)
@seed_option
@click.option("--json", "as_json", is_flag=True, help="Print the runs and medians as a JSON line.")
def retention(**options: Any) -> None:
    """Agents with tools over a small KV cache: tokens lost in tool calls, and latencies.

    In virtual time by default: vLLM's real scheduler and KV-cache manager, no model. Every
    retention runs the same programs; ratios are to lru, which is stock vLLM's order.
    """
    names = list(dict.fromkeys([BASELINE, *options["retentions"].split(",")]))
    for name in names:
        SchedulerConfig(retention=name)
    blocks = numbers(options["blocks"], "--blocks")
    _check(options)
    measured = (_real if options["real"] else _virtual)(blocks, names, options)
    click.echo(table(measured))
    if options["as_json"]:
        click.echo(json.dumps(ratios(measured)))


def _check(options: dict[str, Any]) -> None:
    if options["trace"] is not None and options["workload"] != "react":
        raise click.UsageError("--trace and --workload are two ways to name programs: give one")
    if options["decide"] == "model" and not (options["real"] and options["workload"] == "bfcl"):
        raise click.UsageError("--decide model needs a model: give --real --workload bfcl as well")


def _seeds(options: dict[str, Any]) -> range:
    return range(options["seed"], options["seed"] + options["repeat"])


def _shapes(options: dict[str, Any]) -> list[list[ProgramShape]]:
    """The programs of each repeat."""
    count, calls, rate = options["programs"], options["calls"], options["rate"]
    seeds, gap_scale = _seeds(options), options["gap_scale"]
    if options["workload"] == "bfcl":
        return [shapes(count, calls, rate, seed, gap_scale) for seed in seeds]
    if options["trace"] is None:
        return [agents(count, calls, rate, one, gap_scale) for one in seeds]
    scale = options["context_scale"]
    trace = read_programs(
        options["trace"],
        context_scale=scale,
        output_scale=options["output_scale"] or scale,
        gap_scale=gap_scale,
    )
    click.echo(trace.report(), err=True)
    return [recorded(trace.programs, count, calls, rate, one) for one in seeds]


def _programs(options: dict[str, Any]) -> Sequence[Sequence[Any]]:
    """The programs of each repeat, for a real engine."""
    if options["workload"] != "bfcl":
        return _shapes(options)
    count, calls, rate = options["programs"], options["calls"], options["rate"]
    scale, decide = options["gap_scale"], options["decide"]
    return [drawn(count, calls, rate, seed, scale, decide) for seed in _seeds(options)]


def _virtual(blocks: Sequence[int], names: Sequence[str], options: dict[str, Any]) -> Results:
    silence_vllm()
    file = options["step_time"]
    size = options["block_size"]
    engine = VirtualOptions(
        max_num_seqs=options["max_num_seqs"],
        kv_blocks=min(blocks),
        block_size=size,
        max_num_batched_tokens=options["max_num_batched_tokens"],
        max_model_len=min(8192, (min(blocks) - 1) * size),
    )
    step_time = SMALL_CPU if file is None else StepTimeModel.load(file)
    run = virtual(engine, step_time, options["policy"])
    return measure(run, _shapes(options), blocks, names, note)


def _real(blocks: Sequence[int], names: Sequence[str], options: dict[str, Any]) -> Results:
    """An engine for each size of the cache, under which all retentions alternate."""
    programs = _programs(options)
    results: Results = {}
    for size in blocks:
        results |= asyncio.run(_on_engine(programs, size, names, options))
    return results


async def _on_engine(
    repeats: Sequence[Sequence[Any]],
    blocks: int,
    names: Sequence[str],
    options: dict[str, Any],
) -> Results:
    config = SchedulerConfig(policy=options["policy"])
    sizes = {
        "--num-gpu-blocks-override": blocks,
        "--block-size": options["block_size"],
        "--max-num-batched-tokens": options["max_num_batched_tokens"],
        "--max-model-len": min(options["max_model_len"], (blocks - 1) * options["block_size"]),
    }
    flags = tuple(str(part) for pair in sizes.items() for part in pair)
    engine = LabEngine(EngineOptions(options["model"], options["max_num_seqs"], config, flags))
    runtime = Runtime(engine)
    results: Results = {}
    await runtime.open(note)
    try:
        run = RealRun(runtime, config)
        for repeat, programs in enumerate(repeats):
            for name in turns(names, options["seed"] + repeat):
                note(f"{blocks} blocks, repeat {repeat + 1} of {len(repeats)}: {name}")
                result = await run(programs, name)
                note(f"a mean of {result.mean_s:.0f} s; {result.lost_tokens} tokens lost")
                results.setdefault((blocks, name), []).append(result)
    finally:
        await runtime.close()
    return results
