"""Requests that a full or stopping server refuses."""

from __future__ import annotations

from uuid import uuid4

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient

from agentrt.serving.langgraph.database.runs import RunRecord
from agentrt.serving.langgraph.runs import queue as run_queue
from agentrt.serving.langgraph.runs.stream_responses import result_response
from agentrt.serving.langgraph.runs.streams import EventLog, LiveRun
from agentrt.serving.tenants import Limits, Tenants
from tests.serving.langgraph.graphs import GATES
from tests.serving.langgraph.runs.test_runs import IN, a_thread, at_a_gate
from tests.serving.langgraph.serve import Serving

START = {"assistant_id": "steps", "input": IN}


async def test_a_full_queue_refuses_with_429(
    http: httpx.AsyncClient, client: LangGraphClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last place is taken, released, and taken again."""
    thread, run, gate = await at_a_gate(client)
    monkeypatch.setattr(run_queue, "MAX_RUNS", 1)
    for path, body in (("/runs/wait", START), ("/runs/batch", [START, START])):
        refused = await http.post(path, json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        assert "try again later" in refused.json()["detail"]
    GATES.open(gate)
    await client.runs.join(thread, run)
    assert (await http.post("/runs/wait", json=START)).status_code == 200


async def test_a_tenant_at_its_limits_is_refused_with_429(
    it: Serving, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way it starts a run; one of a batch counts as any other."""
    own = {
        "slow": Limits(requests_per_minute=2),
        "spent": Limits(tokens_per_minute=1),
        "few": Limits(programs=2),
    }
    tenants = Tenants(lambda: 0.0, limits_of=lambda: own)
    monkeypatch.setattr(it.server, "tenants", tenants)
    gate, why = str(uuid4()), {"slow": "requests per", "spent": "tokens per", "few": "2 live"}
    held = {"assistant_id": "gate", "input": {"gate": gate, "steps": []}}
    for tenant, fault in why.items():
        said = {"x-agentrt-tenant": tenant}
        thread = (await http.post("/threads", json={}, headers=said)).json()["thread_id"]
        started = await http.post("/runs/batch", json=[held, held], headers=said)
        assert started.status_code == 200
        tenants.charge(tenant, 2)
        for path in ("/runs/batch", "/runs/wait", f"/threads/{thread}/runs"):
            body = [held] if path == "/runs/batch" else held
            refused = await http.post(path, json=body, headers=said)
            assert (refused.status_code, fault in refused.json()["detail"]) == (429, True)
            assert int(refused.headers["retry-after"]) >= 1
    GATES.open(gate)


async def test_no_more_runs_run_at_once_than_there_is_room_for(
    client: LangGraphClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_queue, "MAX_RUNNING", 1)
    first, held, gate = await at_a_gate(client)
    second = await a_thread(client)
    waiting = await client.runs.create(second, "steps", input=IN)
    assert (await client.runs.get(second, waiting["run_id"]))["status"] == "pending"
    GATES.open(gate)
    await client.runs.join(first, held)
    await client.runs.join(second, waiting["run_id"])
    assert (await client.runs.get(second, waiting["run_id"]))["status"] == "success"


async def test_a_server_that_ends_takes_no_new_runs(
    http: httpx.AsyncClient, client: LangGraphClient, it: Serving
) -> None:
    """Its running work continues."""
    thread, run, gate = await at_a_gate(client)
    assert it.server is not None
    it.server.draining = True
    try:
        refused = await http.post("/runs/wait", json=START)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        GATES.open(gate)
        assert (await client.runs.join(thread, run))["steps"][-1] == "after"
    finally:
        it.server.draining = False


async def test_a_run_that_has_not_ended_has_no_result() -> None:
    """A server that ends breaks the connection of who waits; a null would pass for a result."""
    record = RunRecord("r", 1, "t", "default", "a", "g", 1, 0, 0, "enqueue", {}, {}, None)
    live = LiveRun(record, EventLog("r", None, resumable=False))  # type: ignore[arg-type]  # nothing is written
    live.done.set()
    waiting = result_response(live, {}, keep_alive_s=10)
    with pytest.raises(ConnectionAbortedError, match="the server stopped before the end of run r"):
        async for _ in waiting.body_iterator:
            pass
