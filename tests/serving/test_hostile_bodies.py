"""Bodies made to keep the server busy: each is refused, or read, in a blink.

The servers' `Watchdog` fails a request that holds the event loop.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest
from starlette.types import Message

from agentrt.serving.langgraph.responses import BadJSONError, check_json
from agentrt.serving.middleware import MOST_VALUES
from tests.serving.langgraph.graphs import poem
from tests.serving.langgraph.serve import serving
from tests.serving.watchdog import LIMIT_S, Watchdog

KEY = "k" * 2_100_000
MANY = MOST_VALUES - 8


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> object:
    with serving({"poem": poem}, tmp_path_factory.mktemp("hostile") / "agentrt.db") as it:
        yield it.url


def search(metadata: str) -> bytes:
    return f'{{"metadata": {metadata}}}'.encode()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (search(f'{{"{KEY}": [{",".join("1" * MANY)}]}}'), 422),
        (search(f'{{"{KEY}": [{",".join(["[]"] * (MANY // 2))}]}}'), 422),
        (search(f'{{"a": [{",".join("1" * MOST_VALUES)}]}}'), 413),
        (search("[" * 100_000 + "]" * 100_000), 422),
    ],
    ids=["long key, many elements", "long key, many lists", "too many values", "deep"],
)
def test_a_hostile_filter_is_refused_at_once(url: str, body: bytes, status: int) -> None:
    kind = {"content-type": "application/json"}
    answer = httpx.post(f"{url}/threads/search", content=body, headers=kind, timeout=30)
    assert answer.status_code == status, answer.text[:200]
    assert len(answer.content) < 1000


def test_only_the_value_at_fault_is_named() -> None:
    with pytest.raises(BadJSONError) as caught:
        check_json({KEY: [[1], [float("inf")]]})
    assert str(caught.value) == f"body.{KEY[:64]}[1][0] is inf, which is no JSON"


async def test_the_watchdog_barks() -> None:
    """A request that works for twice the limit is told of; one that waits is not."""

    async def app(scope: Any, receive: object, send: object) -> None:
        await asyncio.sleep(0)
        began = time.thread_time()
        while scope["path"] == "/x" and time.thread_time() - began < 2 * LIMIT_S:
            pass

    async def receive() -> Message:
        raise NotImplementedError

    async def send(message: Message) -> None: ...

    watchdog = Watchdog(app)
    await watchdog({"type": "http", "method": "GET", "path": "/y"}, receive, send)
    watchdog.check()
    await watchdog({"type": "http", "method": "GET", "path": "/x"}, receive, send)
    with pytest.raises(AssertionError, match="GET /x held the event loop"):
        watchdog.check()
