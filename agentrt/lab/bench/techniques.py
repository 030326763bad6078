"""``agentrt bench techniques``: ways to think as programs over contexts, beside an HTTP client's.

Both sides run the same bodies, with the same model and engine options, in turns: one over contexts
of a runtime, whose engine is embedded, the other as a client of vLLM's own server, which sends the
whole text with each call. What one repeat reads, no other has read.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import click
import httpx

from agentrt import Context, Runtime, program
from agentrt.cli.engine_log import EngineLog
from agentrt.cli.signals import Interrupts
from agentrt.executors.vllm.default_model import default_model
from agentrt.executors.vllm.engine import VLLMEngine
from agentrt.executors.vllm.options import EngineOptions, prepare_environment
from agentrt.lab.bench.results import SPREAD, WHOLE, Column, Figures, Results, ratios, show
from agentrt.lab.bench.servers import StockServer
from agentrt.lab.bench.technique_bodies import BODIES, Body
from agentrt.lab.bench.technique_threads import HttpThread, OurThread, counted
from agentrt.lab.commands.options import count_option, json_option, model_option, note
from agentrt.lab.runs.grid import turns
from agentrt.testing.tinymodel import tiny_model

COLUMNS = (
    Column("steps", "steps", WHOLE),
    Column("tokens computed", "computed", WHOLE),
    Column("s", "s", "{:.2f}"),
    Column("steps / client", "steps_to_client"),
    Column("computed / client", "computed_to_client"),
    Column("time / client", "s_to_client", SPREAD),
)
_TIMEOUT_S = 600.0
_SEATS = 16
Side = Callable[[Body, str], Awaitable[Figures]]
"""Runs a body on a text; how long it took, and what the engine did."""


@click.command()
@count_option("--repeat", default=5)
@click.option("--quick", is_flag=True, help="With a tiny model, whose steps take milliseconds.")
@model_option
@json_option
def techniques(**options: Any) -> None:
    """Techniques over contexts, beside a client of vLLM's own server that does the same."""
    measured = Results({"technique": "technique", "side": "side"})
    with _model(options) as model:
        Interrupts(note).run(_measure(measured, model, options["repeat"]))
    show(measured.table(COLUMNS), measured.medians(), as_json=options["as_json"])


@contextlib.contextmanager
def _model(options: dict[str, Any]) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="agentrt-bench-") as folder:
        if options["quick"]:
            prepare_environment(EngineOptions())
            yield str(tiny_model(Path(folder) / "tiny"))
        else:
            yield options["model"] or default_model(note)


async def _measure(measured: Results, model: str, repeats: int) -> None:
    options = EngineOptions(model, _SEATS)
    prepare_environment(options)
    with EngineLog(verbose=False) as log:
        async with (
            Runtime(VLLMEngine(options)) as runtime,
            StockServer(options, model, counts=True) as server,
        ):
            note("starting vLLM's own server")
            await server.start(log.collect)
            async with httpx.AsyncClient(base_url=server.base_url, timeout=_TIMEOUT_S) as client:
                await compare(
                    measured, {"client": theirs(client), "contexts": ours(runtime)}, repeats
                )


async def compare(measured: Results, sides: dict[str, Side], repeats: int) -> None:
    """Let both sides do each technique in turns, so many times after a first one."""
    measured.expect((name, side) for name in BODIES for side in sides)
    for name, repeat in product(BODIES, range(-1, repeats)):
        note(f"{name}: repeat {repeat + 1} of {repeats}")
        took = {
            side: await sides[side](BODIES[name], text_of(name, repeat))
            for side in turns(list(sides), repeat)
        }
        for side, mine in took.items():
            if repeat >= 0:  # before it, both warm up
                over = ratios(mine, took["client"], ["steps", "computed", "s"], "_to_client")
                measured.add(name, side, figures={**mine, **over})


def text_of(name: str, repeat: int) -> str:
    """Some 600 tokens that nobody has read."""
    return f"{name}, number {repeat}. " + "The river is wide, and the bridge is old. " * 55


def ours(runtime: Runtime) -> Side:
    """Programs over contexts of ``runtime``."""

    async def run(body: Body, text: str) -> Figures:
        @program
        async def technique(ctx: Context) -> None:
            await body(OurThread(await ctx.context(text)))

        async with timed(lambda: counts(runtime)) as figures:
            await runtime.start(technique).wait()
        return figures

    return run


def theirs(client: httpx.AsyncClient) -> Side:
    """A client of vLLM's own server."""

    async def run(body: Body, text: str) -> Figures:
        async with timed(lambda: counted(client)) as figures:
            await body(HttpThread(client, text))
        return figures

    return run


async def counts(runtime: Runtime) -> tuple[float, float]:
    """Steps of the embedded engine so far, and tokens that it has computed in them."""
    found = await runtime.executor.snapshot()
    return found["steps"], found["computed_tokens"]


@contextlib.asynccontextmanager
async def timed(
    count: Callable[[], Awaitable[tuple[float, float]]],
) -> AsyncIterator[dict[str, float]]:
    """Seconds, steps and computed tokens of what happens meanwhile."""
    figures: dict[str, float] = {}
    steps, computed = await count()
    began = time.perf_counter()
    yield figures
    figures["s"] = time.perf_counter() - began
    after = await count()
    figures["steps"], figures["computed"] = after[0] - steps, after[1] - computed
