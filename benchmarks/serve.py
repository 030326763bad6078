"""``benchmarks serve``: `agentrt serve` under load, compared with vLLM's own server.

All servers run in processes of their own, with the same engine options. The servers take turns:
this process puts load on only one server at a time. Clients run programs of a few calls without
pauses. Each call after the first sends the chat of the call before it, the answer to that call, and
a new message. To measure the CPU time of a server's own process, clients make single calls, whole
or streamed, and do not name programs.
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

from agentrt.executors.base import Progress
from agentrt.lab.commands.options import (
    ManyCommand,
    count_option,
    max_num_seqs_option,
    note,
    policy_option,
)
from agentrt.lab.runs.contenders import DEFAULT, STOCK
from agentrt.lab.runs.grid import turns
from benchmarks.harness import WHOLE, Column, Figures, Results, percentile, ratios, run_shown, show
from benchmarks.options import (
    minutes_option,
    model_option,
    repeat_option,
)
from benchmarks.servers import AgentrtServer, Server, all_started, engine_and_model, scheduling

CALLS = 3
TOKENS = 8
SINGLES = {"calls": 1, "streams": 64}
"""The numbers of tokens of a whole answer and of a streamed answer, for clients that do not name
programs.
"""
_SINGLES_CLIENTS = 16
_CALL_S = 600.0
_WARM_UP_S = 1.0
_PARTS, _OF_ALL_CLIENTS = 6, 3
"""In each repeat, the time of a server is divided into `_PARTS` parts. The load of all clients gets
`_OF_ALL_CLIENTS` of these parts. The loads of one client, of whole calls and of streams get one
part each.
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
@count_option("--clients", "Number of clients at a time.", default=256)
@minutes_option(
    20.0,
    "Minutes of load for all servers together. In addition, each turn waits for the calls "
    "that have begun.",
)
@repeat_option(5, "Number of turns of each server.")
@max_num_seqs_option(default=16)
@policy_option(f"Policies of agentrt's servers.  [default: {','.join(POLICIES)}]")
@model_option
def serve(**options: Any) -> None:
    """Compare agentrt serve with vLLM's own server, under programs of three calls, in turns.

    The second table shows the CPU time of the server's own process, without the CPU time of its
    engine. The third table shows the resources of agentrt's servers after the warm-up (turn 0) and
    after each turn; if a resource grows with every turn, the server may leak it. With the policy
    fcfs, agentrt schedules as vLLM does, and only the servers differ.
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
    async with all_started((STOCK, *policies), *engine_and_model(options)) as servers:
        await bench.run(servers, options["repeat"])


@dataclass(slots=True)
class Turn:
    """The calls of one turn on a server: the ``latencies`` of the served calls in seconds, and the
    ``statuses`` of all calls. The turn took ``seconds``.
    """

    latencies: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def figures(self) -> Figures:
        """Return the numbers of served, failed and refused calls, the P50 and the P99 of the
        latencies, and the rate in served calls per second.
        """
        return {
            "calls": len(self.latencies),
            "errors": self.statuses.total() - self.statuses["200"] - self.statuses[_BUSY],
            "busy": self.statuses[_BUSY],
            "p50": percentile(self.latencies or [math.nan], 0.5),
            "p99": percentile(self.latencies or [math.nan], 0.99),
            "rate": len(self.latencies) / self.seconds or math.nan,
        }

    async def call(
        self,
        client: httpx.AsyncClient,
        chat: list[Any],
        tokens: int,
        *,
        stream: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response | None:
        """Make a call, and return the answer; None if the call failed. If the server refuses the
        call, first wait for the time that the answer states.
        """
        body = {"model": Server.NAME, "messages": chat, "max_tokens": tokens, "stream": stream}
        body |= {"temperature": 0, "ignore_eos": True}
        began = time.perf_counter()
        try:
            answer = await client.post("chat/completions", json=body, headers=headers)
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
    """The loads of each server: ``clients`` programs at a time, one program, and single calls. In
    each repeat, the loads of a server take ``seconds`` in total.
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
        self.cpu = Results({"server": "server", "kind": "kind of call"})
        self.footprints = Results({"server": "server", "turn": "after turn"})
        self.measured.expect((name, load) for load in (1, clients) for name in self.servers)
        self.cpu.expect((name, load) for name in self.servers for load in SINGLES)
        self._numbers = count(1)
        self._tls = httpx.create_ssl_context()  # made only once, because this takes milliseconds

    async def run(self, servers: Mapping[str, Server], repeats: int) -> None:
        """Put load on the servers in turns, and record the figures of all turns."""
        self._progress("warming up")
        for clients in (1, self._clients):
            for server in servers.values():
                await self.turn(server.base_url, clients, _WARM_UP_S)
        await self._look(servers, 0)
        for repeat in range(repeats):
            figures = {}
            for name in turns(self.servers, repeat):
                message = f"repeat {repeat + 1} of {repeats}: {name}"
                figures[name] = await self.once(servers[name], message)
            self.keep(figures)
            await self._look(servers, repeat + 1)

    async def once(self, server: Server, message: str) -> dict[int | str, Figures]:
        """Put each load on a server once. Return the figures of each load, by the number of
        clients, or by the kind of single calls.
        """
        figures: dict[int | str, Figures] = {}
        part = self._seconds / _PARTS
        for clients in dict.fromkeys((1, self._clients)):
            seconds = part if clients == 1 else part * _OF_ALL_CLIENTS
            self._progress(f"{message}, {clients} clients, {seconds:.0f} s")
            figures[clients] = (await self.turn(server.base_url, clients, seconds)).figures()
        for kind, tokens in SINGLES.items():
            self._progress(f"{message}, CPU time of {kind}, {part:.0f} s")
            before = server.cpu_s()
            turn = await self.turn(server.base_url, _SINGLES_CLIENTS, part, kind)
            calls = len(turn.latencies)
            each_s = (server.cpu_s() - before) / calls if calls else math.nan
            used = {"cpu_ms": each_s * 1e3, "cpu_us": each_s / tokens * 1e6}
            figures[kind] = {"calls": calls, "tokens": tokens, **used}
        return figures

    def keep(self, figures: Mapping[str, Mapping[int | str, Figures]]) -> None:
        """Record the figures of a repeat by server and load, with their ratios to stock's
        figures.
        """
        for name, loads in figures.items():
            for load, mine in loads.items():
                results, names = self.measured, ["p50", "p99", "rate"]
                if load in SINGLES:
                    results, names = self.cpu, ["cpu_ms"]
                to_stock = ratios(mine, figures[STOCK][load], names, "_to_stock")
                results.add(name, load, figures={**mine, **to_stock})

    async def _look(self, servers: Mapping[str, Server], turn: int) -> None:
        """Record the resources that the processes of agentrt's servers use now."""
        for name, server in servers.items():
            if not isinstance(server, AgentrtServer):
                continue
            async with httpx.AsyncClient(timeout=_CALL_S) as client:
                listed = (await client.get(f"{server.base_url}/client-runs")).json()
            figures = {**server.footprint(), "programs": len(listed["data"])}
            self.footprints.add(name, turn, figures=figures)

    async def turn(self, url: str, clients: int, seconds: float, kind: str = "programs") -> Turn:
        """Put load on a server for ``seconds``: programs, or one kind of `SINGLES`.

        Each client makes at least one call, however long its connection takes to set up.
        """
        turn, began = Turn(), time.perf_counter()

        async def client_calls() -> None:
            # Each client has its own pool, because httpx looks at all connections of a pool at each
            # request. With hundreds of connections, this costs too much CPU time.
            async with httpx.AsyncClient(base_url=url, verify=self._tls, timeout=_CALL_S) as client:
                while True:
                    name = f"bench-{next(self._numbers)}"
                    if kind in SINGLES:
                        await turn.call(
                            client, [user(name)], SINGLES[kind], stream=kind == "streams"
                        )
                    else:
                        await run_program(client, name, began + seconds, turn)
                        # Ends the program. vLLM's server does not have this route, and answers 404.
                        await client.delete(f"client-runs/{name}")
                    if time.perf_counter() >= began + seconds:
                        return

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client_calls())
        turn.seconds = time.perf_counter() - began
        return turn


async def run_program(client: httpx.AsyncClient, name: str, until: float, turn: Turn) -> None:
    """Make the calls of a program. Begin the first call in any case, and no further call after the
    end of the turn.
    """
    chat = [user(name)]
    for step in range(CALLS):
        if step and time.perf_counter() > until:
            return
        answer = await turn.call(client, chat, TOKENS, headers={"x-session-id": name})
        if answer is None:
            return
        text = answer.json()["choices"][0]["message"]["content"]
        chat += [{"role": "assistant", "content": text}]
        chat += [{"role": "user", "content": f"Go on, {step}."}]


def user(name: str) -> dict[str, str]:
    """Return the first message of a program."""
    return {"role": "user", "content": f"Program {name}: tell me of rivers."}
