"""Requests that wait for the start of the engine: large bodies, and too many of them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from agentrt.serving.listen import Listener, StartingApp
from agentrt.serving.server import Bounds

REQUEST_S = 0.05


async def counts(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the size of the request's body."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message["body"]), message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % size})


@pytest.mark.parametrize("size", [10, 1_000_000])
async def test_a_body_may_arrive_while_the_engine_starts(size: int) -> None:
    """The engine takes longer to start than a body may take to arrive."""
    listener, starting = Listener("127.0.0.1", 0), StartingApp()
    async with (
        listener.serving(starting, Bounds(request_s=REQUEST_S)),
        httpx.AsyncClient(base_url=listener.url, timeout=60) as client,
    ):
        early = asyncio.create_task(client.post("/v1/responses", content=b"x" * size))
        await asyncio.wait([early], timeout=4 * REQUEST_S)
        assert not early.done()
        starting.open(counts)
        assert (await early).text == str(size)


async def test_of_too_many_requests_the_last_are_refused_at_once() -> None:
    listener, starting = Listener("127.0.0.1", 0), StartingApp()
    limits = httpx.Limits(max_connections=None)
    async with (
        listener.serving(starting, Bounds(connections=4)),
        httpx.AsyncClient(base_url=listener.url, timeout=60, limits=limits) as client,
    ):
        asked = [asyncio.create_task(client.post("/v1/responses", content=b"x")) for _ in range(9)]
        refused, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        answer = refused.pop().result()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert "too many requests wait" in answer.json()["error"]["message"]
        starting.open(counts)
        assert {each.status_code for each in await asyncio.gather(*asked)} == {200, 503}


async def test_a_request_that_waits_is_told_that_the_server_stops() -> None:
    listener, starting = Listener("127.0.0.1", 0), StartingApp()
    async with (
        listener.serving(starting, Bounds()),
        httpx.AsyncClient(base_url=listener.url, timeout=60) as client,
    ):
        waiting = asyncio.create_task(client.post("/v1/responses", content=b"x"))
        assert (await client.get("/health")).status_code == 503
        starting.close()
        answer = await waiting
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopping")
