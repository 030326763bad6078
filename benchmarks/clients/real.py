"""Clients that hold one conversation after the other, over HTTP. Each run starts new servers. Their
clients take turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count
from typing import Any, Self

import httpx

from agentrt.engines import EngineOptions
from agentrt.executors.base import Progress
from agentrt.lab.runs.grid import turns
from benchmarks.clients.load import CALLS, QUARTER_S, Conversation, Counted
from benchmarks.servers import Server, started

CONVERSATIONS = {"short": Conversation(20, 4, 4), "long": Conversation(600, 4, 20)}
"""Approximate numbers of tokens: each word of the first prompt counts as four tokens."""
_CALL_S = 600.0


async def run(
    counted: dict[str, Counted],
    names: Sequence[str],
    conversation: str,
    clients: int,
    minutes: float,
    engine: EngineOptions,
    model: str,
    progress: Progress,
) -> None:
    """Count the calls that ``clients`` clients make on new servers of the named contenders
    (`contender`).

    All servers run from the start, and their clients make calls in turns of a quarter of a minute,
    so that other work on the machine slows all servers equally. Between its turns, a server has no
    calls. If the run is cancelled, ``counted`` keeps the quarters that all servers have had.
    """
    for name in names:
        counted[name] = Counted(minutes)
        quarters = len(counted[name].quarters)
        counted[name].quarters.clear()
    async with AsyncExitStack() as stack:
        groups = {}
        for name in names:
            server = await stack.enter_async_context(started(name, engine, model, flags=()))
            group = Clients(server.base_url, CONVERSATIONS[conversation], clients)
            groups[name] = await stack.enter_async_context(group)
        for quarter in range(quarters):
            rates = {}
            for name in turns(names, quarter):
                calls, seconds = await groups[name].turn(QUARTER_S)
                rates[name] = calls / seconds
                progress(f"quarter {quarter + 1}, {name}: {rates[name]:.1f} calls a second")
            for name, rate in rates.items():
                counted[name].quarters.append(rate * QUARTER_S)
                counted[name].failed = groups[name].failed


class Clients:
    """Clients of the server at ``url``. They begin calls only during a `turn`. An async context
    manager.

    ``failed`` is the number of calls whose status was not 200.
    """

    def __init__(self, url: str, kind: Conversation, number: int) -> None:
        self.failed = 0
        self._url, self._kind, self._number = url, kind, number
        self._conversations = count()
        self._turn, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._under_way = self._ended = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._tls = httpx.create_ssl_context()  # made only once, because this takes milliseconds

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._client()) for _ in range(self._number)]
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def turn(self, seconds: float) -> tuple[int, float]:
        """Let the clients begin calls for ``seconds``, and wait until all calls have ended. Return
        the number of successful calls, and the seconds from the first start to the last end. Raises
        a client's error.
        """
        ended, began = self._ended, time.perf_counter()
        self._turn.set()
        over, _ = await asyncio.wait(
            self._tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION
        )
        for task in over:
            task.result()
        self._turn.clear()
        await self._idle.wait()
        return self._ended - ended, time.perf_counter() - began

    async def _client(self) -> None:
        # Each client has its own pool, because httpx looks at all connections of a pool at each
        # request. With hundreds of connections, this costs too much CPU time.
        async with httpx.AsyncClient(base_url=self._url, verify=self._tls, timeout=_CALL_S) as http:
            while True:
                await self._turn.wait()
                await self._converse(http, next(self._conversations))

    async def _converse(self, http: httpx.AsyncClient, number: int) -> None:
        """Hold a conversation, which may last for several turns."""
        words = " ".join(f"w{number}.{word}" for word in range(self._kind.prompt // 4))
        chat: list[dict[str, Any]] = [{"role": "user", "content": f"Hello {number}: {words}"}]
        for _ in range(CALLS):
            await self._turn.wait()
            answer = await self._call(http, chat)
            if answer.status_code != httpx.codes.OK:
                self.failed += 1
                await asyncio.sleep(float(answer.headers.get("retry-after", 1)))
                return
            text = answer.json()["choices"][0]["message"]["content"]
            message = " ".join(["on"] * self._kind.message)
            chat += [{"role": "assistant", "content": text}, {"role": "user", "content": message}]

    async def _call(self, http: httpx.AsyncClient, chat: list[dict[str, Any]]) -> httpx.Response:
        body = {"model": Server.NAME, "messages": chat, "max_tokens": self._kind.output}
        body |= {"temperature": 0, "ignore_eos": True}
        self._under_way += 1
        self._idle.clear()
        try:
            answer = await http.post("chat/completions", json=body)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()
        self._ended += answer.status_code == httpx.codes.OK
        return answer
