"""``benchmarks front``: what a served call takes of the processor, beside vLLM's own server.

The front ends of both run on the same scripted engine, each in a process of its own
(`benchmarks.front.fronts`), and have the same calls in turns: whole ones of one token, and
streams of 64. How many functions are called does not depend on what else the machine does.
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
from agentrt.lab.commands.options import count_option, json_option, note
from agentrt.lab.runs.grid import turns
from benchmarks.harness import WHOLE, Column, Figures, Results, ratios, run_with_table
from benchmarks.serve import SINGLES, Turn, user
from benchmarks.servers import piped

SERVERS = ("stock", "agentrt")
CALLS = {"calls": 100, "streams": 24}
"""So many in a turn."""
_CLIENTS = 16
_IDLE_S = 2.0
"""A connection that was idle for so long is not used again: vLLM's server closes it after 5 s."""
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
@count_option("--repeat", default=24, about="Turns of 100 calls and 24 streams on each.")
@json_option
def front(**options: Any) -> None:
    """The CPU time and the functions of a call in agentrt's front end, over those in vLLM's own.

    On an engine whose outputs are scripted, so that only the front ends compute. Needs no GPU.
    """
    measured = Results({"front": "front end", "asked": "asked for"})
    measured.expect((name, asked) for asked in SINGLES for name in SERVERS)

    run_with_table(
        measure(measured, options["repeat"]), measured, COLUMNS, as_json=options["as_json"]
    )


class Used(NamedTuple):
    """What a front end's process has used so far: seconds of the processor, functions called."""

    cpu_s: float
    called: int


class Front:
    """A front end in a process of its own, and a client of it."""

    def __init__(
        self, to: asyncio.StreamWriter, said: asyncio.StreamReader, client: httpx.AsyncClient
    ) -> None:
        self._to, self._said, self._client = to, said, client
        self._made = 0

    async def used(self, line: str = "used") -> Used:
        """What it has used so far."""
        self._to.write(f"{line}\n".encode())
        return Used(*json.loads(await self._said.readline()))

    async def turn(self, asked: str) -> Figures:
        """Make a turn's calls; what each took of the processor, and of functions if counted."""
        before = await self.used()
        await self._make(asked)
        after = await self.used()
        count, tokens = CALLS[asked], SINGLES[asked]
        each_s = (after.cpu_s - before.cpu_s) / count
        return {"cpu_ms": each_s * 1e3, "cpu_us": each_s / tokens * 1e6}

    async def count(self, asked: str) -> Figures:
        """Make a turn's calls; how many functions each called."""
        await self.used("count")
        before = await self.used()
        await self._make(asked)
        each = ((await self.used("count")).called - before.called) / CALLS[asked]
        return {"called": each, "called_token": each / SINGLES[asked]}

    async def _make(self, asked: str) -> None:
        turn, end = Turn(), self._made + CALLS[asked]

        async def one() -> None:
            while self._made < end:
                self._made += 1
                how = {"json": {"stream": asked == "streams"}}
                await turn.call(self._client, [user(f"{self._made}")], SINGLES[asked], **how)

        await asyncio.gather(*(one() for _ in range(_CLIENTS)))
        if turn.statuses != {"200": CALLS[asked]}:
            raise EngineStartError(f"a front end did not answer all calls: {dict(turn.statuses)}")


async def measure(measured: Results, repeats: int) -> None:
    """Count each front end's functions in one turn, and take its processor time in others."""
    async with AsyncExitStack() as stack:
        fronts: dict[str, Front] = {}
        for name in SERVERS:
            note(f"starting the front end of {name}")
            fronts[name] = await stack.enter_async_context(opened(name))
        counted: dict[tuple[str, str], Figures] = {}
        for name, one in fronts.items():
            note(f"{name}: counting functions")
            for asked in SINGLES:
                await one.turn(asked)  # the first ones import and cache
                counted[name, asked] = await one.count(asked)
        for repeat in range(repeats):
            note(f"repeat {repeat + 1} of {repeats}")
            for asked in SINGLES:
                found: dict[str, Figures] = {}
                for name in turns(SERVERS, repeat):
                    found[name] = {**await fronts[name].turn(asked), **counted[name, asked]}
                for name, mine in found.items():
                    over = ratios(mine, found[SERVERS[0]], ["called", "cpu_ms"], "_to_stock")
                    measured.add(name, asked, figures={**mine, **over})


@asynccontextmanager
async def opened(name: str) -> AsyncIterator[Front]:
    """A front end that serves. Raises `EngineStartError` if it ends before."""
    command = sys.executable, "-m", "benchmarks.front.fronts", name
    async with piped(*command, env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}) as (_, to, said):
        url = (await said.readline()).decode().strip()
        if not url:
            raise EngineStartError(f"the front end of {name} ended before it served")
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=_IDLE_S
        )
        async with httpx.AsyncClient(
            base_url=f"{url}/v1", timeout=_CALL_S, limits=limits
        ) as client:
            yield Front(to, said, client)
