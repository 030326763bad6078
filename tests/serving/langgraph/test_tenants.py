"""Objects of a tenant are not found by other tenants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.serving.langgraph.graphs import GATES
from tests.serving.langgraph.protocol.test_protocol import command, until
from tests.serving.langgraph.runs.test_runs import DONE, IN, a_thread, at_a_gate
from tests.serving.langgraph.serve import Serving


@pytest_asyncio.fixture
async def ann(it: Serving) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=it.url, headers={"x-agentrt-tenant": "ann"}) as client:
        yield client


@pytest_asyncio.fixture
async def eve(it: Serving) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=it.url, headers={"x-agentrt-tenant": "eve"}, timeout=60
    ) as http:
        yield http


async def test_all_that_names_a_thread_of_another_is_not_found(
    ann: LangGraphClient, eve: httpx.AsyncClient
) -> None:
    """A body with the thread's id is refused, too."""
    thread, run, gate = await at_a_gate(ann, stream_resumable=True)
    t, r = f"/threads/{thread}", f"/threads/{thread}/runs/{run}"
    start: dict[str, Any] = {"assistant_id": "steps", "input": IN}
    attempts: list[tuple[str, str, Any]] = [
        ("GET", t, None),
        ("PATCH", t, {"metadata": {"x": 1}}),
        ("DELETE", t, None),
        ("POST", f"{t}/copy", None),
        ("GET", f"{t}/state", None),
        ("POST", f"{t}/state", {"values": {"steps": ["x"]}}),
        ("POST", f"{t}/state/checkpoint", {"checkpoint": {"thread_id": thread}}),
        ("GET", f"{t}/state/{uuid4()}", None),
        ("POST", f"{t}/history", {}),
        ("GET", f"{t}/runs", None),
        ("POST", f"{t}/runs", start),
        ("POST", f"{t}/runs", {**start, "if_not_exists": "create"}),
        ("POST", f"{t}/runs/wait", start),
        ("POST", f"{t}/runs/stream", start),
        ("GET", f"{t}/stream", None),
        ("GET", r, None),
        ("DELETE", r, None),
        ("GET", f"{r}/join", None),
        ("GET", f"{r}/stream", None),
        ("POST", f"{r}/cancel", None),
        ("POST", "/runs/batch", [{**start, "thread_id": thread}]),
        ("POST", "/runs/cancel", {"thread_id": thread, "run_ids": [run]}),
    ]
    for method, path, body in attempts:
        answer = await eve.request(method, path, json=body)
        # As for a thread that nobody has; a copy of one is a conflict in LangGraph's API.
        missing = 409 if path.endswith("/copy") else 404
        assert answer.status_code == missing, (method, path, answer.text)
        assert "not found" in answer.json()["detail"]
    everything = await eve.post("/runs/cancel", json={"status": "all"})
    assert everything.status_code == 204
    taken = await eve.post("/threads", json={"thread_id": thread, "if_exists": "do_nothing"})
    assert taken.status_code == 404
    assert (await eve.post("/threads/prune", json={"thread_ids": [thread]})).json() == {
        "pruned_count": 0
    }
    assert (await ann.runs.get(thread, run))["status"] == "running"
    GATES.open(gate)
    await ann.runs.join(thread, run)


async def test_searches_show_ones_own(ann: LangGraphClient, eve: httpx.AsyncClient) -> None:
    thread = await a_thread(ann)
    made = await ann.assistants.create("steps", name="Ann's")
    found = (await eve.post("/threads/search", json={"limit": 1000})).json()
    assert thread not in [one["thread_id"] for one in found]
    names = [one["name"] for one in (await eve.post("/assistants/search", json={})).json()]
    assert "Ann's" not in names
    assert (await eve.get(f"/assistants/{made['assistant_id']}")).status_code == 404
    start = {"assistant_id": made["assistant_id"], "input": IN}
    assert (await eve.post("/runs/wait", json=start)).status_code == 404
    assert await ann.runs.wait(None, made["assistant_id"], input=IN) == DONE


async def test_events_of_a_thread_of_another_are_not_heard(
    it: Serving, ann: LangGraphClient, eve: httpx.AsyncClient
) -> None:
    """Commands are refused, too. Other tenants see a thread that does not exist yet."""
    thread = str(uuid4())
    mine = ann.http.client
    hearing = [asyncio.create_task(until(eve, thread, "completed")) for _ in range(2)]
    listening = asyncio.create_task(until(mine, thread, "completed", "completed"))
    for _ in range(2):
        await command(mine, thread, "run.start", assistant_id="steps", input=IN)
    await listening
    (place,) = (await command(mine, thread, "state.listCheckpoints", limit=1))["result"][
        "checkpoints"
    ]
    asked: list[tuple[str, dict[str, Any]]] = [
        ("run.start", {"assistant_id": "steps", "input": IN}),
        ("state.get", {}),
        ("state.listCheckpoints", {}),
        ("state.fork", {"checkpoint_id": place["id"]}),
        ("agent.getTree", {}),
    ]
    for method, params in asked:
        taken = await command(eve, thread, method, **params)
        assert (taken["type"], "not found" in taken["message"]) == ("error", True), method
    hearing.append(asyncio.create_task(until(eve, thread, "completed")))
    assert await until(mine, thread, "completed", "completed") == listening.result()
    for task in hearing:
        assert not task.done()
        task.cancel()
    await asyncio.wait(hearing)


async def test_the_store_is_ones_own_for_clients_and_graphs(
    ann: LangGraphClient, eve: httpx.AsyncClient
) -> None:
    who = str(uuid4())
    await ann.runs.wait(None, "memory", input=IN, context={"who": who})
    assert (await ann.store.get_item(["visits"], who))["value"] == {"visits": 1}
    item = {"namespace": "visits", "key": who}
    nothing = await eve.get("/store/items", params=item)
    assert (nothing.status_code, nothing.json()) == (200, None)
    start = {"assistant_id": "memory", "input": IN, "context": {"who": who}}
    own = (await eve.post("/runs/wait", json=start)).json()
    assert own["steps"][-1] == f"{who} 1"
    for prefix in ([], ["tenant:ann"], ["visits"]):
        asked = {"namespace_prefix": prefix, "limit": 1000}
        items = (await eve.post("/store/items/search", json=asked)).json()["items"]
        assert [one["key"] for one in items if one["value"] != {"visits": 1}] == []
    listed = (await eve.post("/store/namespaces", json={})).json()["namespaces"]
    assert listed == [["visits"]]


@pytest.mark.parametrize("key", ["..", "..%2F..%2Fetc%2Fpasswd", "x' OR '1'='1", "%00", "a" * 5000])
async def test_a_thread_is_named_by_a_uuid_and_nothing_else(
    eve: httpx.AsyncClient, key: str
) -> None:
    for path in (f"/threads/{key}/state", f"/threads/{key}/runs", f"/threads/{key}/runs/{key}"):
        answer = await eve.get(path)
        assert answer.status_code in (404, 405, 422), (path, answer.text)
        assert answer.json()["detail"]


@pytest.mark.parametrize("form", [str.upper, lambda key: key.replace("-", "")])
async def test_every_form_of_a_uuid_is_the_same_thread(ann: LangGraphClient, form: Any) -> None:
    thread = await a_thread(ann)
    assert (await ann.threads.get(form(thread)))["thread_id"] == thread
    assert await ann.runs.wait(form(thread), "steps", input=IN) == DONE
