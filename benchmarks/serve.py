"""``benchmarks serve``: `agentrt serve` under load, beside vLLM's own server.

All servers run, in processes of their own, with the same engine options; the load comes from
this process, and one of them has it at a time, in turns. Clients are programs of a few calls,
each the last one's chat and more, one after the other, without a pause. For the CPU time of the
server's own process they make single calls, whole or streamed, and know nothing of programs.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import click
import httpx

from agentrt.cli.numbers import NumberRange
from agentrt.executors.base import Progress
from agentrt.executors.vllm.default_model import default_model
from agentrt.executors.vllm.options import EngineOptions, prepare_environment
from agentrt.lab.commands.options import (
    ManyCommand,
    count_option,
    max_num_seqs_option,
    model_option,
    note,
    policy_option,
)
from agentrt.lab.runs.contenders import DEFAULT, STOCK
from agentrt.lab.runs.grid import turns
from benchmarks.harness import WHOLE, Column, Figures, Results, percentile, ratios, run_shown, show
from benchmarks.servers import AgentrtServer, Server, scheduling, stock_and_ours

CALLS = 3
TOKENS = 8
SINGLES = {"calls": 1, "streams": 64}
"""Tokens of a whole answer and of a streamed one, for clients that know nothing of programs."""
_SINGLES_CLIENTS = 16
_CALL_S = 600.0
_WARM_UP_S = 1.0
_PARTS, _OF_ALL_CLIENTS = 6, 3
"""Of a server's time in a repeat, so many are for all clients; one client, calls and streams have
one each.
"""
_BUSY = "429"
_TOTAL = "{total:.0f}"
POLICIES = ("fcfs", DEFAULT)
COLUMNS = (
    Column("calls", "calls", _TOTAL),
    Column("errors", "errors", _TOTAL),
    Column("429", "busy", _TOTAL),
    Column("P50, s", "p50", "{:.3f}"),
    Column("P99, s", "p99", "{:.3f}"),
    Column("P50 / stock", "p50_to_stock"),
    Column("P99 / stock", "p99_to_stock"),
    Column("calls/s / stock", "rate_to_stock"),
)
CPU = (
    Column("calls", "calls", _TOTAL),
    Column("tokens a call", "tokens", WHOLE),
    Column("CPU ms a call", "cpu_ms"),
    Column("CPU us a token", "cpu_us", WHOLE),
    Column("CPU / stock", "cpu_ms_to_stock"),
)
FOOTPRINT = (
    Column("memory, MiB", "memory_mib", WHOLE),
    Column("files", "files", WHOLE),
    Column("threads", "threads", WHOLE),
    Column("live programs", "programs", WHOLE),
)


_pause = asyncio.sleep


@click.command(cls=ManyCommand)
@count_option("--clients", default=256)
@click.option(
    "--minutes",
    type=NumberRange(min=0, min_open=True),
    default=20.0,
    show_default=True,
    metavar="M",
    help="How long both have the load, in all; calls that have begun are waited for.",
)
@count_option("--repeat", default=5)
@max_num_seqs_option(default=16)
@policy_option(f"Policies of agentrt's servers.  [default: {','.join(POLICIES)}]")
@model_option
def serve(**options: Any) -> None:
    """agentrt serve and vLLM's own server, with programs of three calls, in turns.

    The second table is the CPU time of the server's own process, without the engine's; the third
    what agentrt's use after each of their turns: what grows there is a leak. With policy fcfs it
    schedules as vLLM's own does, and what differs is the server.
    """
    policies = tuple(dict.fromkeys(options["policy"] or POLICIES))
    for name in policies:
        scheduling(name)
    seconds = options["minutes"] * 60 / (1 + len(policies)) / options["repeat"]
    bench = ServingBench(options["clients"], seconds, note, policies)

    def print_tables() -> None:
        tables = ((bench.measured, COLUMNS), (bench.cpu, CPU), (bench.footprints, FOOTPRINT))
        show([results.table(columns) for results, columns in tables], None)

    run_shown(_measure(bench, options, policies), print_tables)


async def _measure(bench: ServingBench, options: dict[str, Any], policies: Sequence[str]) -> None:
    engine = EngineOptions(options["model"], options["max_num_seqs"])
    prepare_environment(engine)
    model = options["model"] or default_model(note)
    async with stock_and_ours(engine, model, policies) as servers:
        await bench.run(*servers, options["repeat"])


@dataclass(slots=True)
class Turn:
    """What one server did in one turn: each call's latency (seconds), and how calls ended."""

    latencies: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def figures(self) -> Figures:
        """Calls that were served, that failed, and that were refused for being busy; latencies."""
        return {
            "calls": len(self.latencies),
            "errors": self.statuses.total() - self.statuses["200"] - self.statuses[_BUSY],
            "busy": self.statuses[_BUSY],
            "p50": percentile(self.latencies or [math.nan], 0.5),
            "p99": percentile(self.latencies or [math.nan], 0.99),
            "rate": len(self.latencies) / self.seconds or math.nan,
        }

    async def call(
        self, client: httpx.AsyncClient, chat: list[Any], tokens: int, **more: Any
    ) -> httpx.Response | None:
        """The answer to one request, if it is one; ``more`` is the rest of httpx's request."""
        body = {"model": Server.NAME, "messages": chat, "max_tokens": tokens}
        body |= {"temperature": 0, "ignore_eos": True, **more.pop("json", {})}
        began = time.perf_counter()
        try:
            answer = await client.post("chat/completions", json=body, **more)
        except httpx.TransportError as error:
            self.statuses[type(error).__name__] += 1
            return None
        self.statuses[str(answer.status_code)] += 1
        if answer.status_code != httpx.codes.OK:
            await _pause(float(answer.headers.get("retry-after", 1)))
            return None
        self.latencies.append(time.perf_counter() - began)
        return answer


