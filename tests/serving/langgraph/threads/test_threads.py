"""Cases of threads, assistants and the store that the corpus does not have."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import ConflictError
from sqlalchemy.exc import OperationalError

from agentrt.serving.langgraph.database.storage import Storage
from tests.serving.langgraph.runs.test_runs import DONE, IN, a_thread


async def test_threads_are_found_by_parts_of_their_metadata_and_values(
    client: LangGraphClient,
) -> None:
    mark = str(uuid4())
    for n in range(2):
        made = await client.threads.create(metadata={"mark": mark, "tags": [n, "x"]})
    await client.runs.wait(made["thread_id"], "steps", input=IN)
    for asked in ({"metadata": {"mark": mark, "tags": [1]}}, {"values": DONE}):
        about: Any = {"metadata": {"mark": mark}, **asked}
        found = await client.threads.search(**about)
        assert [one["thread_id"] for one in found] == [made["thread_id"]]
        assert await client.threads.count(**about) == 1


async def test_a_graphs_own_assistant_stays(client: LangGraphClient) -> None:
    own = await client.assistants.get("steps")
    with pytest.raises(ConflictError, match="is the default assistant of the graph"):
        await client.assistants.delete(own["assistant_id"])


async def test_no_change_of_an_assistant_is_lost_if_several_come_at_once(
    client: LangGraphClient,
) -> None:
    await changed_at_once(client)


async def changed_at_once(client: LangGraphClient) -> None:
    key = (await client.assistants.create("steps"))["assistant_id"]
    changes = [{"metadata": {f"key {n}": n}} for n in range(10)]
    await asyncio.gather(*[client.assistants.update(key, **change) for change in changes])  # type: ignore[arg-type]  # names are not known there
    changed: Any = await client.assistants.get(key)
    assert changed["version"] == 11
    assert {f"key {n}" for n in range(10)} <= changed["metadata"].keys()


async def test_items_have_exact_times_in_the_order_of_their_writes(
    client: LangGraphClient,
) -> None:
    """With their zone, which a browser would guess otherwise. A change keeps the creation."""
    root = str(uuid4())
    for n in range(20):
        await client.store.put_item([root], f"k{n % 10}", {"n": n})
    found: Any = (await client.store.search_items([root], limit=100))["items"]
    items = sorted(found, key=lambda one: one["value"]["n"])
    created, updated = ([one[key] for one in items] for key in ("created_at", "updated_at"))
    assert all(datetime.fromisoformat(time).utcoffset() == timedelta(0) for time in updated)
    times = [datetime.fromisoformat(time) for time in [*created, *updated]]
    assert times == sorted(set(times))
    again = await client.store.get_item([root], "k0")
    assert (again["created_at"], again["updated_at"]) == (created[0], updated[0])


@pytest.mark.parametrize(("graph", "status"), [("steps", "idle"), ("ask", "interrupted")])
async def test_a_copy_has_none_of_the_runs_that_wait(
    client: LangGraphClient, graph: str, status: str
) -> None:
    thread = await a_thread(client)
    await client.runs.wait(thread, graph, input=IN)
    before = await client.threads.get(thread)
    await client.runs.create(thread, graph, input=IN, after_seconds=3600)
    copy: Any = await client.http.post(f"/threads/{thread}/copy", json=None)
    assert await client.runs.list(copy["thread_id"]) == []
    assert (copy["status"], copy["values"]) == (status, before["values"])
    assert copy["interrupts"] == before["interrupts"]
    await client.threads.delete(thread)


async def test_a_copy_that_fails_leaves_no_thread(
    client: LangGraphClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = str(uuid4())
    thread = (await client.threads.create(metadata={"mark": mark}))["thread_id"]
    await client.runs.wait(thread, "steps", input=IN)

    async def full(storage: Storage, source: str, target: str) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        raise OperationalError("INSERT", None, error)

    monkeypatch.setattr(Storage, "copy_thread", full)
    answer = await client.http.client.post(f"/threads/{thread}/copy")
    assert answer.status_code == 507
    assert await client.threads.count(metadata={"mark": mark}) == 1


async def test_a_preference_may_have_any_case(client: LangGraphClient) -> None:
    thread = await client.threads.create()
    headers = {"Prefer": "Return=Minimal"}
    changed = await client.threads.update(thread["thread_id"], metadata={}, headers=headers)
    assert changed is None, "an answer without content"
