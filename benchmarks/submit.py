"""``benchmarks submit``: the cost of programs that clients send, and the effects of hostile
programs.

The server has keys. First, clients send a minimal program several times at once, in turns with
starts of an equal program that the server itself serves. Then one tenant makes short calls.
Turns in which it is alone alternate with turns in which another tenant sends hostile programs, such
as endless loops.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import click
import httpx

from agentrt.engines import EngineOptions
from agentrt.lab.commands.options import (
    count_option,
    flag_option,
    note,
)
from agentrt.lab.runs.grid import turns
from agentrt.serving.tenants.keys import new_key
from benchmarks.harness import (
    Column,
    Figures,
    Results,
    percentile,
    ratios,
    run_shown,
    show,
)
from benchmarks.options import (
    json_option,
    model_option,
    repeat_option,
)
from benchmarks.servers import AgentrtServer, engine_and_model

AT_ONCE = (1, 16, 128, 896)
SERVED = """
from agentrt import Context, program

@program
async def answer(ctx: Context) -> int:
    return 1
"""
SENT = "async def main(ctx):\n    return 1\n"
HOSTILE = {
    "loop": "while True:\n    pass\n",
    "memory": "x = []\nwhile True:\n    x.append('y' * 100000)\n",
    "recursion": "def f(n):\n    return f(n + 1)\nf(0)\n",
    "tasks": (
        "import asyncio\nasync def wait():\n    await asyncio.sleep(9)\n"
        "async def main(ctx):\n    await asyncio.gather(*[wait() for i in range(10**6)])\n"
    ),
    "calls": (
        "async def main(ctx):\n    while True:\n        try:\n            await ctx.llm('', n=0)\n"
        "        except ValueError:\n            pass\n"
    ),
}
_SENDERS = 16
STARTS = (
    Column("P50, ms", "p50_ms"),
    Column("P99, ms", "p99_ms"),
    Column("P50 / served", "p50_to_served"),
)
OTHERS = (
    Column("calls", "calls", "{total:.0f}"),
    Column("P50 / alone", "p50_to_alone"),
    Column("P99 / alone", "p99_to_alone"),
    Column("programs stopped", "stopped", "{total:.0f}"),
)


@click.command()
@repeat_option(5)
@count_option("--seconds", default=10, about="Seconds of each turn of short calls.")
@flag_option("--quick", "Run 3 repeats of 4 seconds.")
@model_option
@json_option
def submit(**options: Any) -> None:
    """Measure how long sent programs take to start, and how hostile programs affect other tenants.

    The second table shows one tenant's calls of 4 tokens while another tenant's programs loop, fill
    the memory, recurse, and make calls without end.
    """
    bench = SubmitBench()
    repeats, seconds = (3, 4) if options["quick"] else (options["repeat"], options["seconds"])

    def print_tables() -> None:
        medians = {"starts": bench.starts.medians(), "others": bench.others.medians()}
        tables = bench.starts.table(STARTS), bench.others.table(OTHERS)
        show(tables, medians, as_json=options["as_json"])

    run_shown(_measure(bench, options, repeats, seconds), print_tables)


async def _measure(
    bench: SubmitBench, options: dict[str, Any], repeats: int, seconds: float
) -> None:
    engine, model = engine_and_model(options, slots=16, policy="atlas")
    async with _server(engine, model) as (url, keys):
        await bench.time_starts(url, keys["good"], AT_ONCE, repeats)
        await bench.disturb(url, keys, repeats, seconds)


@asynccontextmanager
async def _server(
    engine: EngineOptions, model: str
) -> AsyncIterator[tuple[str, Mapping[str, str]]]:
    """Start a server, and yield its address and the keys of a good and of a bad tenant."""
    with tempfile.TemporaryDirectory(prefix="agentrt-bench-") as folder:
        program, file = Path(folder, "answer.py"), Path(folder, "keys.json")
        keys = _prepare(program, file)
        own = ("--submit", "--api-key-file", str(file), str(program))
        async with AgentrtServer(engine, model, own=own) as server:
            note("starting agentrt serve")
            await server.start()
            yield server.base_url, keys


def _prepare(program: Path, file: Path) -> dict[str, str]:
    """Write the served program and the file of keys, and return the key of each tenant."""
    program.write_text(SERVED, "utf-8")
    keys = {tenant: new_key(file, tenant) for tenant in ("good", "bad")}
    tenants = json.loads(file.read_text("utf-8"))
    tenants["tenants"]["good"]["submitted"] = max(AT_ONCE)
    file.write_text(json.dumps(tenants), "utf-8")
    return keys


class SubmitBench:
    """The measurements of the time that programs take to start, and of a tenant's calls beside
    hostile programs.
    """

    def __init__(self) -> None:
        self.starts = Results({"at_once": "at once", "program": "program"})
        self.others = Results({"beside": "beside"})

    async def time_starts(self, url: str, key: str, sizes: tuple[int, ...], repeats: int) -> None:
        """Send programs, and start served programs, in turns. ``sizes`` are the numbers of programs
        that start at the same time.
        """
        self.starts.expect((size, side) for size in sizes for side in ("served", "sent"))
        sides = {
            "served": (f"{url}/programs/answer/runs", {}),
            "sent": (f"{url}/programs", {"source": SENT}),
        }
        async with _client(key) as client:
            for size in sizes:
                note(f"{size} programs at once")
                timed: dict[tuple[int, str], Figures] = {}
                for repeat in range(repeats + 1):  # the first warms up
                    for side in turns([*sides], repeat):
                        posts = (_seconds(client, *sides[side]) for _ in range(size))
                        timed[repeat, side] = _percentiles(await asyncio.gather(*posts))
                for (repeat, side), mine in timed.items():
                    if repeat:
                        over = ratios(mine, timed[repeat, "served"], ["p50_"], "to_served", "ms")
                        self.starts.add(size, side, figures={**mine, **over})

    async def disturb(
        self, url: str, keys: Mapping[str, str], repeats: int, seconds: float
    ) -> None:
        """Make one tenant's short calls for ``seconds``, alone and beside hostile programs."""
        sides = ("nobody", "hostile programs")
        self.others.expect((side,) for side in sides)
        for repeat in range(repeats):
            timed: dict[str, Figures] = {}
            for side in turns(sides, repeat):
                note(f"repeat {repeat + 1} of {repeats}: beside {side}")
                stopped: Counter[str] = Counter()
                async with _hostile(url, keys["bad"], stopped, on=side != "nobody"):
                    took = await _short_calls(url, keys["good"], seconds)
                ended = {"calls": len(took), "stopped": stopped["failed"]}
                timed[side] = {**_percentiles(took), **ended}
            for side, mine in timed.items():
                alone = ratios(mine, timed["nobody"], ["p50_", "p99_"], "to_alone", "ms")
                self.others.add(side, figures={**mine, **alone})


