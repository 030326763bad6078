"""`agentrt serve` under load, beside vLLM's own server: what it adds to a call, what it leaves.

Both servers run, in processes of their own, with the same engine options; the load comes from
this process, and one of them has it at a time, in turns. Clients are programs of a few calls,
each the last one's chat and more, one after the other, without a pause.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx

from agentrt.errors import EngineStartError
from agentrt.executors.vllm.options import EngineOptions
from agentrt.lab.bench.stock import StockServer, stock_flags
from agentrt.lab.reports.tables import Spread, markdown, percentile

CALLS = 3
TOKENS = 8
_START_S, _STOP_S, _CALL_S = 300.0, 40.0, 600.0
_ALONE_S = 20.0
"""A turn with one client takes no longer: its calls are short, and so there are many."""
_BUSY_STATUS = 429
_SAYS = " (OpenAI API: "


@dataclass(slots=True)
class Turn:
    """What one server did in one turn: each call's latency (seconds), and how calls ended."""

    latencies: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def errors(self) -> int:
        """Calls that failed, refusals for being busy left out."""
        fine = ("200", str(_BUSY_STATUS))
        return sum(number for status, number in self.statuses.items() if status not in fine)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a server's own process holds: memory (MiB), open files, threads, live programs."""

    memory_mib: float
    files: int
    threads: int
    programs: int


