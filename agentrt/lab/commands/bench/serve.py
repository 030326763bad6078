"""``agentrt bench serve``: the server under load, beside vLLM's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agentrt.lab.commands.bench.values import note

if TYPE_CHECKING:
    from agentrt.lab.bench.serving import ServingBench


@click.command()
@click.option("--clients", type=click.IntRange(min=1), default=256, show_default=True, metavar="N")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="M",
    help="How long agentrt has the load, in all repeats together; stock has it as long.",
)
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, metavar="N")
@click.option("--max-num-seqs", type=click.IntRange(min=1), default=16, show_default=True)
@click.option("--policy", default="fcfs", show_default=True, metavar="NAME")
@click.option("--model", metavar="MODEL", help="A folder or a Hugging Face name.")
def serve(**options: Any) -> None:
    """agentrt serve and vLLM's own server, with programs of three calls, in turns.

    The second table is what agentrt's process holds after each of its turns: what grows there
    is a leak. With policy fcfs both schedule alike, and what differs is the server.
    """
    from agentrt.cli.signals import Interrupts
    from agentrt.scheduler.policies import policy_class

    policy_class(options["policy"])
    measured = Interrupts(note).run(_measure(options))
    click.echo(measured.table())
    click.echo()
    click.echo(measured.leaks())


async def _measure(options: dict[str, Any]) -> ServingBench:
    from agentrt.cli.engine_log import EngineLog
    from agentrt.executors.vllm.default_model import default_model
    from agentrt.executors.vllm.options import EngineOptions, prepare_environment
    from agentrt.lab.bench.serving import ServingBench
    from agentrt.scheduler.config import SchedulerConfig

    config = SchedulerConfig(policy=options["policy"])
    engine = EngineOptions(options["model"], options["max_num_seqs"], config)
    prepare_environment(engine)
    model = options["model"] or default_model(note)
    bench = ServingBench(options["clients"], options["minutes"] * 60 / options["repeat"], note)
    with EngineLog(verbose=False) as log:
        await bench.run(engine, model, log.collect, options["repeat"])
    return bench
