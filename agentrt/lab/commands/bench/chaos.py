"""``agentrt bench chaos``: programs whose engines are killed while they run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentrt.lab.commands.bench.values import note

if TYPE_CHECKING:
    from agentrt.executors.vllm.options import EngineOptions
    from agentrt.lab.bench.chaos import Report, Terms
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
@click.option(
    "--tiny",
    is_flag=True,
    help="A model of two layers with random weights, made on the spot: its texts are no language, "
    "but hang on every token. More calls in the same time.",
)
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
    from agentrt.cli.signals import Interrupts
    from agentrt.executors.vllm.options import EngineOptions, check_model
    from agentrt.lab.bench.chaos import Terms
    from agentrt.router import make_router

    make_router(options["router"])
    if options["model"] is not None:
        check_model(options["model"])
    terms = Terms(
        seconds=60 * options["minutes"],
        replicas=options["replicas"],
        every=options["every"],
        router=options["router"],
        seed=options["seed"],
    )
    with (
        _model(options) as model,
        _cluster(terms.replicas, ray=options["ray"]) as cluster,
        _in_silence() as tell,
    ):
        seats = options["max_num_seqs"]
        engine = EngineOptions(model, seats, flags=_FLAGS, replicas=terms.replicas)
        report = Interrupts(tell).run(_run(engine, terms, cluster, options, tell))
    click.echo(report.table())
    if options["as_json"]:
        click.echo(json.dumps(asdict(report)))
    for line in report.wrong():
        click.echo(f"error: {line}", err=True)
    return 1 if report.wrong() else 0


@contextlib.contextmanager
def _model(options: dict[str, Any]) -> Iterator[str | None]:
    if not options["tiny"]:
        yield options["model"]
        return
    from agentrt.testing.tinymodel import tiny_model

    with tempfile.TemporaryDirectory(prefix="agentrt-tiny-") as folder:
        yield str(tiny_model(Path(folder)))


@contextlib.contextmanager
def _in_silence() -> Iterator[Callable[[str], None]]:
    """Engines start all the time, and write what they like into a log; notes go to stderr."""
    from agentrt.cli.engine_log import EngineLog

    with os.fdopen(os.dup(2), "w", buffering=1) as stderr, EngineLog(verbose=False) as log:
        begin = time.monotonic()

        def tell(message: str) -> None:
            stderr.write(f"[{time.monotonic() - begin:6.1f} s] {message}\n")

        with log.collect():
            yield tell


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
    engine: EngineOptions,
    terms: Terms,
    cluster: LocalCluster | None,
    options: dict[str, Any],
    tell: Callable[[str], None],
) -> Report:
    from agentrt.executors.base import Executor
    from agentrt.executors.vllm.engine import VLLMEngine
    from agentrt.lab.bench.chaos import Chaos
    from agentrt.lab.bench.stories import Stories

    stories = Stories(options["programs"], options["max_tokens"])
    if cluster is None:
        return await Chaos(lambda index: VLLMEngine(engine), stories, terms, tell).run()
    from agentrt.executors.ray import Cluster, RayEngine
    from agentrt.executors.vllm.footprint import footprint

    ray = Cluster(cluster.address, terms.replicas, memory=footprint(engine))

    def make(index: int) -> Executor:
        return RayEngine(engine, ray)

    async def blow() -> None:
        tell("killing a node's raylet")
        cluster.kill_node(1)
        await asyncio.sleep(_NODE_AWAY_S)
        tell("a new node joins")
        await asyncio.to_thread(cluster.replace_node, 1)

    return await Chaos(make, stories, replace(terms, blow=blow), tell).run()
