"""``agentrt bench chaos``: programs whose engines are killed while they run."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from agentrt.cli.bench.values import note

if TYPE_CHECKING:
    from agentrt.bench.chaos import Report, Terms
    from agentrt.executors.vllm.options import EngineOptions
    from agentrt.testing.raycluster import LocalCluster

_NODE_AWAY_S = 20.0
_FLAGS = (
    "--dtype",
    "float32",
    "--max-model-len",
    "1024",
    "--kv-cache-memory-bytes",
    str(256 << 20),
)
"""float32, because bfloat16 varies with the batch that a call is in."""


@click.command()
@click.option("--minutes", type=click.FloatRange(min=0), default=10.0, show_default=True)
@click.option("--programs", type=click.IntRange(min=1), default=40, show_default=True, metavar="N")
@click.option("--replicas", type=click.IntRange(min=1), default=2, show_default=True, metavar="N")
@click.option(
    "--every",
    type=(float, float),
    default=(2.0, 6.0),
    show_default=True,
    metavar="S S",
    help="An engine that is up is killed after a time between these.",
)
@click.option("--router", default="agentix", show_default=True, metavar="NAME")
@click.option("--model", metavar="MODEL", help="A folder or a Hugging Face name.")
@click.option("--max-num-seqs", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--max-tokens", type=click.IntRange(min=1), default=16, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, metavar="N")
@click.option(
    "--ray",
    is_flag=True,
    help="On a Ray cluster of two nodes, started here on loopback. In the middle one node's "
    "raylet is killed, and a new node joins soon after.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON line, too.")
def chaos(**options: Any) -> int:
    """Native and LangGraph programs while engines are killed (SIGKILL) or hang (SIGSTOP).

    All at once, in rounds. Right is the answer that one engine gives in peace. Fails if a
    program's answer is another, if a call runs or is delivered again after its delivery, or if
    a process, a row, a call or a program is left at the end.
    """
    from agentrt.bench.chaos import Terms
    from agentrt.cli.interrupts import Interrupts
    from agentrt.executors.vllm.options import EngineOptions, check_model
    from agentrt.router import make_router

    make_router(options["router"])
    if options["model"] is not None:
        check_model(options["model"])
    engine = EngineOptions(
        options["model"], options["max_num_seqs"], flags=_FLAGS, replicas=options["replicas"]
    )
    terms = Terms(
        seconds=60 * options["minutes"],
        replicas=options["replicas"],
        every=options["every"],
        router=options["router"],
        seed=options["seed"],
    )
    with _cluster(terms.replicas, ray=options["ray"]) as cluster:
        report = Interrupts(note).run(_run(engine, terms, cluster, options))
    click.echo(report.table())
    if options["as_json"]:
        click.echo(json.dumps(asdict(report)))
    for line in report.wrong():
        click.echo(f"error: {line}", err=True)
    return 1 if report.wrong() else 0


@contextlib.contextmanager
def _cluster(engines: int, *, ray: bool) -> Iterator[LocalCluster | None]:
    if not ray:
        yield None
        return
    from agentrt.testing.raycluster import LocalCluster

    note("starting two Ray nodes on loopback")
    with LocalCluster(nodes=2, cpus=(engines + 1) // 2) as cluster:
        yield cluster


async def _run(
    engine: EngineOptions, terms: Terms, cluster: LocalCluster | None, options: dict[str, Any]
) -> Report:
    from agentrt.bench.chaos import Chaos
    from agentrt.bench.stories import Stories
    from agentrt.executors.base import Executor
    from agentrt.executors.vllm.engine import VLLMEngine

    stories = Stories(options["programs"], options["max_tokens"])
    if cluster is None:
        return await Chaos(lambda index: VLLMEngine(engine), stories, terms, note).run()
    from agentrt.executors.ray import Cluster, RayEngine
    from agentrt.executors.vllm.footprint import footprint

    ray = Cluster(cluster.address, terms.replicas, memory=footprint(engine))

    def make(index: int) -> Executor:
        return RayEngine(engine, ray)

    async def blow() -> None:
        note("killing a node's raylet")
        cluster.kill_node(1)
        await asyncio.sleep(_NODE_AWAY_S)
        note("a new node joins")
        await asyncio.to_thread(cluster.replace_node, 1)

    return await Chaos(make, stories, replace(terms, blow=blow), note).run()
