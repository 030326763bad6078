"""``benchmarks langgraph-runs``: many runs on many threads, and searches of many threads.

LangGraph's own server is not a dependency of this project. Start LangGraph's server first, in an
environment of its own: ``langgraph dev --config benchmarks/langgraph_runs/langgraph.json``.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import httpx
import psutil
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from agentrt.errors import ConfigError
from agentrt.lab.commands.options import (
    count_option,
    note,
    silence_vllm,
)
from agentrt.lab.runs.grid import turns
from benchmarks.harness import Column, Figures, Results, ratios, run_with_table
from benchmarks.options import (
    json_option,
    model_option,
    repeat_option,
)
from benchmarks.servers import AgentrtServer, engine_and_model

GRAPH = "steps"
_CONFIG = Path(__file__).with_name("langgraph.json")
_AT_ONCE, _TIMEOUT_S, _POLL_S = 50, 300.0, 0.1
_TEXT = "x" * 1500
"""The text in the values of each thread that is searched, in addition to the thread's number."""
SEARCHES: dict[str, dict[str, Any]] = {
    "by values": {"values": {"steps": ["s17"]}, "limit": 10},
    "by metadata": {"metadata": {"number": 17}},
    "ids alone": {"select": ["thread_id"], "limit": 1000},
    "all": {"limit": 1000},
}
COLUMNS = (
    Column("ms", "ms"),
    Column("time / LangGraph's", "elapsed_ratio"),
    Column("processor time / LangGraph's", "cpu_ratio"),
)
OURS, THEIRS = "agentrt", "LangGraph"


@click.command()
@click.option(
    "--reference",
    required=True,
    metavar="URL",
    help="URL of LangGraph's own server on this machine, which serves the same graph: "
    "langgraph dev --config benchmarks/langgraph_runs/langgraph.json",
)
@count_option("--runs", about=f"Number of runs, created {_AT_ONCE} at a time.", default=400)
@count_option("--threads", about="Number of threads to which these runs belong.", default=200)
@count_option("--stored", about="Number of threads that are searched.", default=3000)
@repeat_option(5, "Number of turns of each server.")
@model_option
@json_option
def langgraph_runs(**options: Any) -> None:
    """Compare runs and searches of LangGraph's API with LangGraph's own in-memory server.

    The graph has one node, which does not call a model. Both servers do the same work in turns:
    create threads and runs on them, wait until all runs have ended, and search stored threads.
    """
    measured = Results({"operation": "operation", "server": "server"})
    silence_vllm()
    run_with_table(_measure(measured, options), measured, COLUMNS, as_json=options["as_json"])


