"""``benchmarks techniques``: programs that use agentrt's contexts, compared with an HTTP client.

One side uses the contexts of a runtime with an embedded engine. The other side is a client, which
sends the whole prompt to vLLM's own server with each call. Both sides run the same functions if a
client can run them; otherwise, the client runs the closest equivalent. The sides run in turns, with
the same model and the same engine options, except that only the embedded engine has the logits
processor for watermarking. Attention that a program chooses is compared with plain code for
transformers. No two repeats have the same texts.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, cast

import click
import httpx

from agentrt import Context, Runtime, program
from agentrt.cli.engine_log import EngineLog
from agentrt.engines import EngineOptions, VLLMEngine
from agentrt.executors.transformers import TransformersExecutor
from agentrt.executors.vllm.default_model import default_model
from agentrt.executors.vllm.options import prepare_environment
from agentrt.lab.commands.options import (
    count_option,
    flag_option,
    many,
    note,
)
from agentrt.lab.runs.grid import turns
from benchmarks.harness import SPREAD, WHOLE, Column, Figures, Results, ratios, run_with_table
from benchmarks.options import (
    json_option,
    model_option,
    repeat_option,
)
from benchmarks.servers import StockServer
from benchmarks.techniques.attention import ATTENTIONS, PlainModel, PlainThread
from benchmarks.techniques.table import OF_A_TRAINED_MODEL, TECHNIQUES, Technique
from benchmarks.techniques.threads import GREEN, HttpClient, HttpThread, OurThread, Thread
from tests.doubles.tinymodel import tiny_model

COLUMNS = (
    Column("steps", "steps", WHOLE),
    Column("tokens computed", "computed", WHOLE),
    Column("s", "s", "{:.2f}"),
    Column("steps / client", "steps_to_client"),
    Column("computed / client", "computed_to_client"),
    Column("time / client", "s_to_client", SPREAD),
    Column("throughput / client", "per_s_to_client", SPREAD),
)
_RATIOS = ("steps", "computed", "s", "per_s")
_TIMEOUT_S = 600.0
_SLOTS = 64
_PROCESSOR = f"benchmarks.techniques.green_list:{GREEN}"
Counts = Callable[[], Awaitable[tuple[float, float]]]
"""A function that returns the number of steps of an engine so far, and the number of tokens that
were computed in these steps.
"""


class Side(NamedTuple):
    """One side of the comparison: a function that runs a technique with a text, and a function that
    returns the counts of the side's engine.
    """

    run: Callable[[Technique, str], Awaitable[object]]
    counted: Counts


@click.command()
@repeat_option(5)
@count_option(
    "--concurrency", default=1, about="Number of programs at once, each with a text of its own."
)
@count_option(
    "--round-trip",
    default=0,
    least=0,
    metavar="MS",
    about="Milliseconds of a round trip between client and server. A client has this delay for "
    "each request; a program has it once.",
)
@many("--only", metavar="NAME,…", help="Techniques to run.  [default: all]")
@flag_option(
    "--quick",
    "Use a tiny model, whose steps take milliseconds, and by default leave out the techniques "
    "that need a trained model.",
)
@model_option
@json_option
def techniques(**options: Any) -> None:
    """Compare programs that use agentrt's contexts with clients of vLLM's own server.

    Both sides use the same prompting and decoding techniques, such as beam search and Tree of
    Thoughts. Attention that a program chooses is compared with plain code for transformers.
    """
    chosen, attentions = _chosen(TECHNIQUES, options), _chosen(ATTENTIONS, options)
    if unknown := set(options["only"]) - {*chosen, *attentions}:
        names = ", ".join({**TECHNIQUES, **ATTENTIONS})
        raise click.UsageError(f"unknown technique {min(unknown)!r}; available: {names}")
    measured = Results({"technique": "technique", "side": "side"})
    bench = Bench(measured, options["repeat"], options["concurrency"], options["round_trip"] / 1e3)

    with _model(options) as model:
        run_with_table(
            bench.measure(model, chosen, attentions), measured, COLUMNS, as_json=options["as_json"]
        )


def _chosen(techniques: Mapping[str, Technique], options: Any) -> dict[str, Technique]:
    only = options["only"] or {*techniques} - (OF_A_TRAINED_MODEL if options["quick"] else set())
    return {name: body for name, body in techniques.items() if name in only}


@contextlib.contextmanager
def _model(options: dict[str, Any]) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="agentrt-bench-") as folder:
        if options["quick"]:
            prepare_environment(EngineOptions())
            yield str(tiny_model(Path(folder) / "tiny"))
        else:
            yield options["model"] or default_model(note)


class Bench(NamedTuple):
    """A comparison, and its results in ``measured``. Its sizes are the number of ``repeats``, the
    number of programs ``at_once``, and the seconds of a round trip.
    """

    measured: Results
    repeats: int
    at_once: int = 1
    round_trip_s: float = 0.0

    async def measure(
        self, model: str, chosen: dict[str, Technique], attentions: dict[str, Technique]
    ) -> None:
        """Compare the techniques ``chosen`` with a client of vLLM's own server, and ``attentions``
        with plain code for transformers.
        """
        if chosen:
            async with engines(model, self.round_trip_s) as sides:
                await self.compare(chosen, sides)
        if attentions:
            plain = PlainModel(model)

            async def run(technique: Technique, text: str) -> None:
                await technique.theirs(cast(Thread, PlainThread(plain, text)))

            async with Runtime(TransformersExecutor(model)) as runtime:
                sides = {"client": Side(run, plain.counted), "contexts": ours(runtime)}
                await self.compare(attentions, sides)

    async def compare(self, techniques: Mapping[str, Technique], sides: Mapping[str, Side]) -> None:
        """Let both sides run each technique in turns, in each repeat. A further repeat before these
        warms up, and is not counted.
        """
        self.measured.expect((name, side) for name in techniques for side in sides)
        for name, repeat in product(techniques, range(-1, self.repeats)):
            about = f"repeat {repeat + 1} of {self.repeats}" if repeat >= 0 else "warm-up"
            note(f"{name}: {about}")
            texts = [text_of(name, repeat, index) for index in range(self.at_once)]
            took = {
                side: await timed(sides[side], techniques[name], texts)
                for side in turns(list(sides), repeat)
            }
            for side, mine in took.items():
                if repeat >= 0:
                    over = ratios(mine, took["client"], _RATIOS, "_to_client")
                    self.measured.add(name, side, figures={**mine, **over})


def text_of(name: str, repeat: int, index: int) -> str:
    """Return a text of about 600 tokens that no other repeat has."""
    return f"{name}, {repeat}, {index}. " + "The river is wide, and the bridge is old. " * 55


@contextlib.asynccontextmanager
async def engines(model: str, round_trip_s: float) -> AsyncIterator[dict[str, Side]]:
    """Start an embedded engine, and vLLM's own server with the same options, but without the logits
    processor for watermarking.
    """
    options = EngineOptions(model, _SLOTS)
    prepare_environment(options)
    own = replace(options, flags=("--logits-processors", _PROCESSOR))
    limits = httpx.Limits(max_connections=None)
    with EngineLog(verbose=False) as log:
        async with (
            Runtime(VLLMEngine(own)) as runtime,
            StockServer(options, model) as server,
        ):
            note("starting vLLM's own server")
            await server.start(log.collect)
            async with httpx.AsyncClient(
                base_url=server.base_url, timeout=_TIMEOUT_S, limits=limits
            ) as client:
                yield {
                    "client": theirs(HttpClient(client, round_trip_s)),
                    "contexts": ours(runtime, round_trip_s),
                }


def ours(runtime: Runtime, round_trip_s: float = 0.0) -> Side:
    """Return the side whose programs use the contexts of ``runtime``."""

    async def run(technique: Technique, text: str) -> None:
        @program
        async def body(ctx: Context) -> None:
            await technique.ours(OurThread(ctx, await ctx.context(text)))

        await asyncio.sleep(round_trip_s)
        await runtime.start(body).wait()

    async def count() -> tuple[float, float]:
        counts = await runtime.executor.snapshot()
        return counts["steps"], counts.get("computed_tokens", math.nan)

    return Side(run, count)


def theirs(client: HttpClient) -> Side:
    """Return the side that is a client of vLLM's own server."""
    return Side(lambda technique, text: technique.theirs(HttpThread(client, text)), client.counted)


async def timed(side: Side, technique: Technique, texts: Sequence[str]) -> Figures:
    """Run a program for each text. Return the programs' mean time, the number of programs per
    second, and the engine's steps and computed tokens during these runs.
    """
    steps, computed = await side.counted()
    began = time.perf_counter()

    async def run(text: str) -> float:
        await side.run(technique, text)
        return time.perf_counter() - began

    took = await asyncio.gather(*map(run, texts))
    per_s = len(texts) / (time.perf_counter() - began)
    after = await side.counted()
    done = {"steps": after[0] - steps, "computed": after[1] - computed}
    return {"s": statistics.mean(took), "per_s": per_s, **done}
