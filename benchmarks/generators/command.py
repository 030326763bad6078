"""``benchmarks generators``: load generators of other projects on `agentrt serve` and vLLM's
server.

Each generator runs as its users run it. It has the same seed on both servers, and both servers have
the same engine options. The servers take turns: only one server has load at a time. The table has
the figures that each generator reports, and the number of programs that agentrt recognised in the
generator's conversations.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import httpx

from agentrt.errors import AgentrtError, UsageError
from agentrt.lab.commands.options import (
    many,
    max_num_seqs_option,
    note,
)
from agentrt.lab.runs.contenders import DEFAULT, STOCK
from agentrt.lab.runs.grid import turns
from benchmarks.generators.others import GENERATORS, TURNS, Generator, Target
from benchmarks.harness import WHOLE, Column, Figures, Results, ratios, run_with_table
from benchmarks.options import (
    json_option,
    model_option,
    repeat_option,
)
from benchmarks.servers import AgentrtServer, Server, all_started, engine_and_model
from tests.clients.processes import run

SIDES = ("stock", "agentrt")
COLUMNS = (
    Column("calls", "calls", "{total:.0f}"),
    Column("failed", "failed", "{total:.0f}"),
    Column("programs", "programs", WHOLE),
    Column(f"of {TURNS} calls", "whole", WHOLE),
    Column("stock's TTFT, ms", "stock_ttft", WHOLE),
    Column("TTFT / stock", "ttft_to_stock"),
    Column("latency / stock", "latency_to_stock"),
    Column("calls/s / stock", "rate_to_stock"),
)
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
"""Environment variables with which aiperf would read the path of a tokenizer's folder as a name on
the Hugging Face hub.
"""


@click.command()
@many(
    "--only",
    metavar="NAME,…",
    help=f"Generators to run: {', '.join(GENERATORS)}.  [default: all installed]",
)
@click.option(
    "--clients",
    type=click.Path(path_type=Path),
    default=Path(".clients"),
    show_default=True,
    metavar="FOLDER",
    help="Folder that has a virtual environment for each generator, named after the generator. "
    "vLLM's own generator needs no environment.",
)
@repeat_option(3)
@max_num_seqs_option(default=8)
@model_option
@json_option
def generators(**options: Any) -> None:
    """Run load generators of other projects on agentrt serve and on vLLM's own server, in turns.

    Each generator except vLLM's sends 8 conversations of 3 turns, 4 at a time. vLLM's generator
    sends a timed trace, whose 24 prompts have common beginnings. agentrt runs with the defaults of
    'agentrt serve'.
    """
    if unknown := set(options["only"]) - set(GENERATORS):
        raise UsageError(f"unknown generator {min(unknown)!r}; available: {', '.join(GENERATORS)}")
    clients: Path = options["clients"]
    installed = [each for each in GENERATORS.values() if not each.program or each.is_in(clients)]
    chosen = [GENERATORS[name] for name in options["only"]] or installed
    bench = GeneratorBench(clients, chosen)
    run_with_table(_measure(bench, options), bench.measured, COLUMNS, as_json=options["as_json"])


async def _measure(bench: GeneratorBench, options: dict[str, Any]) -> None:
    engine, model = engine_and_model(options)
    async with all_started((STOCK, DEFAULT), engine, model) as servers:
        sides = dict(zip(SIDES, servers.values(), strict=True))
        await bench.run(sides, model, options["repeat"])


class GeneratorBench:
    """The runs of the ``chosen`` generators. The folder ``clients`` has their environments."""

    def __init__(self, clients: Path, chosen: Sequence[Generator]) -> None:
        self._clients, self._chosen = clients, chosen
        self.measured = Results({"generator": "generator"})

    async def run(self, servers: dict[str, Server], model: str, repeats: int) -> None:
        """Run each generator on each server in each repeat. A further repeat before these warms up,
        and is not counted.
        """
        for each in self._chosen:
            for repeat in range(repeats + 1):
                about = f"repeat {repeat} of {repeats}" if repeat else "warm-up"
                figures: dict[str, Figures] = {}
                for side in turns(SIDES, repeat):
                    note(f"{each.package} on {side}: {about}")
                    figures[side] = await self._once(each, servers[side], model)
                if repeat:
                    self._keep(each, figures)

    async def _once(self, generator: Generator, server: Server, model: str) -> Figures:
        environ = {name: value for name, value in os.environ.items() if name not in _OFFLINE}
        with tempfile.TemporaryDirectory(prefix="agentrt-bench-") as name:
            folder = Path(name)
            target = Target(server.root, server.NAME, model, folder)
            before = await programs(server)
            ended = await run(
                *generator.command(self._clients, target), folder=folder, environ=environ
            )
            if ended.code:
                last = (ended.err or ended.out).strip()[-500:]
                raise AgentrtError(
                    f"{generator.package} ended with exit status {ended.code}: {last}"
                )
            seen = await programs(server)
            calls = [count for program, count in seen.items() if program not in before]
            counts = {"programs": len(calls), "whole": calls.count(TURNS)}
            return {**generator.figures(folder), **counts}

    def _keep(self, generator: Generator, sides: dict[str, Figures]) -> None:
        stock, mine = (sides[side] for side in SIDES)
        both = {name: stock[name] + mine[name] for name in ("calls", "failed")}
        to_stock = ratios(mine, stock, ("ttft", "latency", "rate"), "_to_stock")
        figures = {**mine, **both, **to_stock, "stock_ttft": stock["ttft"]}
        self.measured.add(generator.label(self._clients), figures=figures)


async def programs(server: Server) -> dict[str, int]:
    """Return the number of calls of each live program, and end the programs that the clients named,
    because a generator uses the same names again in its next run.
    """
    if not isinstance(server, AgentrtServer):
        return {}
    async with httpx.AsyncClient(base_url=server.root, timeout=60) as client:
        listed = (await client.get("/v1/runs", params={"limit": 1000})).json()["runs"]
        for program in listed:
            if program["session"]:
                await client.delete(f"/v1/client-runs/{program['session']}")
        return {program["id"]: program["calls"] for program in listed}