async def _short_calls(url: str, key: str, seconds: float) -> list[float]:
    """Make calls of one client, one after the other, and return the seconds of each."""
    took: list[float] = []
    until = time.perf_counter() + seconds
    async with _client(key) as client:
        while not took or time.perf_counter() < until:
            chat = [{"role": "user", "content": f"Hello, {len(took)}."}]
            body = {"model": AgentrtServer.NAME, "messages": chat, "max_tokens": 4}
            took.append(await _seconds(client, f"{url}/chat/completions", body))
    return took


@asynccontextmanager
async def _hostile(url: str, key: str, stopped: Counter[str], *, on: bool) -> AsyncIterator[None]:
    """Send hostile programs during the ``with`` block, as many at the same time as the tenant may
    run.
    """
    async with _client(key) as client:

        async def send(sources: Iterable[str]) -> None:
            for source in sources:
                answer = await client.post(f"{url}/programs", json={"source": source})
                await asyncio.sleep(float(answer.headers.get("retry-after", 0)))
                stopped[answer.json().get("state", "refused")] += 1

        senders = [asyncio.create_task(send(_turned(at))) for at in range(_SENDERS * on)]
        try:
            yield
        finally:
            for sender in senders:
                sender.cancel()
            await asyncio.gather(*senders, return_exceptions=True)


def _turned(first: int) -> Iterable[str]:
    """Yield the hostile programs in an endless cycle that begins with the number ``first``, so that
    senders begin with different programs.
    """
    sources = list(HOSTILE.values())
    return islice(cycle(sources), first % len(sources), None)


def _client(key: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    headers = {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(headers=headers, timeout=120.0, limits=limits)


async def _seconds(client: httpx.AsyncClient, url: str, body: Mapping[str, Any]) -> float:
    began = time.perf_counter()
    (await client.post(url, json=body)).raise_for_status()
    return time.perf_counter() - began


def _percentiles(took: Sequence[float]) -> Figures:
    return {"p50_ms": percentile(took, 0.5) * 1e3, "p99_ms": percentile(took, 0.99) * 1e3}
