"""The limits of a tenant's rows in the database, for every way of creating them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from agentrt.serving.langgraph.database import quotas
from agentrt.serving.tenants import Limits, Tenants
from tests.serving.langgraph.graphs import steps_graph
from tests.serving.langgraph.serve import serving
from tests.serving.tenants.plain_keys import PlainKeys

START = {"assistant_id": "steps", "input": {"steps": ["in"]}}
OWN = {
    "small": Limits(threads=2, assistants=2, crons=1, store_mib=1),
    "hasty": Limits(store_mib=1),
    "free": Limits(threads=None, assistants=None, crons=None, store_mib=None),
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def http(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    folder: Path = tmp_path_factory.mktemp("quotas")
    with serving({"steps": steps_graph()}, folder / "a.db", keys=PlainKeys()) as it:
        assert it.server is not None
        it.server.tenants = Tenants(lambda: 0.0, limits_of=lambda: OWN)
        async with httpx.AsyncClient(base_url=it.url, timeout=60) as http:
            yield http


def key(tenant: str) -> dict[str, str]:
    return {"authorization": f"Bearer {tenant}"}


def refused(answer: httpx.Response, limit: str) -> bool:
    return answer.status_code == 507 and f"its limit {limit!r} is" in answer.json()["detail"]


@pytest.mark.asyncio(loop_scope="module")
async def test_threads(http: httpx.AsyncClient) -> None:
    """However one is made; those that there are continue, and one that is deleted makes room."""
    small = key("small")
    made = [(await http.post("/threads", json={}, headers=small)).json() for _ in range(2)]
    at = f"/threads/{made[0]['thread_id']}"
    new = f"/threads/{uuid4()}/runs/wait"
    for path, body in (
        ("/threads", {}),
        (f"{at}/copy", None),
        ("/runs/wait", START),
        ("/runs/batch", [START]),
        (new, {**START, "if_not_exists": "create"}),
    ):
        assert refused(await http.post(path, json=body, headers=small), "threads"), path
    known: Any = {**START, "if_not_exists": "create"}
    assert (await http.post(f"{at}/runs/wait", json=known, headers=small)).status_code == 200
    for other in ("free", "other"):
        answer = await http.post("/runs/wait", json=START, headers=key(other))
        assert answer.status_code == 200
    await http.delete(at, headers=small)
    assert (await http.post("/threads", json={}, headers=small)).status_code == 200


@pytest.mark.asyncio(loop_scope="module")
async def test_assistants(http: httpx.AsyncClient) -> None:
    """The graph's own counts as well."""
    small, body = key("small"), {"graph_id": "steps"}
    assert (await http.post("/assistants", json=body, headers=small)).status_code == 200
    assert refused(await http.post("/assistants", json=body, headers=small), "assistants")
    assert (await http.post("/assistants", json=body, headers=key("free"))).status_code == 200


@pytest.mark.asyncio(loop_scope="module")
async def test_crons(http: httpx.AsyncClient) -> None:
    body = {"assistant_id": "steps", "schedule": "@yearly"}
    for tenant in ("small", "free", "free"):
        assert (await http.post("/runs/crons", json=body, headers=key(tenant))).status_code == 200
    assert refused(await http.post("/runs/crons", json=body, headers=key("small")), "crons")


@pytest.mark.asyncio(loop_scope="module")
async def test_the_store(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item that is written over counts twice until it is counted again."""
    text = "x" * 600_000

    async def put(tenant: str, name: str) -> httpx.Response:
        item = {"namespace": ["notes"], "key": name, "value": {"text": text}}
        return await http.put("/store/items", json=item, headers=key(tenant))

    assert (await put("small", "a")).status_code == 204
    assert refused(await put("small", "b"), "store_mib")
    for name in ("a", "b"):
        assert (await put("free", name)).status_code == 204
    gone = {"namespace": ["notes"], "key": "a"}
    await http.request("DELETE", "/store/items", json=gone, headers=key("small"))
    assert refused(await put("small", "b"), "store_mib")
    monkeypatch.setattr(quotas, "_COUNT_AGAIN_S", -1.0)
    assert (await put("small", "b")).status_code == 204
    assert refused(await put("small", "c"), "store_mib")


@pytest.mark.asyncio(loop_scope="module")
async def test_items_that_are_put_at_once_are_all_counted(http: httpx.AsyncClient) -> None:
    def item(n: int) -> dict[str, Any]:
        return {"namespace": ["notes"], "key": str(n), "value": {"text": "x" * 600_000}}

    hasty = key("hasty")
    puts = (http.put("/store/items", json=item(n), headers=hasty) for n in range(8))
    answers = await asyncio.gather(*puts)
    assert sum(answer.status_code == 204 for answer in answers) == 1
    assert sum(refused(answer, "store_mib") for answer in answers) == 7


@pytest.mark.asyncio(loop_scope="module")
async def test_a_tenant_is_not_charged_for_one_whose_name_has_another_case(
    http: httpx.AsyncClient,
) -> None:
    """1. Nor 2. for one whose name begins with its own."""
    item = {"namespace": ["a"], "key": "k", "value": {"text": "x" * 2**20}}
    for tenant in ("Small", "small-2"):
        OWN[tenant] = OWN["free"]
        answer = await http.put("/store/items", json=item, headers=key(tenant))
        assert answer.status_code == 204
    OWN["SMALL"] = OWN["small"]
    own = {**item, "value": {"text": "x"}}
    assert (await http.put("/store/items", json=own, headers=key("SMALL"))).status_code == 204
