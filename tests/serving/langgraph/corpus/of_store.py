"""Asks for the store, for crons, and for what a server says of itself."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.serving.langgraph.corpus.asking import NOBODY, Asking


async def store_items(c: Asking) -> None:
    """Put, read, put again, deleted."""
    await c.store.get_item(["items"], key="k")
    await c.store.put_item(["items"], key="k", value={"v": 1, "deep": {"er": [None, 2.5]}})
    await c.store.get_item(["items"], key="k")
    await c.store.put_item(["items"], key="k", value={"v": 2})
    await c.store.get_item(["items"], key="k")
    await c.store.put_item(["items", "sub"], key="é k/1", value={}, index=False)
    await c.store.get_item(["items", "sub"], key="é k/1")
    await c.store.put_item(["items", "sub"], key="i", value={"t": "x"}, index=["t"])
    await c.store.delete_item(["items"], key="k")
    await c.store.get_item(["items"], key="k")
    await c.store.delete_item(["items"], key="k")
    await c.refused(
        c.store.put_item(["langgraph", "x"], key="k", value={}),
        c.http.put("/store/items", json={"namespace": ["a.b"], "key": "k", "value": {}}),
        c.http.put("/store/items", json={"namespace": [""], "key": "k", "value": {}}),
        c.http.put("/store/items", json={"namespace": [], "key": "k", "value": {}}),
        c.http.put("/store/items", json={"namespace": ["a"], "value": {}}),
        c.http.put("/store/items", json={"namespace": ["a"], "key": 3, "value": {}}),
        c.http.put("/store/items", json={"namespace": ["a"], "key": "k", "value": 3}),
        c.http.put("/store/items", json={"namespace": "a", "key": "k", "value": {}}),
        c.http.get("/store/items"),
        c.http.get("/store/items", params={"namespace": "items"}),
        c.http.delete("/store/items", json={}),
    )


async def store_searched(c: Asking) -> None:
    """Searched by namespaces and by values."""
    for n in range(3):
        await c.store.put_item(["search", f"s{n}"], key=f"k{n}", value={"n": n, "of": "all"})
    await c.store.search_items(["search"], limit=10)
    await c.store.search_items(["search", "s1"])
    await c.store.search_items(["search"], filter={"n": 1})
    await c.store.search_items(["search"], filter={"n": {"$gte": 1}, "of": "all"})
    await c.store.search_items(["search"], filter={"n": {"$ne": 1}})
    await c.store.search_items(["search"], filter={"n": 7})
    await c.store.search_items(["search"], limit=1, offset=1)
    await c.store.search_items(["no", "such"])
    await c.refused(
        c.http.post("/store/items/search", json={"limit": 0}),
        c.http.post("/store/items/search", json={"limit": 100000}),
        c.http.post("/store/items/search", json={"namespace_prefix": "search"}),
        c.http.post("/store/items/search", json={"filter": 3}),
        c.store.search_items(["search"], filter={"n": {"$almost": 1}}),
        c.store.search_items(["search"], query="by meaning", limit=1),
    )


async def store_namespaces(c: Asking) -> None:
    """Listed by their beginnings, ends and depths."""
    for names in (["names", "a", "x"], ["names", "b", "x"], ["names", "b", "y", "z"]):
        await c.store.put_item(names, key="k", value={})
    await c.store.list_namespaces(prefix=["names"])
    await c.store.list_namespaces(prefix=["names"], suffix=["x"])
    await c.store.list_namespaces(prefix=["names"], max_depth=2)
    await c.store.list_namespaces(prefix=["names", "b"], limit=1)
    await c.store.list_namespaces(prefix=["names"], limit=1, offset=2)
    await c.store.list_namespaces(prefix=["no"])
    await c.store.list_namespaces(prefix=["names", "*", "x"])
    await c.refused(
        c.http.post("/store/namespaces", json={"limit": 0}),
        c.http.post("/store/namespaces", json={"max_depth": 0}),
        c.http.post("/store/namespaces", json={"prefix": "names"}),
    )


async def store_of_graphs(c: Asking) -> None:
    """Clients read the items that graphs have stored."""
    for who in ("Sam", "Sam", "Sue"):
        await c.runs.wait(None, "memory", input={"steps": []}, context={"who": who})
    await c.store.get_item(["visits"], key="Sue")
    await c.store.search_items(["visits"], filter={"visits": 2})


async def store_expiry(c: Asking) -> None:
    """Items that are to go by themselves."""
    await c.refused(
        c.store.put_item(["ttl"], key="k", value={"v": 1}, ttl=60),
        c.store.get_item(["ttl"], key="k", refresh_ttl=True),
        c.store.search_items(["ttl"], refresh_ttl=False),
        c.threads.create(ttl=60),
        c.threads.create(ttl={"strategy": "delete", "ttl": 60}),
    )


async def crons(c: Asking) -> None:
    """Runs by the clock."""
    thread = await c.thread()
    lone = (await c.crons.create("steps", schedule="0 0 1 1 *", input={"steps": []}))["cron_id"]
    steps = (await c.http.get(f"/runs/crons/{lone}"))["assistant_id"]
    await c.crons.create_for_thread(
        thread,
        steps,
        schedule="30 9 * * mon-fri",
        timezone="Europe/Berlin",
        end_time=datetime(2100, 1, 1, tzinfo=UTC),
        metadata={"n": 1},
        config={"tags": ["t"], "configurable": {"a": 1}},
        context={"who": "Sam"},
        interrupt_before=["middle"],
        multitask_strategy="interrupt",
        stream_mode=["values", "updates"],
        enabled=False,
    )
    await c.crons.search(assistant_id=steps)
    await c.crons.search(thread_id=thread, enabled=False, metadata={"n": 1})
    await c.crons.search(enabled=True)
    await c.crons.search(limit=1, sort_by="created_at", sort_order="asc", select=["schedule"])
    await c.crons.search(limit=1, offset=1)
    await c.crons.search(metadata={"n": 2})
    await c.crons.count()
    await c.crons.count(assistant_id=steps, thread_id=thread)
    await c.crons.update(lone, schedule="0 0 2 1 *", metadata={"m": 2}, on_run_completed="keep")
    await c.crons.update(lone, timezone="Asia/Tokyo", enabled=False, input={"steps": ["new"]})
    await c.crons.update(lone, end_time=datetime(2100, 1, 1, tzinfo=UTC))
    await c.crons.update(lone, end_time=None, config={"tags": ["u"]})
    await c.crons.delete(lone)
    await c.refused(
        c.http.get(f"/runs/crons/{lone}"),
        c.crons.search(assistant_id="steps"),
        c.crons.update(NOBODY, schedule="0 0 2 1 *"),
        c.crons.update(NOBODY),
        c.crons.delete(NOBODY),
        c.crons.create(NOBODY, schedule="0 0 1 1 *"),
        c.crons.create("steps", schedule="every day"),
        c.crons.create("steps", schedule="0 0 30 2 *"),
        c.crons.create("steps", schedule="0 0 1 1 *", timezone="Mars/Olympus"),
        c.crons.create("steps", schedule="0 0 1 1 *", on_run_completed="burn"),
        c.crons.create_for_thread(NOBODY, "steps", schedule="0 0 1 1 *"),
        c.http.get("/runs/crons/no-uuid"),
    )
    await c.threads.delete(thread)
    await c.crons.count(thread_id=thread)


async def agents_to_agents(c: Asking) -> None:
    """The protocol between agents."""
    [system] = await c.assistants.search(graph_id="chat", metadata={"created_by": "system"})
    said = {"role": "user", "messageId": "1", "parts": [{"kind": "text", "text": "hi"}]}
    send = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": said}}
    await c.http.post(f"/a2a/{system['assistant_id']}", json=send)


async def server_itself(c: Asking) -> None:
    """The server's health, its description, and its answers for unknown objects."""
    await c.http.get("/ok")
    await c.http.get("/info")
    await c.refused(
        c.http.get("/no/such/path"),
        c.http.post("/ok", json={}),
        c.http.put("/threads", json={}),
        c.http.get("/assistants"),
        c.http.get(f"/threads/{NOBODY}/storage"),
    )
