"""``agentrt bench retention``: what keeping programs' contexts saves when memory is short.

The same agents with tools arrive at the same times over the same KV cache, under each retention in
turn. *Lost* tokens had been computed for a program's earlier calls and were not in the cache when
it came back from a tool; after a human's answer none are counted. vLLM's real scheduler and
KV-cache manager decide, and a step takes what the step-time model says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import click

from agentrt.lab.backends.virtual import run_virtual
from agentrt.lab.bench.results import Column, Figures, Results, in_turns, show
from agentrt.lab.commands.options import count_option, json_option, note, numbers, seed_option
from agentrt.lab.commands.outputs import silence_vllm
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.outcome import Ran
from agentrt.lab.reports.tables import percentile
from agentrt.lab.workloads.arrivals import poisson
from agentrt.lab.workloads.generate import generate
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.lab.workloads.traces import read_programs
from agentrt.scheduler.config import SchedulerConfig

BASELINE = "lru"
SMALL_CPU = StepTimeModel(0.05, 0.75e-3, 1e-3, 0.0, "SmolLM2-135M, rounded", "one CPU core")
"""About what a step of a small model takes on one core (docs/results/overhead.md)."""
_RATIOS = ("lost", "prefill", "mean", "P95", "CPU a step")
COLUMNS = (
    Column("lost of returned", "lost_share", "{:.1%}"),
    *(Column(f"{name}, ratio", f"{name}_ratio", unknown="-") for name in _RATIOS),
    Column("mean s", "mean", "{:.0f}"),
)
"""Ratios are to ``lru`` in the same repeat; below 1 is better."""
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_one = click.IntRange(min=1)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool's time is lognormal: its median (seconds), its spread, and how often it is used."""

    median_s: float
    spread: float
    weight: int


TOOLS = {"search": Tool(2.0, 0.5, 6), "shell": Tool(6.0, 0.8, 3), "build": Tool(40.0, 0.7, 1)}
"""Ours. The median over all is near 3 s, and the mean near 9 s."""

Run = Callable[[Sequence[ProgramShape], int, str], Figures]
"""Runs programs over so many blocks under a retention."""


@click.command()
@click.option("--trace", type=_FILE, metavar="FILE", help="Recorded programs, not made-up agents.")
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
@click.option("--block-size", type=_one, default=16, show_default=True)
@click.option("--max-num-seqs", type=_one, default=8, show_default=True)
@click.option("--max-num-batched-tokens", type=_one, default=512, show_default=True)
@click.option("--retentions", default="lru,ttl,cost", show_default=True, metavar="NAME,NAME,…")
@click.option("--policy", default="fcfs", show_default=True, metavar="NAME")
@click.option("--step-time", type=_FILE, metavar="FILE", help="What agentrt calibrate wrote.")
@count_option("--repeat", default=5)
@seed_option
@json_option
def retention(**options: Any) -> None:
    """Agents with tools over a small KV cache: tokens lost in tool calls, and latencies.

    In virtual time: vLLM's real scheduler and KV-cache manager, no model. Every retention runs
    the same programs; ratios are to lru, which is stock vLLM's order. On a real engine:
    agentrt bench --retention lru,cost.
    """
    names = list(dict.fromkeys([BASELINE, *options["retentions"].split(",")]))
    for name in names:
        SchedulerConfig(retention=name)
    blocks = numbers(options["blocks"], "--blocks")
    silence_vllm()
    file = options["step_time"]
    engine = VirtualOptions(
        max_num_seqs=options["max_num_seqs"],
        kv_blocks=min(blocks),
        block_size=options["block_size"],
        max_num_batched_tokens=options["max_num_batched_tokens"],
        max_model_len=min(8192, (min(blocks) - 1) * options["block_size"]),
    )
    step_time = SMALL_CPU if file is None else StepTimeModel.load(file)
    run = virtual(engine, step_time, options["policy"])
    measured = measure(run, _shapes(options), blocks, names, note)
    show(measured.table(COLUMNS), measured.medians(), as_json=options["as_json"])


