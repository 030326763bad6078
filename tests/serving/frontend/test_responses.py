"""Responses are kept for their tenant, for a while, and up to a size."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from agentrt.serving.frontend import responses
from agentrt.serving.frontend.conversations import RESPONSES
from agentrt.serving.frontend.responses import (
    CURRENT_REQUEST,
    CurrentRequest,
    Finished,
    ResponseStore,
)
from tests.serving.frontend.test_identity import ask
from tests.serving.local import Held, open_server

pytestmark = pytest.mark.engine


class Handler(SimpleNamespace):
    """The part of vLLM's handler that the store uses."""

    def put(self, tenant: str, name: str, size: int = 1) -> None:
        CURRENT_REQUEST.set(CurrentRequest(tenant, size, "m"))
        self.response_store[name] = name
        self.msg_store[name] = ["messages"]  # which are not kept: the store has the items

    def has(self, tenant: str, name: str) -> bool:
        CURRENT_REQUEST.set(CurrentRequest(tenant))
        assert self.msg_store.get(name) is None
        return name in self.response_store


@pytest.fixture
def now() -> Iterator[list[float]]:
    token = CURRENT_REQUEST.set(CurrentRequest("nobody"))
    yield [0.0]
    CURRENT_REQUEST.reset(token)


def attached(now: list[float]) -> tuple[ResponseStore, Handler]:
    store, handler = ResponseStore(lambda: now[0]), Handler()
    store.attach(handler)
    assert handler.enable_store
    return store, handler


def test_a_response_is_visible_only_to_its_tenant(now: list[float]) -> None:
    _, handler = attached(now)
    handler.put("a", "resp-1")
    assert handler.has("a", "resp-1")
    assert not handler.has("b", "resp-1")
    handler.put("b", "resp-1")
    assert "resp-1" not in handler.event_store


def test_old_and_surplus_responses_are_forgotten(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "MOST", 3)
    _, handler = attached(now)
    for number in range(5):
        now[0] = float(number)
        handler.put("a", f"resp-{number}")
    assert [handler.has("a", f"resp-{n}") for n in range(5)] == [False, False, True, True, True]
    now[0] = responses.KEPT_S + 3.0
    assert [handler.has("a", f"resp-{n}") for n in range(2, 5)] == [False, True, True]


def test_size_is_bounded_for_each_tenant(now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "MOST_BYTES", 100)
    store, handler = attached(now)
    for name in ("one", "two"):
        handler.put("a", name, 40)
    store.finish("a", Finished("two", "m", {}, [], end=b"end", size=50))
    assert [handler.has("a", name) for name in ("one", "two")] == [False, True]
    handler.put("b", "three", 90)
    assert [handler.has("a", "two"), handler.has("b", "three")] == [True, True]


def test_tenants_without_recent_responses_are_forgotten(now: list[float]) -> None:
    store, handler = attached(now)
    for number in range(10):
        now[0] = number * responses.KEPT_S / 2
        handler.put(f"tenant-{number}", "resp-1")
    assert store.tenants() == 3
    assert handler.has("tenant-7", "resp-1")


class OneRow:
    """A database with one response of 40 bytes, which ``readers`` get at the same moment."""

    def __init__(self, readers: int = 5, age_s: float = 0.0) -> None:
        self.readers, self.age_s = readers, age_s
        self.loads = 0
        self.go = asyncio.Event()

    def save(self, tenant: str, finished: Finished, before: Sequence[Any]) -> None: ...

    async def load(self, tenant: str, response_id: str) -> tuple[Finished, list[Any]]:
        self.loads += 1
        if self.loads == self.readers:
            self.go.set()
        await self.go.wait()
        row = Finished(response_id, "m", {}, [], end=b"end", size=40, age_s=self.age_s)
        return row, []

    async def owners(self, tenant: str, item_ids: Sequence[str]) -> set[str]:
        return set()

    async def delete(self, tenant: str, response_id: str) -> None: ...


async def test_a_response_that_is_loaded_several_times_at_once_counts_once(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "MOST_BYTES", 100)
    rows = OneRow()
    store, handler = ResponseStore(lambda: now[0], lambda: rows), Handler()
    store.attach(handler)
    loaded = await asyncio.gather(*(store.load("a", "resp-1") for _ in range(5)))
    assert all(kept is loaded[0] for kept in loaded)
    handler.put("a", "resp-2", 40)
    assert store.get("a", "resp-1") is loaded[0]
    assert handler.has("a", "resp-2")


async def test_reading_a_response_from_the_database_does_not_keep_it_for_longer(
    now: list[float],
) -> None:
    rows = OneRow(1, age_s=responses.KEPT_S - 60.0)
    store = ResponseStore(lambda: now[0], lambda: rows)
    loaded = await store.load("a", "resp-1")
    now[0] = 59.0
    assert store.get("a", "resp-1") is loaded
    now[0] = 61.0
    assert store.get("a", "resp-1") is None


async def test_other_tenants_do_not_find_a_response() -> None:
    a, b = ({"x-agentrt-tenant": name} for name in "ab")
    async with open_server() as local:
        first = await local.post(RESPONSES, ask(RESPONSES, "hello"), a)
        more = ask(RESPONSES, "and?", previous_response_id=first["id"])
        at = f"{RESPONSES}/{first['id']}"
        for sent in (
            await local.client.post(RESPONSES, json=more, headers=b),
            await local.client.get(at, headers=b),
            await local.client.post(f"{at}/cancel", json={}, headers=b),
        ):
            assert sent.status_code == 404, sent.text
        assert (await local.client.get(at, headers=a)).json()["id"] == first["id"]
        assert (await local.client.post(RESPONSES, json=more, headers=a)).status_code == 200
        forced = ask(RESPONSES, "mine", request_id=first["id"])
        assert (await local.client.post(RESPONSES, json=forced, headers=b)).status_code == 200
        kept = (await local.client.get(at, headers=a)).json()
        assert kept["output"] == first["output"]


