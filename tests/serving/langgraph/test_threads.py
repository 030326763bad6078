"""Threads, assistants and the store, by the stock client."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import ConflictError, NotFoundError

from tests.serving.langgraph.test_runs import DONE, IN


async def test_threads_are_found_by_parts_of_their_metadata_and_values(
    client: LangGraphClient,
) -> None:
    mark = str(uuid4())
    threads = [
        (await client.threads.create(metadata={"mark": mark, "tags": [n, "x"]}))["thread_id"]
        for n in range(3)
    ]
    await client.runs.wait(threads[2], "steps", input=IN)
    for asked, found in (
        ({"metadata": {"mark": mark, "tags": [1]}}, threads[1:2]),
        ({"metadata": {"mark": mark}, "values": DONE}, threads[2:]),
    ):
        got = await client.threads.search(**asked)
        assert [one["thread_id"] for one in got] == found
        assert await client.threads.count(**asked) == 1


async def test_the_past_is_pruned(client: LangGraphClient) -> None:
    thread = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread, "ask", input=IN)
    assert await client.threads.prune([thread, str(uuid4())], strategy="keep_latest") == {
        "pruned_count": 1
    }
    assert len(await client.threads.get_history(thread)) == 1
    done = await client.runs.wait(thread, "ask", command={"resume": "y"})
    assert isinstance(done, dict)
    assert done["steps"][-1] == "last"
    await client.threads.prune([thread])
    with pytest.raises(NotFoundError):
        await client.threads.get(thread)


# -- assistants ---------------------------------------------------------------------------


async def test_each_graph_has_its_assistant(client: LangGraphClient) -> None:
    found = await client.assistants.search(graph_id="steps", metadata={"created_by": "system"})
    (own,) = found
    assert (own["name"], own["version"]) == ("steps", 1)
    assert await client.assistants.get("steps") == own
    assert await client.runs.wait(None, own["assistant_id"], input=IN) == DONE
    with pytest.raises(ConflictError, match="comes with the graph"):
        await client.assistants.delete(own["assistant_id"])


async def test_assistants_have_versions(client: LangGraphClient) -> None:
    made = await client.assistants.create(
        "memory", context={"who": "Bob"}, name="Bob's", metadata={"x": 1}
    )
    key = made["assistant_id"]
    bob = await client.runs.wait(None, key, input=IN)
    assert isinstance(bob, dict)
    assert bob["steps"][-1] == "Bob 1"
    changed = await client.assistants.update(key, context={"who": "Eve"}, metadata={"y": 2})
    assert (changed["version"], changed["metadata"]) == (2, {"x": 1, "y": 2})
    eve = await client.runs.wait(None, key, input=IN)
    assert isinstance(eve, dict)
    assert eve["steps"][-1] == "Eve 1"
    back = await client.assistants.set_latest(key, 1)
    assert (back["version"], back["context"]) == (1, {"who": "Bob"})
    versions = await client.assistants.get_versions(key)
    assert [one["version"] for one in versions] == [2, 1]
    with pytest.raises(NotFoundError):
        await client.assistants.set_latest(key, 9)
    await client.assistants.delete(key)
    with pytest.raises(NotFoundError):
        await client.assistants.get(key)


# -- the store ----------------------------------------------------------------------------


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
