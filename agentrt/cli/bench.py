"""``agentrt bench``: the measurements behind the tables in docs/benchmarks.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from agentrt.cli.bench_retention import retention
from agentrt.cli.simulate.options import ManyCommand, many

_SOME = ("fcfs", "atlas", "adaptive")
"""What the simulator is timed under by default: the plainest, the paper's, and ours."""


@click.group()
def bench() -> None:
    """Measure policies, and what scheduling costs. Tables go to stdout, as Markdown."""


bench.add_command(retention)


@bench.command()
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
    from agentrt.bench.burst import BASELINE
    from agentrt.cli.interrupts import Interrupts
    from agentrt.scheduler.policies import policy_class

    names = list(dict.fromkeys([BASELINE, *options["policies"].split(",")]))
    for name in names:
        policy_class(name)
    ratios, table = Interrupts(_note).run(_burst(names, options))
    click.echo(table)
    if options["as_json"]:
        click.echo(json.dumps(ratios))


async def _burst(names: list[str], options: dict[str, Any]) -> tuple[Any, str]:
    from agentrt.bench.burst import LONG, SHORT, Burst, BurstBench
    from agentrt.cli.quiet import EngineLog
    from agentrt.executors.vllm.engine import VLLMEngine
    from agentrt.executors.vllm.options import EngineOptions
    from agentrt.runtime import Runtime
    from agentrt.scheduler.config import SchedulerConfig

    config = SchedulerConfig()
    engine = VLLMEngine(EngineOptions(options["model"], options["max_num_seqs"], scheduler=config))
    runtime = Runtime(engine)
    _note("loading the engine")
    with EngineLog(verbose=False) as log:
        try:
            with log.collect():
                await runtime.open()
            shapes = Burst({LONG: options["longs"], SHORT: options["shorts"]})
            measured = BurstBench(runtime, engine, config, shapes, _note)
            await measured.run(names, options["repeat"], options["seed"])
            return measured.ratios(), measured.table()
        finally:
            await runtime.close()


@bench.command()
@click.option("--running", default="4,64", metavar="N,N,…", show_default=True)
@click.option("--waiting", default="10,100,1000", metavar="N,N,…", show_default=True)
@click.option("--steps", type=click.IntRange(min=50), default=1000, show_default=True)
def scheduler(running: str, waiting: str, steps: int) -> None:
    """The scheduler's own CPU time per engine step, against stock vLLM's.

    Needs no model: the real schedulers run over real KV-cache blocks.
    """
    import os

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from agentrt.bench.overhead import table

    click.echo(table(_numbers(running), _numbers(waiting), steps, _note))


@bench.command(cls=ManyCommand)
@many("--policies", metavar="NAME…", help="Which, beside fcfs.  [default: all]")
@many("--live", metavar="N…", help="How many programs wait.  [default: 10,1000,100000]")
@click.option("--steps", type=click.IntRange(min=1), default=1000, show_default=True, metavar="N")
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, metavar="N")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N")
@click.option("--json", "as_json", is_flag=True, help="Print the medians as one JSON line.")
def decisions(**options: Any) -> None:
    """The CPU time of a policy's decisions, by how many programs are live.

    Needs no model: the real queues and process table, 64 calls that run, and so many
    programs with a call that waits. In each step a call ends and another arrives.
    """
    from agentrt.bench.decisions import as_dicts, costs_table, growth_table, measure
    from agentrt.scheduler.policies import policy_names

    names = _policies(options["policies"] or policy_names())
    live = _counts("--live", options["live"] or ("10", "1000", "100000"))
    samples = measure(names, live, options["repeat"], options["steps"], options["seed"], tell=_note)
    click.echo(f"{costs_table(samples)}\n\n{growth_table(samples)}")
    if options["as_json"]:
        click.echo(json.dumps(as_dicts(samples)))


@bench.command(cls=ManyCommand)
@many("--policies", metavar="NAME…", help=f"Which, beside fcfs.  [default: {', '.join(_SOME)}]")
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
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True, metavar="N")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N")
@click.option("--json", "as_json", is_flag=True, help="Print the medians as one JSON line.")
def simulator(**options: Any) -> None:
    """How fast the step simulator is, and the memory that a live program takes."""
    from agentrt.bench.simulator import as_dict, footprint, footprint_table, measure, speed_table
    from agentrt.scheduler.policies import policy_names

    some = [name for name in _SOME if name in policy_names()]
    names = _policies(options["policies"] or some)
    counts = _counts("--programs", options["programs"] or ("1000", "10000"))
    timings = measure(
        *(names, counts, options["workload"], options["load"]),
        *(options["repeat"], options["seed"], _note),
    )
    footprints = {}
    for name in names:
        _note(f"memory of {options['live']} live programs under {name}")
        footprints[name] = footprint(name, options["live"], options["seed"])
    click.echo(f"{speed_table(timings)}\n\n{footprint_table(footprints)}")
    if options["as_json"]:
        click.echo(json.dumps(as_dict(timings, footprints)))


def _policies(names: Sequence[str]) -> list[str]:
    """The policies by name, the baseline first. Raises `ConfigError` for an unknown one."""
    from agentrt.scheduler.policies import policy_class

    policies = list(dict.fromkeys(["fcfs", *names]))
    for name in policies:
        policy_class(name)
    return policies


def _counts(option: str, texts: Sequence[str]) -> list[int]:
    return sorted({number for text in texts for number in _numbers(text, option)})


def _numbers(text: str, option: str = "") -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        what = f"{option} {text!r}".strip()
        raise click.BadParameter(f"{what} is no list of positive numbers such as 4,64")
    return numbers


def _note(message: str) -> None:
    click.echo(message, err=True)
