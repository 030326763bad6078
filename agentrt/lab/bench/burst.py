"""``agentrt bench burst``: long and short programs at once on a real engine, by policy.

Every policy runs the same programs in the same order, with outputs of fixed length, on
one engine whose prefix cache is emptied in between; policies alternate within a repeat.
Latencies are counted in engine steps, which a noisy machine does not change, and in
seconds. A program's ideal is its latency with the engine to itself, measured first.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

import click

from agentrt.cli.signals import Interrupts
from agentrt.executors.vllm.engine import VLLMEngine
from agentrt.lab.bench.engines import engine_of
from agentrt.lab.bench.results import WHOLE, Column, Figures, Results, in_turns, ratios, show
from agentrt.lab.commands.options import count_option, json_option, model_option, note, seed_option
from agentrt.lab.reports.tables import percentile
from agentrt.program import Context, Program
from agentrt.runtime import Runtime
from agentrt.scheduler.policies import policy_class

BASELINE = "fcfs"
MEASURES = [
    f"{measure}_{unit}" for unit in ("steps", "s") for measure in ("mean", "p95", "slowdown")
]
COLUMNS = (
    *(Column(name.replace("_", ", "), f"{name}_ratio") for name in MEASURES),
    Column("preemptions", "preemptions", WHOLE),
    Column("recomputed", "recomputed", WHOLE),
)


class Shape(NamedTuple):
    """A program of ``calls`` calls in a row, each ``tokens`` long, over one growing chat."""

    name: str
    calls: int
    tokens: int


LONG, SHORT = Shape("long", 4, 128), Shape("short", 2, 16)


@click.command()
@click.option(
    "--policies",
    default="fcfs,mlfq,plas,atlas",
    metavar="NAME,NAME,…",
    show_default=True,
    help="Which to compare; fcfs is the baseline and always runs.",
)
@count_option("--repeat", default=5)
@seed_option
@count_option("--long", "longs", default=4, least=0)
@count_option("--short", "shorts", default=8)
@count_option("--max-num-seqs", default=2)
@model_option
@json_option
def burst(**options: Any) -> None:
    """A burst of long and short programs at once, on a real engine.

    Every policy runs the same programs in the same order with outputs of fixed length;
    policies alternate within a repeat. Ratios to fcfs, in engine steps and in seconds.
    """
    names = list(dict.fromkeys([BASELINE, *options["policies"].split(",")]))
    for name in names:
        policy_class(name)
    measured = Interrupts(note).run(_measure(names, options))
    medians = {
        row["policy"]: {name: row[f"{name}_ratio"] for name in MEASURES}
        for row in measured.medians()
    }
    show(measured.table(COLUMNS), medians, as_json=options["as_json"])


async def _measure(policies: Sequence[str], options: dict[str, Any]) -> Results:
    """All policies with the same programs in each repeat, in an order drawn for the repeat."""
    shapes = [LONG] * options["longs"] + [SHORT] * options["shorts"]
    found: dict[tuple[int, str], Figures] = {}
    async with engine_of(options) as (runtime, engine, _):
        ideals = {}
        for shape in dict.fromkeys(shapes):
            note(f"a {shape.name} program alone")
            ideals[shape] = await _run(runtime, engine, BASELINE, [shape])
        for repeat, policy in in_turns(policies, options["repeat"]):
            note(f"repeat {repeat + 1} of {options['repeat']}: {policy}")
            order = shapes[:]
            random.Random(options["seed"] + repeat).shuffle(order)
            found[repeat, policy] = await _run(runtime, engine, policy, order, ideals)
    measured = Results({"policy": "policy"})
    for policy in policies:
        for repeat in range(options["repeat"]):
            mine = found[repeat, policy]
            to_base = ratios(mine, found[repeat, BASELINE], MEASURES, "_ratio")
            measured.add(policy, figures={**mine, **to_base})
    return measured


async def _run(
    runtime: Runtime,
    engine: VLLMEngine,
    policy: str,
    order: Sequence[Shape],
    ideals: dict[Shape, Figures] | None = None,
) -> Figures:
    """What one policy makes of programs in this order: latencies, slowdowns and what they cost."""
    await engine.configure(replace(engine.options.scheduler, policy=policy))
    await engine.forget_prefixes()
    runs = [runtime.start(chat_program(shape, topic)) for topic, shape in enumerate(order)]
    for run in runs:
        await run.wait()
    reports = [run.report(runtime.now()) for run in runs]
    figures = {
        "preemptions": float(sum(report.preemptions for report in reports)),
        "recomputed": float(sum(report.recomputed_tokens for report in reports)),
    }
    steps = [float(report.last_step - report.first_step) for report in reports]
    for unit, latencies in (("steps", steps), ("s", [report.wall_s for report in reports])):
        figures[f"mean_{unit}"] = fmean(latencies)
        figures[f"p95_{unit}"] = percentile(latencies, 0.95)
        if ideals is not None:
            alone = [ideals[shape][f"mean_{unit}"] for shape in order]
            slow = [mine / best for mine, best in zip(latencies, alone, strict=True)]
            figures[f"slowdown_{unit}"] = fmean(slow)
    return figures


def chat_program(shape: Shape, topic: int) -> Program:
    """The program of a shape; ``topic`` makes its prompt unlike the others'."""

    async def converse(ctx: Context) -> None:
        chat: list[dict[str, Any]] = [
            {"role": "user", "content": f"Tell me about the number {topic}."}
        ]
        for _ in range(shape.calls):
            reply = await ctx.llm(chat, max_tokens=shape.tokens, ignore_eos=True)
            chat += [reply.message, {"role": "user", "content": "Go on."}]

    return Program(converse, shape.name)