class ServingBench:
    """Puts ``clients`` programs at a time on each server, and other loads. In each repeat a server
    has all of them for ``seconds``.
    """

    def __init__(
        self,
        clients: int,
        seconds: float,
        progress: Progress,
        policies: Sequence[str] = POLICIES,
    ) -> None:
        self._clients, self._seconds, self._progress = clients, seconds, progress
        self.servers = (STOCK, *policies)
        self.measured = Results({"server": "server", "clients": "clients"})
        self.cpu = Results({"server": "server", "asked": "asked for"})
        self.footprints = Results({"server": "server", "turn": "after turn"})
        self.measured.expect((name, load) for load in (1, clients) for name in self.servers)
        self.cpu.expect((name, load) for name in self.servers for load in SINGLES)
        self._numbers = count(1)
        self._tls = httpx.create_ssl_context()  # made once: it takes milliseconds

    async def run(self, stock: Server, ours: Mapping[str, AgentrtServer], repeats: int) -> None:
        """Let the servers take turns."""
        self._progress("warming up")
        servers: dict[str, Server] = {STOCK: stock, **ours}
        for clients in (1, self._clients):
            for server in servers.values():
                await self.turn(server.base_url, clients, _WARM_UP_S)
        await self._look(ours, 0)
        for repeat in range(repeats):
            found = {}
            for name in turns(self.servers, repeat):
                what = f"repeat {repeat + 1} of {repeats}: {name}"
                found[name] = await self.once(servers[name], what)
            self.keep(found)
            await self._look(ours, repeat + 1)

    async def once(self, server: Server, what: str) -> dict[int | str, Figures]:
        """What each load comes to on a server, by its clients or by what is asked for."""
        found: dict[int | str, Figures] = {}
        part = self._seconds / _PARTS
        for clients in dict.fromkeys((1, self._clients)):
            seconds = part if clients == 1 else part * _OF_ALL_CLIENTS
            self._progress(f"{what}, {clients} clients, {seconds:.0f} s")
            found[clients] = (await self.turn(server.base_url, clients, seconds)).figures()
        for asked, tokens in SINGLES.items():
            self._progress(f"{what}, CPU time of {asked}, {part:.0f} s")
            before = server.cpu_s()
            turn = await self.turn(server.base_url, _SINGLES_CLIENTS, part, asked)
            calls = len(turn.latencies)
            each_s = (server.cpu_s() - before) / calls if calls else math.nan
            used = {"cpu_ms": each_s * 1e3, "cpu_us": each_s / tokens * 1e6}
            found[asked] = {"calls": calls, "tokens": tokens, **used}
        return found

    def keep(self, found: Mapping[str, Mapping[int | str, Figures]]) -> None:
        """Keep what a repeat came to, by server and load; ratios are to stock's."""
        for name, loads in found.items():
            for load, mine in loads.items():
                results, names = self.measured, ["p50", "p99", "rate"]
                if load in SINGLES:
                    results, names = self.cpu, ["cpu_ms"]
                to_stock = ratios(mine, found[STOCK][load], names, "_to_stock")
                results.add(name, load, figures={**mine, **to_stock})

    async def _look(self, servers: Mapping[str, AgentrtServer], turn: int) -> None:
        """Keep what agentrt's processes use now."""
        for name, server in servers.items():
            async with httpx.AsyncClient(timeout=_CALL_S) as client:
                listed = (await client.get(f"{server.base_url}/sessions")).json()
            figures = {**server.footprint(), "programs": len(listed["data"])}
            self.footprints.add(name, turn, figures=figures)

    async def turn(self, url: str, clients: int, seconds: float, asked: str = "programs") -> Turn:
        """Load one server for so long: with programs, or with one of `SINGLES`."""
        turn, began = Turn(), time.perf_counter()

        async def one() -> None:
            # A pool of its own for each: one of hundreds of connections costs more than the call.
            async with httpx.AsyncClient(base_url=url, verify=self._tls, timeout=_CALL_S) as client:
                while time.perf_counter() < began + seconds:
                    name = f"bench-{next(self._numbers)}"
                    if asked in SINGLES:
                        how = {"json": {"stream": asked == "streams"}}
                        await turn.call(client, [user(name)], SINGLES[asked], **how)
                    else:
                        await run_program(client, name, began + seconds, turn)
                        await client.delete(f"sessions/{name}")  # stock does not know of any

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(one())
        turn.seconds = time.perf_counter() - began
        return turn


async def run_program(client: httpx.AsyncClient, name: str, until: float, turn: Turn) -> None:
    """A program's calls, but none that would begin after the turn's end."""
    chat = [user(name)]
    for step in range(CALLS):
        if time.perf_counter() > until:
            return
        answer = await turn.call(client, chat, TOKENS, headers={"x-session-id": name})
        if answer is None:
            return
        said = answer.json()["choices"][0]["message"]["content"]
        chat += [{"role": "assistant", "content": said}]
        chat += [{"role": "user", "content": f"Go on, {step}."}]


def user(name: str) -> dict[str, str]:
    """The first message of a program of that name."""
    return {"role": "user", "content": f"Program {name}: tell me of rivers."}