class ServeProcess:
    """`agentrt serve` in a process of its own. An async context manager."""

    NAME = StockServer.NAME

    def __init__(self, options: EngineOptions, model: str) -> None:
        flags = stock_flags(options, model)
        policy = ("--policy", options.scheduler.policy)
        self._folder = tempfile.TemporaryDirectory(prefix="agentrt-bench-")
        at = ("--port", "0", "--database", f"sqlite:{self._folder.name}/bench.db")
        named = ("--model", model, "--served-model-name", self.NAME, "--max-calls", "4096")
        here = (sys.executable, "-m", "agentrt.cli", "serve")
        self._command = (*here, *named, *at, *policy, "--", *flags)
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self.base_url = ""

    async def start(self) -> None:
        """Start it, and wait until it serves. Raises `EngineStartError` if it ends."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stderr=asyncio.subprocess.PIPE
        )
        said = self._process.stderr
        assert said is not None
        async with asyncio.timeout(_START_S):
            while _SAYS not in (line := (await said.readline()).decode()):
                if not line:
                    raise EngineStartError("agentrt serve ended before it served")
        self.base_url = line.split(_SAYS)[1].split(")")[0]
        self._reader = asyncio.create_task(_drop(said))

    async def footprint(self, client: httpx.AsyncClient) -> Footprint:
        """What its process holds now."""
        assert self._process is not None
        folder = Path(f"/proc/{self._process.pid}")
        listed = (await client.get(f"{self.base_url}/sessions")).json()
        return Footprint(*_of_process(folder), programs=len(listed["data"]))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _STOP_S)
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._reader is not None:
            self._reader.cancel()
        self._folder.cleanup()


def _of_process(folder: Path) -> tuple[float, int, int]:
    status = dict(
        line.split(":", 1) for line in (folder / "status").read_text("utf-8").splitlines()
    )
    memory = int(status["VmRSS"].split()[0]) / 1024
    return memory, len(list((folder / "fd").iterdir())), int(status["Threads"])


async def _drop(stream: asyncio.StreamReader) -> None:
    while await stream.readline():
        pass


class ServingBench:
    """Puts ``clients`` programs at a time on each server, in turns of ``seconds``."""

    def __init__(self, clients: int, seconds: float, tell: Callable[[str], None]) -> None:
        self._clients, self._seconds, self._tell = clients, seconds, tell
        self.turns: dict[tuple[str, int], list[Turn]] = {}
        self.footprints: list[Footprint] = []
        self._programs = 0
        self._tls = httpx.create_ssl_context()  # made once: it takes milliseconds

    async def run(
        self,
        options: EngineOptions,
        model: str,
        quiet: Callable[[], AbstractContextManager[None]],
        repeats: int,
    ) -> None:
        """Start both servers, let them take turns, and stop them."""
        stock = StockServer(options, model)
        self._tell("starting agentrt serve")
        async with (
            ServeProcess(options, model) as ours,
            stock,
            httpx.AsyncClient(timeout=_CALL_S) as client,
        ):
            self._tell("starting vLLM's own server")
            await stock.start(quiet)
            sides = [("stock", stock.base_url), ("agentrt", ours.base_url)]
            for clients, seconds in ((1, 5.0), (self._clients, 5.0)):
                for _, url in sides:
                    await self._turn(url, clients, seconds)
            self.footprints.append(await ours.footprint(client))
            for repeat in range(repeats):
                for name, url in sides if repeat % 2 else reversed(sides):
                    for clients in (1, self._clients):
                        self._tell(f"repeat {repeat + 1} of {repeats}: {name}, {clients} clients")
                        seconds = self._seconds if clients > 1 else min(_ALONE_S, self._seconds)
                        turn = await self._turn(url, clients, seconds)
                        self.turns.setdefault((name, clients), []).append(turn)
                    if name == "agentrt":
                        self.footprints.append(await ours.footprint(client))

    async def _turn(self, url: str, clients: int, seconds: float) -> Turn:
        turn, began = Turn(), time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(self._client(url, began + seconds, turn))
        turn.seconds = time.perf_counter() - began
        return turn

    async def _client(self, url: str, until: float, turn: Turn) -> None:
        # A pool of its own for each: one of hundreds of connections costs more than the call.
        async with httpx.AsyncClient(verify=self._tls, timeout=_CALL_S) as client:
            while time.perf_counter() < until:
                self._programs += 1
                name = f"bench-{self._programs}"
                await self._program(client, url, name, until, turn)
                await client.delete(f"{url}/sessions/{name}")  # stock does not know of any

    async def _program(
        self, client: httpx.AsyncClient, url: str, name: str, until: float, turn: Turn
    ) -> None:
        """Its calls, but none that would begin after the turn's end."""
        chat: list[Any] = [{"role": "user", "content": f"Program {name}: tell me of rivers."}]
        for step in range(CALLS):
            if time.perf_counter() > until:
                return
            body = {
                "model": StockServer.NAME,
                "messages": chat,
                "max_tokens": TOKENS,
                "temperature": 0,
                "ignore_eos": True,
            }
            began = time.perf_counter()
            try:
                answer = await client.post(
                    f"{url}/chat/completions", json=body, headers={"x-session-id": name}
                )
            except httpx.TransportError as error:
                turn.statuses[type(error).__name__] += 1
                return
            turn.statuses[str(answer.status_code)] += 1
            if answer.status_code != httpx.codes.OK:
                await self._rest(float(answer.headers.get("retry-after", 1)))
                return
            turn.latencies.append(time.perf_counter() - began)
            said = answer.json()["choices"][0]["message"]["content"]
            chat += [{"role": "assistant", "content": said}]
            chat += [{"role": "user", "content": f"Go on, {step}."}]

    @staticmethod
    async def _rest(seconds: float) -> None:
        """Wait as long as the server asks for."""
        await asyncio.sleep(seconds)

    # -- tables ------------------------------------------------------------------------

    def table(self) -> str:
        """A row per server and number of clients; ratios are to stock in the same repeat."""
        head = (
            *("server", "clients", "calls", "errors", "429"),
            *("P50, s", "P99, s", "P50 / stock", "P99 / stock", "calls/s / stock"),
        )
        return markdown(head, [self._row(*key) for key in sorted(self.turns, key=_order)])

    def _row(self, name: str, clients: int) -> Sequence[object]:
        turns, stock = self.turns[name, clients], self.turns["stock", clients]
        p50 = [percentile(turn.latencies, 0.5) for turn in turns]
        p99 = [percentile(turn.latencies, 0.99) for turn in turns]
        rates = [len(turn.latencies) / turn.seconds for turn in turns]
        ratios = [
            Spread.of([mine / other for mine, other in zip(own, base, strict=True)])
            for own, base in (
                (p50, [percentile(turn.latencies, 0.5) for turn in stock]),
                (p99, [percentile(turn.latencies, 0.99) for turn in stock]),
                (rates, [len(turn.latencies) / turn.seconds for turn in stock]),
            )
        ]
        busy = sum(turn.statuses[str(_BUSY_STATUS)] for turn in turns)
        calls, errors = sum(len(turn.latencies) for turn in turns), sum(t.errors for t in turns)
        times = (f"{Spread.of(p50).median:.3f}", f"{Spread.of(p99).median:.3f}")
        return (name, clients, calls, errors, busy, *times, *ratios)

    def leaks(self) -> str:
        """A row per look at agentrt's process: after the warm-up, and after each of its turns."""
        rows = [
            (index, f"{one.memory_mib:.0f}", one.files, one.threads, one.programs)
            for index, one in enumerate(self.footprints)
        ]
        return markdown(("after turn", "memory, MiB", "files", "threads", "live programs"), rows)


def _order(key: tuple[str, int]) -> tuple[int, str]:
    return key[1], "" if key[0] == "stock" else key[0]