class Served:
    """A server of LangGraph's API at ``url``, with its process ``pid``."""

    def __init__(self, url: str, pid: int, client: LangGraphClient, web: httpx.AsyncClient) -> None:
        self.url, self._process = url, psutil.Process(pid)
        self.client, self._web = client, web

    async def store(self, threads: int) -> None:
        """Store threads that are searched later."""

        async def create(number: int) -> None:
            values = {"steps": [f"s{number}", _TEXT]}
            await self.client.threads.create(
                metadata={"number": number},
                supersteps=[{"updates": [{"values": values, "as_node": "one"}]}],
                graph_id=GRAPH,
            )

        await _together(create(number) for number in range(threads))

    async def created_and_ended(self, threads: int, runs: int) -> dict[str, Figures]:
        """Create threads and runs on them, and wait until all runs have ended. Return the figures
        of creating the runs, and of creating them and waiting until they have ended.
        """
        ids = [
            thread["thread_id"]
            for thread in await _together(self.client.threads.create() for _ in range(threads))
        ]

        async def create() -> None:
            await _together(self._create_run(ids[number % threads]) for number in range(runs))

        async def wait() -> None:
            while await self.client.threads.count(status="busy"):  # noqa: ASYNC110  # polls a server
                await asyncio.sleep(_POLL_S)

        created, waited = await self._timed(create), await self._timed(wait)
        return {
            f"{runs} runs created": created,
            f"{runs} runs created and ended": {
                name: created[name] + waited[name] for name in created
            },
        }

    async def _create_run(self, thread: str) -> None:
        steps: dict[str, Any] = {"steps": ["in"]}
        await self.client.runs.create(thread, GRAPH, input=steps, multitask_strategy="enqueue")

    async def search(self, body: dict[str, Any], times: int = 20) -> Figures:
        """Make ``times`` searches on a connection that stays open. Return the median time of a
        search in milliseconds (``ms``), and the elapsed time and the CPU time of all searches.
        """
        each_ms = []

        async def searches() -> None:
            for _ in range(times):
                began = time.perf_counter()
                answer = await self._web.post("/threads/search", json=body)
                answer.raise_for_status()
                each_ms.append((time.perf_counter() - began) * 1e3)

        figures = await self._timed(searches)
        return {**figures, "ms": statistics.median(each_ms)}

    async def _timed(self, work: Callable[[], Awaitable[object]]) -> Figures:
        began, cpu_s = time.perf_counter(), self._cpu_s()
        await work()
        elapsed_ms = (time.perf_counter() - began) * 1e3
        return {"ms": elapsed_ms, "elapsed": elapsed_ms, "cpu": self._cpu_s() - cpu_s}

    def _cpu_s(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system


async def _together(work: Any) -> list[Any]:
    """Return the results of awaitables. Only a limited number of them is in flight at a time."""
    free = asyncio.Semaphore(_AT_ONCE)

    async def do(awaitable: Awaitable[Any]) -> Any:
        async with free:
            return await awaitable

    return await asyncio.gather(*(do(awaitable) for awaitable in work))


async def _measure(measured: Results, options: dict[str, Any]) -> None:
    reference = options["reference"].rstrip("/")
    pid = _pid_of(reference)
    async with AgentrtServer(*engine_and_model(options), own=[str(_CONFIG)]) as server:
        note("starting agentrt serve")
        await server.start()
        assert server.process is not None
        async with opened(server.root, server.process.pid) as own, opened(reference, pid) as other:
            sides = {OURS: own, THEIRS: other}
            for name, side in sides.items():
                note(f"{name}: storing {options['stored']} threads")
                await side.store(options["stored"])
            await _in_turns(measured, sides, options)


async def _in_turns(measured: Results, sides: dict[str, Served], options: dict[str, Any]) -> None:
    for repeat in range(options["repeat"]):
        figures: dict[str, dict[str, Figures]] = {}
        for name in turns([*sides], repeat):
            note(f"repeat {repeat + 1} of {options['repeat']}: {name}")
            side = sides[name]
            figures[name] = await side.created_and_ended(options["threads"], options["runs"])
            for kind, body in SEARCHES.items():
                figures[name][f"search: {kind}"] = await side.search(body)
        for operation, theirs in figures[THEIRS].items():
            for server, by_operation in figures.items():
                over = ratios(by_operation[operation], theirs, ["elapsed", "cpu"], "_ratio")
                measured.add(operation, server, figures={**by_operation[operation], **over})


@asynccontextmanager
async def opened(url: str, pid: int) -> AsyncIterator[Served]:
    """Open clients of the server at ``url``, whose process is ``pid``."""
    async with (
        get_client(url=url, timeout=_TIMEOUT_S) as client,
        httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S) as web,
    ):
        yield Served(url, pid, client, web)


def _pid_of(url: str) -> int:
    """Return the id of the process that listens at a URL. Raises `ConfigError` if there is none on
    this machine.
    """
    port = urlsplit(url).port
    for connection in psutil.net_connections("tcp"):
        listens = connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
        if listens and connection.pid:
            return connection.pid
    raise ConfigError(
        f"--reference {url}: nothing listens there; start LangGraph's own server first: "
        f"langgraph dev --no-browser --no-reload --port {port or 2024} --config {_CONFIG}"
    )
