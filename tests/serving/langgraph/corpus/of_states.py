"""Asks for the states of threads, and writes them."""

from __future__ import annotations

from typing import Any

from tests.serving.langgraph.corpus.asking import IN, NOBODY, Asking


async def states_read(c: Asking) -> None:
    """Now, at checkpoints, with parts, with subgraphs."""
    thread = await c.thread()
    await c.threads.get_state(thread)
    await c.threads.get_history(thread)
    await c.runs.wait(thread, "nested", input=IN)
    await c.threads.get_state(thread)
    await c.threads.get_state(thread, subgraphs=True)
    past = await c.threads.get_history(thread)
    for one in past[:3]:
        await c.threads.get_state(thread, one["checkpoint"])
    await c.threads.get_state(thread, checkpoint_id=past[1]["checkpoint"]["checkpoint_id"])
    await c.threads.get_state(thread, select=["values", "next"])
    await c.threads.get_state(thread, past[1]["checkpoint"], select=["values.steps", "checkpoint"])
    await c.refused(
        c.threads.get_state(thread, checkpoint_id=NOBODY),
        c.threads.get_state(thread, {"checkpoint_id": NOBODY, "checkpoint_ns": ""}),
        c.threads.get_state(thread, checkpoint_id="no-uuid"),
        c.http.get(f"/threads/{thread}/state", params={"select": "colour"}),
        c.http.post(f"/threads/{thread}/state/checkpoint", json={}),
    )


async def states_past(c: Asking) -> None:
    """Their histories: some of it, before something, by metadata."""
    thread = await c.thread()
    await c.runs.wait(thread, "steps", input=IN, metadata={"mark": "x"})
    past = await c.threads.get_history(thread, limit=3)
    await c.refused(
        c.threads.get_history(thread, before=past[1]["checkpoint"]),
        c.threads.get_history(thread, before=past[1]["checkpoint"]["checkpoint_id"]),
        c.threads.get_history(thread, metadata={"source": "input"}),
        c.threads.get_history(thread, metadata={"step": 1}),
        c.threads.get_history(thread, metadata={"mark": "y"}),
        c.threads.get_history(thread, limit=1, select=["values", "metadata"]),
        c.threads.get_history(thread, checkpoint={"checkpoint_ns": ""}, limit=1),
        c.http.get(f"/threads/{thread}/history", params={"limit": "2"}),
        c.threads.get_history(thread, limit=0),
        c.threads.get_history(thread, limit=100000),
        c.threads.get_history(NOBODY),
        c.threads.get_history("no-uuid"),
    )


async def states_written(c: Asking) -> None:
    """Written as nodes, before a first run, at a checkpoint, and gone on from."""
    thread = await c.thread()
    await c.refused(c.threads.update_state(thread, {"steps": ["early"]}))
    await c.runs.wait(thread, "steps", input=IN)
    await c.threads.update_state(thread, {"steps": ["last"]})
    written = await c.threads.update_state(thread, {"steps": ["by me"]}, as_node="first")
    await c.threads.get_state(thread)
    await c.threads.get(thread)
    await c.runs.wait(thread, "steps", input=None)
    past = await c.threads.get_history(thread)
    start = past[-2]["checkpoint"]
    await c.threads.update_state(thread, {"steps": ["fork"]}, checkpoint=start)
    await c.threads.update_state(
        thread, {"steps": ["fork"]}, as_node="middle", checkpoint_id=written["checkpoint_id"]
    )
    await c.threads.get_state(thread)
    await c.runs.wait(thread, "steps", input=None, checkpoint=start)
    await c.runs.wait(thread, "steps", input=IN, checkpoint_id=start["checkpoint_id"])
    await c.threads.update_state(thread, None, as_node="first")
    state: dict[str, Any] = {"values": {"steps": ["x"]}}
    await c.refused(
        c.threads.update_state(thread, [{"steps": ["two"]}], as_node="first"),
        c.threads.update_state(thread, {"steps": ["x"]}, as_node="no_such_node"),
        c.threads.update_state(thread, {"steps": ["x"]}, checkpoint_id=NOBODY, as_node="first"),
        c.http.post(f"/threads/{thread}/state", json={"values": 3}),
        c.http.post(f"/threads/{thread}/state", json={}),
        c.http.post(f"/threads/{NOBODY}/state", json=state),
        c.http.post("/threads/no-uuid/state", json=state),
    )


async def states_inside(c: Asking) -> None:
    """The states of a subgraph that asks a question."""
    thread = await c.thread()
    await c.runs.wait(thread, "deep", input=IN)
    await c.threads.get(thread)
    state = await c.threads.get_state(thread, subgraphs=True)
    inside = (await c.threads.get_state(thread))["tasks"][0]["checkpoint"]
    await c.threads.get_state(thread, inside)
    await c.threads.get_history(thread, checkpoint=inside)
    assert state["tasks"]
    await c.threads.update_state(thread, {"steps": ["inside"]}, checkpoint=inside)
    await c.runs.wait(thread, "deep", command={"resume": "left"})
    await c.threads.get_state(thread, subgraphs=True)
    await c.threads.get_history(thread)