async def test_a_response_is_deleted_when_it_has_ended() -> None:
    async with open_server(kind=Held) as local:
        queued = await local.post(RESPONSES, ask(RESPONSES, "hello", background=True))
        await local.engine.began.wait()
        at = f"{RESPONSES}/{queued['id']}"
        early: Any = await local.client.delete(at)
        assert (early.status_code, early.json()["error"]["code"]) == (400, "response_in_progress")
        await local.client.post(f"{at}/cancel", json={})
        await local.until(lambda: not local.server.under_way and not local.engine.open)
        assert (await local.client.delete(at)).json()["deleted"] is True
        assert (await local.client.get(at)).status_code == 404
        assert (await local.client.delete(f"{RESPONSES}/nothing")).status_code == 404


async def name_in(lines: AsyncIterator[str]) -> str:
    """The id of the response that an answer has, or of the one that a stream begins."""
    async for line in lines:
        if found := re.search(r"resp_\w+", line):
            return found[0]
    raise AssertionError("the answer has no response")


@pytest.mark.parametrize("client", ["polls", "reads", "has left"])
async def test_a_background_response_fails_with_its_call(client: str) -> None:
    async with open_server(kind=Held) as local:
        run = (await local.client.post("/v1/client-runs", json={})).json()["id"]
        body = ask(RESPONSES, "hello", background=True, stream=client != "polls")
        headers = {"x-agentrt-run": run}
        async with local.client.stream("POST", RESPONSES, json=body, headers=headers) as answer:
            lines = answer.aiter_lines()
            name = await name_in(lines)
            await local.engine.began.wait()
            if client == "has left":
                await answer.aclose()
                await local.until(lambda: local.server.under_way)
            ended = await local.client.delete(f"/v1/client-runs/{run}")
            assert ended.json()["deleted"] is True
            if client == "reads":
                rest = [line async for line in lines if line.startswith("data:")]
                assert json.loads(rest[-1][5:])["response"]["status"] == "failed"
        await local.until(lambda: not local.server.under_way)
        at = f"{RESPONSES}/{name}"
        failed = (await local.client.get(at)).json()
        assert failed["status"] == "failed"
        assert "was ended" in failed["error"]["message"]
        if client != "polls":
            events = (await local.client.get(at, params={"stream": True})).text
            assert "event: response.failed" in events
        assert (await local.client.delete(at)).json()["deleted"] is True


async def test_the_events_of_a_background_response_end() -> None:
    async with open_server(kind=Held) as local:
        body = ask(RESPONSES, "hello", background=True, stream=True)
        async with local.client.stream("POST", RESPONSES, json=body) as answer:
            lines = answer.aiter_lines()
            name = await name_in(lines)
            await local.engine.began.wait()
            await local.client.post(f"{RESPONSES}/{name}/cancel", json={})
            assert "response.completed" not in [line async for line in lines]
        at = f"{RESPONSES}/{name}"
        assert (await local.client.get(at)).json()["status"] == "cancelled"
        assert (await local.client.post(f"{at}/cancel", json={})).json()["status"] == "cancelled"
        local.engine.go.set()
        whole = await local.client.post(RESPONSES, json=body)
        events = [json.loads(line[5:]) for line in whole.text.splitlines() if line[:5] == "data:"]
        assert events[-1]["type"] == "response.completed"
        after = {"stream": True, "starting_after": events[-1]["sequence_number"]}
        at = f"{RESPONSES}/{events[-1]['response']['id']}"
        assert (await local.client.get(at, params=after)).text == ""


@pytest.mark.parametrize(
    "how", [{}, {"stream": True}, {"background": True}], ids=["whole", "stream", "background"]
)
async def test_events_that_are_not_stored_are_refused(how: dict[str, bool]) -> None:
    """Only a background response that is streamed has events. All others can be read whole."""
    async with open_server() as local:
        begun = await local.client.post(RESPONSES, json=ask(RESPONSES, "hello", **how))
        await local.until(lambda: not local.server.under_way)
        match = re.search(r"resp_\w+", begun.text)
        assert match is not None
        at = f"{RESPONSES}/{match[0]}"
        refused = await local.client.get(at, params={"stream": "true"})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (400, "response_not_streamed")
        assert "Leave 'stream' out" in error["message"]
        for value in ("false", "off"):
            whole = (await local.client.get(at, params={"stream": value})).json()
            assert whole["status"] == "completed"


@pytest.mark.parametrize("draining", [False, True])
async def test_a_background_response_can_be_cancelled(draining: bool) -> None:
    async with open_server(kind=Held) as local:
        queued = await local.post(RESPONSES, ask(RESPONSES, "hello", background=True))
        await local.engine.began.wait()
        local.server.draining = draining
        at = f"{RESPONSES}/{queued['id']}"
        cancelled: Any = (await local.client.post(f"{at}/cancel", json={})).json()
        assert cancelled["status"] == "cancelled"
        await local.until(lambda: not local.server.under_way and not local.engine.open)
        assert local.server.tenants.calls("default") == 0
