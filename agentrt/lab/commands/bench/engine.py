"""``agentrt bench burst`` and ``scheduler``: policies on a real engine, and what they cost it."""

from __future__ import annotations

import json
from typing import Any

import click

from agentrt.lab.commands.bench.opened import opened
from agentrt.lab.commands.bench.values import note, numbers


@click.command()
@click.option(
    "--policies",
    default="fcfs,mlfq,plas,atlas",
    metavar="NAME,NAME,…",
    show_default=True,
    help="Which to compare; fcfs is the baseline and always runs.",
)
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, metavar="N")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N")
@click.option("--long", "longs", type=click.IntRange(min=0), default=4, show_default=True)
@click.option("--short", "shorts", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--max-num-seqs", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--model", metavar="MODEL", help="A folder or a Hugging Face name.")
@click.option("--json", "as_json", is_flag=True, help="Print the medians as one JSON line.")
def burst(**options: Any) -> None:
    """A burst of long and short programs at once, on a real engine.

    Every policy runs the same programs in the same order with outputs of fixed length;
    policies alternate within a repeat. Ratios to fcfs, in engine steps and in seconds.
    """
    from agentrt.cli.signals import Interrupts
    from agentrt.lab.bench.burst import BASELINE
    from agentrt.scheduler.policies import policy_class

    names = list(dict.fromkeys([BASELINE, *options["policies"].split(",")]))
    for name in names:
        policy_class(name)
    ratios, table = Interrupts(note).run(_burst(names, options))
    click.echo(table)
    if options["as_json"]:
        click.echo(json.dumps(ratios))


async def _burst(names: list[str], options: dict[str, Any]) -> tuple[Any, str]:
    from agentrt.executors.vllm.engine import VLLMEngine
    from agentrt.executors.vllm.options import EngineOptions
    from agentrt.lab.bench.burst import LONG, SHORT, Burst, BurstBench
    from agentrt.runtime import Runtime
    from agentrt.scheduler.config import SchedulerConfig

    config = SchedulerConfig()
    engine = VLLMEngine(EngineOptions(options["model"], options["max_num_seqs"], scheduler=config))
    runtime = Runtime(engine)
    async with opened(runtime):
        shapes = Burst({LONG: options["longs"], SHORT: options["shorts"]})
        measured = BurstBench(runtime, engine, config, shapes, note)
        await measured.run(names, options["repeat"], options["seed"])
        return measured.ratios(), measured.table()


@click.command()
@click.option("--running", default="4,64", metavar="N,N,…", show_default=True)
@click.option("--waiting", default="10,100,1000", metavar="N,N,…", show_default=True)
@click.option("--steps", type=click.IntRange(min=50), default=1000, show_default=True)
def scheduler(running: str, waiting: str, steps: int) -> None:
    """The scheduler's own CPU time per engine step, against stock vLLM's.

    Needs no model: the real schedulers run over real KV-cache blocks.
    """
    import os

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from agentrt.lab.bench.overhead import table

    click.echo(table(numbers(running), numbers(waiting), steps, note))
