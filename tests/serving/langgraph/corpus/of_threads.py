"""Asks for threads: to make, find, change, copy, prune and delete them."""

from __future__ import annotations

from uuid import uuid4

from tests.serving.langgraph.corpus.asking import IN, NOBODY, Asking


async def threads_made(c: Asking) -> None:
    """Made, with an id of their own and with a given one, twice, with a past."""
    made = await c.threads.create()
    await c.threads.get(made["thread_id"])
    given = str(uuid4())
    await c.threads.create(thread_id=given, metadata={"n": 1, "deep": {"er": None}})
    await c.threads.create(thread_id=given, if_exists="do_nothing", metadata={"n": 2})
    await c.refused(
        c.threads.create(thread_id=given),
        c.threads.create(thread_id=given, if_exists="raise"),
        c.threads.create(thread_id="no-uuid"),
        c.http.post("/threads", json={"metadata": 3}),
        c.http.post("/threads", json={"if_exists": "shout"}),
    )
    past = [
        {"updates": [{"values": {"steps": ["was"]}, "as_node": "__input__"}]},
        {"updates": [{"values": {"steps": ["then"]}, "as_node": "first"}]},
    ]
    copied = await c.thread(graph_id="steps", supersteps=past)
    await c.threads.get_state(copied)
    await c.threads.get_history(copied)
    await c.runs.wait(copied, "steps", input=None)
    await c.refused(c.threads.create(supersteps=past))
    await c.threads.get(copied, include=["ttl"])


async def threads_changed(c: Asking) -> None:
    """Their metadata, merged; and all of one, deleted."""
    thread = await c.thread(metadata={"a": 1, "b": {"c": 2}})
    await c.threads.update(thread, metadata={"b": {"d": 3}, "e": None})
    await c.threads.update(thread, metadata={"a": 2}, return_minimal=True)
    await c.threads.get(thread)
    await c.runs.wait(thread, "steps", input=IN)
    await c.threads.get(thread)
    await c.threads.delete(thread)
    await c.refused(
        c.threads.get(thread),
        c.threads.delete(thread),
        c.threads.update(thread, metadata={}),
        c.threads.get_state(thread),
        c.threads.get_history(thread),
        c.threads.update_state(thread, {"steps": []}),
        c.threads.copy(thread),
        c.runs.list(thread),
        c.runs.wait(thread, "steps", input=IN),
        c.runs.create(thread, "steps", input=IN),
        c.threads.get("no-uuid"),
        c.threads.delete("no-uuid"),
        c.http.patch(f"/threads/{NOBODY}", json={"metadata": 3}),
    )


async def threads_found(c: Asking) -> None:
    """Searched and counted by all that they can be searched by."""
    first = await c.thread(metadata={"found": 0, "of": "found"})
    second = await c.thread(metadata={"found": 1, "of": "found", "deep": {"er": 1}})
    await c.runs.wait(second, "ask", input=IN)
    third = await c.thread(metadata={"found": 2, "of": "found"})
    await c.runs.wait(third, "fail", input=IN, raise_error=False)
    mine = {"of": "found"}
    for by in ("created_at", "updated_at", "state_updated_at", "status"):
        await c.threads.search(metadata=mine, sort_by=by, sort_order="asc", select=["metadata"])
    await c.threads.search(metadata={"found": 1}, sort_by="thread_id", select=["status"])
    await c.threads.search(metadata=mine, sort_by="created_at", sort_order="desc")
    for status in ("idle", "busy", "interrupted", "error"):
        await c.threads.search(metadata=mine, status=status, select=["thread_id", "status"])
        await c.threads.count(metadata=mine, status=status)
    await c.refused(
        c.threads.search(metadata=mine, values={"steps": ["in", "first"]}, select=["values"]),
        c.threads.search(metadata=mine, values={"steps": ["other"]}),
        c.threads.count(metadata=mine, values={"steps": ["in", "first"]}),
    )
    await c.threads.search(metadata={"deep": {"er": 1}}, select=["metadata"])
    await c.threads.search(ids=[first, NOBODY])
    await c.threads.search(metadata=mine, limit=1, offset=1, sort_by="created_at")
    await c.threads.search(metadata=mine, limit=2, offset=5)
    await c.threads.search(metadata=mine, select=["thread_id", "interrupts", "config"])
    await c.threads.search(
        ids=[second],
        extract={"last": "values.steps[-1]", "n": "metadata.found", "none": "values.no"},
    )
    await c.threads.count(metadata=mine)
    await c.refused(
        c.http.post("/threads/search", json={"limit": 0}),
        c.http.post("/threads/search", json={"limit": 100000}),
        c.http.post("/threads/search", json={"status": "merry"}),
        c.http.post("/threads/search", json={"sort_by": "colour"}),
        c.http.post("/threads/search", json={"select": ["colour"]}),
        c.http.post("/threads/search", json={"ids": ["no-uuid"]}),
        c.http.post("/threads/search", json={"extract": {"x": "no.such.root"}}),
    )


async def threads_copied(c: Asking) -> None:
    """Copied, with their states; and the copy goes its own way."""
    thread = await c.thread(metadata={"a": 1})
    empty = await c.threads.copy(thread)
    await c.threads.get_state(empty["thread_id"])
    await c.runs.wait(thread, "steps", input=IN)
    copy = (await c.threads.copy(thread))["thread_id"]
    await c.threads.get(copy)
    await c.threads.get_state(copy)
    await c.threads.get_history(copy, limit=2)
    await c.runs.wait(copy, "steps", input={"steps": ["again"]})
    await c.threads.get_state(thread)
    await c.runs.list(copy)
    asked = await c.thread()
    await c.runs.wait(asked, "ask", input=IN)
    copy = (await c.threads.copy(asked))["thread_id"]
    await c.runs.wait(copy, "ask", command={"resume": "left"})
    await c.threads.get(asked)
    await c.refused(c.threads.copy(NOBODY), c.http.post("/threads/no-uuid/copy", json=None))


async def threads_pruned(c: Asking) -> None:
    """Pruned: deleted, or only their pasts."""
    gone, kept = await c.thread(), await c.thread()
    await c.runs.wait(kept, "steps", input=IN)
    await c.threads.prune([gone])
    await c.refused(c.threads.get(gone))
    await c.refused(c.threads.prune([kept], strategy="keep_latest"))
    await c.threads.get_history(kept)
    await c.threads.get_state(kept)
    await c.refused(
        c.threads.prune([NOBODY]),
        c.threads.prune([]),
        c.http.post("/threads/prune", json={"thread_ids": ["no-uuid"]}),
        c.http.post("/threads/prune", json={"thread_ids": [kept], "strategy": "burn"}),
        c.http.post("/threads/prune", json={}),
    )
