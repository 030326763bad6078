"""The tools of the corpus' scenarios: the official client, and a recorder behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
from langgraph_sdk import get_client

from tests.serving.langgraph.corpus.recorder import Answer, Recorder

IN: dict[str, Any] = {"steps": ["in"]}
"""What most graphs of the corpus take."""
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi", "id": "u1"}]}
NOBODY = "00000000-0000-4000-8000-000000000000"
"""The id of nothing."""

Scenario = Callable[["Asking"], Awaitable[None]]


class Asking:
    """A client of one server, and what it has asked."""

    def __init__(self, url: str, key: str | None = None) -> None:
        client = get_client(url=url, api_key=key, timeout=60)
        # Of any type: what is asked includes what the client's own types would not let through.
        self.http: Any = client.http
        self.assistants: Any = client.assistants
        self.threads: Any = client.threads
        self.runs: Any = client.runs
        self.store: Any = client.store
        self.crons: Any = client.crons
        # A server that failed closes the connection: each request has one of its own.
        unshared = httpx.Limits(max_keepalive_connections=0)
        self._recorder = Recorder(httpx.AsyncHTTPTransport(verify=False, limits=unshared))
        client.http.client._transport = self._recorder

    async def play(self, scenario: Scenario) -> list[Answer]:
        """Return the requests of a scenario, and the shapes of their answers."""
        await scenario(self)
        return self._recorder.answers()

    async def close(self) -> None:
        """Close its connections."""
        await self.http.client.aclose()

    async def thread(self, **options: Any) -> str:
        """The id of a new thread."""
        made = await self.threads.create(**options)
        return str(made["thread_id"])

    async def refused(self, *asked: Awaitable[Any]) -> None:
        """Ask for what a server may refuse; what it says is in the record."""
        for one in asked:
            try:
                await one
            except httpx.HTTPError:
                continue

    async def first(self, parts: AsyncIterator[Any], event: str, count: int = 1) -> None:
        """Follow a stream up to an event, and leave it there."""
        exchange, read = None, 0
        async for part in parts:
            exchange = exchange or self._recorder.exchanges[-1]
            read += 1
            count -= part.event == event
            if not count:
                break
        assert exchange is not None
        exchange.most = read


async def all_of(parts: AsyncIterator[Any]) -> list[str]:
    """The names of a stream's events, to its end."""
    return [part.event async for part in parts]
