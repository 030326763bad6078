"""``benchmarks front``: the CPU time of a served call, compared with vLLM's own server.

Both front ends run on the same scripted engine, each in a process of its own
(`benchmarks.front.fronts`). They serve the same calls in turns: whole answers of one token, and
streams of 64 tokens. The number of called functions does not depend on other work on the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import click
import httpx

from agentrt.errors import EngineStartError
from agentrt.lab.commands.options import note
from agentrt.lab.runs.grid import turns
from benchmarks.harness import WHOLE, Column, Figures, Results, ratios, run_with_table
from benchmarks.options import (
    json_option,
    repeat_option,
)
from benchmarks.serve import SINGLES, Turn, user
from benchmarks.servers import piped

SERVERS = ("stock", "agentrt")
CALLS = {"calls": 100, "streams": 24}
"""The number of calls in a turn."""
_CLIENTS = 16
_IDLE_S = 2.0
"""Seconds after which an idle connection is not used again, because vLLM's server closes an idle
connection after 5 s.
"""
_CALL_S = 60.0
COLUMNS = (
    Column("functions a call", "called", WHOLE),
    Column("a token", "called_token", WHOLE),
    Column("functions / stock", "called_to_stock", "{:.3f}"),
    Column("CPU ms a call", "cpu_ms"),
    Column("CPU us a token", "cpu_us", WHOLE),
    Column("CPU / stock", "cpu_ms_to_stock"),
)


@click.command()
@repeat_option(24, "Number of turns of each server; a turn has 100 calls and 24 streams.")
@json_option
def front(**options: Any) -> None:
    """Compare agentrt's front end with vLLM's own, by the CPU time and the number of called
    functions for each call.

    The outputs of the engine are scripted, so that only the front ends need CPU time. Needs no GPU.
    """
    measured = Results({"front": "front end", "kind": "kind of call"})
    measured.expect((name, kind) for kind in SINGLES for name in SERVERS)

    run_with_table(
        measure(measured, options["repeat"]), measured, COLUMNS, as_json=options["as_json"]
    )


class Used(NamedTuple):
    """The resources that a front end's process has used so far: CPU seconds and called
    functions.
    """

    cpu_s: float
    called: int


class FrontProcess:
    """A front end in a process of its own, and a client of it."""

    def __init__(
        self, to: asyncio.StreamWriter, out: asyncio.StreamReader, client: httpx.AsyncClient
    ) -> None:
        self._to, self._out, self._client = to, out, client
        self._made = 0

    async def used(self, line: str = "used") -> Used:
        """Return the resources used so far. The line "count" also turns the counting of functions
        on or off.
        """
        self._to.write(f"{line}\n".encode())
        return Used(*json.loads(await self._out.readline()))

    async def turn(self, kind: str) -> Figures:
        """Make the calls of a turn, and return the CPU time of a call in milliseconds, and of a
        token in microseconds.
        """
        before = await self.used()
        await self._make(kind)
        after = await self.used()
        count, tokens = CALLS[kind], SINGLES[kind]
        each_s = (after.cpu_s - before.cpu_s) / count
        return {"cpu_ms": each_s * 1e3, "cpu_us": each_s / tokens * 1e6}

    async def count(self, kind: str) -> Figures:
        """Make the calls of a turn, and return the number of functions that the front end calls for
        each call of a client, and for each token.
        """
        await self.used("count")
        before = await self.used()
        await self._make(kind)
        each = ((await self.used("count")).called - before.called) / CALLS[kind]
        return {"called": each, "called_token": each / SINGLES[kind]}

    async def _make(self, kind: str) -> None:
        turn, end = Turn(), self._made + CALLS[kind]

        async def client_calls() -> None:
            while self._made < end:
                self._made += 1
                chat = [user(f"{self._made}")]
                await turn.call(self._client, chat, SINGLES[kind], stream=kind == "streams")

        await asyncio.gather(*(client_calls() for _ in range(_CLIENTS)))
        if turn.statuses != {"200": CALLS[kind]}:
            raise EngineStartError(f"a front end did not answer all calls: {dict(turn.statuses)}")


async def measure(measured: Results, repeats: int) -> None:
    """Count the functions of each front end in one turn, and measure its CPU time in
    other turns.
    """
    async with AsyncExitStack() as stack:
        fronts: dict[str, FrontProcess] = {}
        for name in SERVERS:
            note(f"starting the front end of {name}")
            fronts[name] = await stack.enter_async_context(opened(name))
        counted: dict[tuple[str, str], Figures] = {}
        for name, front_end in fronts.items():
            note(f"{name}: counting functions")
            for kind in SINGLES:
                await front_end.turn(kind)  # the first calls import modules and fill caches
                counted[name, kind] = await front_end.count(kind)
        for repeat in range(repeats):
            note(f"repeat {repeat + 1} of {repeats}")
            for kind in SINGLES:
                timed: dict[str, Figures] = {}
                for name in turns(SERVERS, repeat):
                    timed[name] = {**await fronts[name].turn(kind), **counted[name, kind]}
                for name, mine in timed.items():
                    over = ratios(mine, timed[SERVERS[0]], ["called", "cpu_ms"], "_to_stock")
                    measured.add(name, kind, figures={**mine, **over})


@asynccontextmanager
async def opened(name: str) -> AsyncIterator[FrontProcess]:
    """Start a front end, and yield it. Raises `EngineStartError` if its process ends before it
    serves.
    """
    command = sys.executable, "-m", "benchmarks.front.fronts", name
    async with piped(*command, env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}) as (_, to, out):
        url = (await out.readline()).decode().strip()
        if not url:
            raise EngineStartError(f"the front end of {name} ended before it served")
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=_IDLE_S
        )
        async with httpx.AsyncClient(
            base_url=f"{url}/v1", timeout=_CALL_S, limits=limits
        ) as client:
            yield FrontProcess(to, out, client)