def _shapes(options: dict[str, Any]) -> list[list[ProgramShape]]:
    """The programs of each repeat."""
    count, calls, rate = options["programs"], options["calls"], options["rate"]
    seeds = range(options["seed"], options["seed"] + options["repeat"])
    gap_scale = options["gap_scale"]
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


def agents(
    count: int, calls: int, rate: float, seed: int, gap_scale: float = 1.0
) -> list[ProgramShape]:
    """ReAct agents of the BFCL workload's sizes, with named tools, ``rate`` a second.

    Each is cut after so many calls. Tools take ``gap_scale`` times their time.
    """
    rng = Random(f"tools/{seed}")
    programs = [_with_tools(one, rng, gap_scale) for one in generate("react", count, seed)]
    return poisson(_cut(programs, calls), rate, seed)


def recorded(
    programs: Sequence[ProgramShape], count: int, calls: int, rate: float, seed: int
) -> list[ProgramShape]:
    """``count`` programs of a trace, drawn without return, each cut after so many calls."""
    drawn = Random(f"drawn/{seed}").sample(list(programs), count)
    return poisson(_cut(drawn, calls), rate, seed)


def _cut(programs: Sequence[ProgramShape], calls: int) -> list[ProgramShape]:
    return [replace(one, calls=one.calls[:calls], hint_tokens=None) for one in programs]


def _with_tools(program: ProgramShape, rng: Random, scale: float) -> ProgramShape:
    """The program with a tool, and its time, before each call that has a parent."""
    calls = []
    for call in program.calls:
        name = rng.choices(list(TOOLS), [tool.weight for tool in TOOLS.values()])[0]
        tool = TOOLS[name]
        gap_s = scale * tool.median_s * rng.lognormvariate(0.0, tool.spread)
        calls.append(replace(call, gap_s=gap_s, tool=name) if call.after else call)
    return replace(program, calls=tuple(calls))


def virtual(options: VirtualOptions, step_time: StepTimeModel, policy: str) -> Run:
    """Runs in virtual time; of ``options`` the blocks are replaced."""
    # Whatever is loaded or compiled at the first use: CPU time is measured below.
    run_virtual([ProgramShape("first", "", (CallShape(1),))], SchedulerConfig(), engine=options)

    def run(programs: Sequence[ProgramShape], blocks: int, retention: str) -> Figures:
        config = SchedulerConfig(policy=policy, retention=retention)
        engine = replace(options, kv_blocks=blocks)
        began_s = time.process_time()
        ran = run_virtual(programs, config, engine=engine, step_time=step_time)
        cpu_s = time.process_time() - began_s
        return {**figures(ran), "CPU a step": cpu_s / ran.counts.steps}

    return run


def figures(ran: Ran) -> Figures:
    """Tokens of prompts that were computed, or lost where a tool returned; latencies (seconds)."""
    used, humans = ran.counts.usage, ran.after_humans.usage
    lost = used.lost_tokens - humans.lost_tokens
    returned = used.returned_tokens - humans.returned_tokens
    seconds = [one.latency_s for one in ran.outcomes]
    return {
        "lost": lost,
        "lost_share": lost / max(1, returned),
        "prefill": used.uncached_tokens + used.recomputed_tokens,
        "mean": sum(seconds) / len(seconds),
        "P95": percentile(seconds, 0.95),
    }


def measure(
    run: Run,
    traces: Sequence[Sequence[ProgramShape]],
    blocks: Sequence[int],
    retentions: Sequence[str],
    tell: Callable[[str], None],
) -> Results:
    """Every trace under every retention, in an order that changes with the trace."""
    found: dict[tuple[int, int, str], Figures] = {}
    for size, (repeat, name) in product(blocks, in_turns(retentions, len(traces))):
        tell(f"{size} blocks, repeat {repeat + 1} of {len(traces)}: {name}")
        found[size, repeat, name] = run(traces[repeat], size, name)
    measured = Results({"blocks": "blocks", "retention": "retention"})
    for size, name, repeat in product(blocks, retentions, range(len(traces))):
        mine, stock = found[size, repeat, name], found[size, repeat, BASELINE]
        # Over nothing there is no ratio.
        over = {f"{one}_ratio": mine[one] / stock[one] for one in _RATIOS if stock[one]}
        measured.add(size, name, figures={**mine, **over})
    return measured
