"""Bodies made to keep the server busy: each is refused, or read, in a blink.

The servers' `Watchdog` fails a request that holds the event loop.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from agentrt.serving.bodies import MOST_OBJECTS, MOST_VALUES, JSONCount
from tests.serving.langgraph.graphs import poem
from tests.serving.langgraph.serve import serving
from tests.serving.watchdog import LIMIT_S, Watchdog

KEY = "k" * 2_100_000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> object:
    with serving({"poem": poem}, tmp_path_factory.mktemp("hostile") / "agentrt.db") as it:
        yield it.url


def search(metadata: str) -> bytes:
    return f'{{"metadata": {metadata}}}'.encode()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/threads/search", search(f'{{"{KEY}": 1}}'), 413),
        ("/threads", search(f'{{"a": [{",".join("1" * MOST_VALUES)}]}}'), 413),
        ("/threads", search(f'{{"a": [{",".join(["[]"] * MOST_OBJECTS)}]}}'), 413),
        ("/threads", search("[" * 15_000 + "]" * 15_000), 422),
    ],
    ids=[
        "long filter",
        "many values",
        "many lists",
        "deep",
    ],
)
def test_a_hostile_body_is_refused_at_once(url: str, path: str, body: bytes, status: int) -> None:
    kind = {"content-type": "application/json"}
    answer = httpx.post(f"{url}{path}", content=body, headers=kind, timeout=60)
    assert answer.status_code == status, answer.text[:200]
    assert len(answer.content) < 1000


def test_json_is_limited_under_any_content_type(url: str) -> None:
    body = search(f'{{"a": [{",".join(["[]"] * MOST_OBJECTS)}]}}')
    for kind in ("multipart/form-data; boundary=x", "text/plain"):
        answer = httpx.post(f"{url}/threads", content=body, headers={"content-type": kind})
        assert (answer.status_code, "objects and lists" in answer.text) == (413, True)


def test_json_in_utf_16_is_limited_by_its_characters(url: str) -> None:
    """The character U+2200 has the byte of a quote, after which no value would count."""
    body = f'{{"metadata": {{"a": ["\u2200", {",".join(["[]"] * MOST_OBJECTS)}]}}}}'
    answer = httpx.post(f"{url}/threads", content=body.encode("utf-16"), timeout=60)
    assert (answer.status_code, "objects and lists" in answer.text) == (413, True)
    small = '{"metadata": {"a": "\u2200"}}'.encode("utf-16")
    made = httpx.post(f"{url}/threads", content=small, headers={"content-type": "application/json"})
    assert made.json()["metadata"]["a"] == "\u2200"


def test_a_body_without_a_length_is_limited_too(url: str) -> None:
    pieces = [b'{"metadata": {"a": [', *[b"[],"] * 2 * MOST_OBJECTS]
    answer = httpx.post(f"{url}/threads", content=iter(pieces), timeout=60)
    assert (answer.status_code, "objects and lists" in answer.text) == (413, True)


JSON = st.recursive(
    st.none() | st.integers() | st.text('a"\\,[{}]'),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('"\\{,'), inner, max_size=4)
    ),
    max_leaves=12,
)


def counted(value: Any) -> tuple[int, int]:
    """Commas, objects and lists together; objects and lists."""
    if not isinstance(value, dict | list):
        return 0, 0
    inner = [counted(one) for one in (value.values() if isinstance(value, dict) else value)]
    values, objects = (sum(column) for column in zip((0, 0), *inner, strict=True))
    return values + 1 + max(0, len(value) - 1), objects + 1


@given(JSON, st.lists(st.integers(1, 40), max_size=8))
def test_the_values_of_json_are_counted_for_any_chunks(value: Any, cuts: list[int]) -> None:
    count, left = JSONCount(), json.dumps(value).encode()
    for length in cuts:
        count.feed(left[:length])
        left = left[length:]
    count.feed(left)
    assert (count.values, count.objects) == counted(value)


async def test_the_watchdog_detects_a_blocked_loop() -> None:
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
