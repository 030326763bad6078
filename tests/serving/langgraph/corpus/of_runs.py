"""Asks for runs: to start, wait for, find, join, cancel and delete them."""

from __future__ import annotations

from uuid import uuid4

from tests.serving.langgraph.corpus.asking import HI, IN, NOBODY, Asking, all_of


async def runs_waited(c: Asking) -> None:
    """Started and waited for, in a thread and without one."""
    thread = await c.thread()
    await c.runs.wait(thread, "steps", input=IN)
    await c.runs.wait(thread, "steps", input={"steps": ["again"]}, metadata={"m": 1})
    await c.runs.wait(thread, "chat", input=HI)
    await c.runs.wait(None, "steps", input=IN)
    await c.runs.wait(None, "chat", input=HI)
    await c.runs.wait(None, "fail", input=IN, raise_error=False)
    await c.runs.wait(None, "steps", input=IN, on_completion="keep")
    await c.runs.wait(None, "steps", input=IN, if_not_exists="create")
    await c.runs.wait(str(uuid4()), "steps", input=IN, if_not_exists="create")
    failed = await c.thread()
    await c.runs.wait(failed, "fail", input=IN, raise_error=False)
    await c.threads.get(failed)
    await c.threads.get_state(failed)
    await c.runs.list(failed)
    await c.runs.wait(failed, "steps", input=IN)
    await c.threads.get(failed)


async def runs_with_options(c: Asking) -> None:
    """With config, context, durability, and all the rest."""
    thread = await c.thread()
    await c.runs.wait(thread, "memory", input={"steps": []}, context={"who": "opt"})
    await c.runs.wait(
        thread,
        "memory",
        input={"steps": []},
        config={
            "configurable": {"who": "conf"}, "tags": ["a"], "recursion_limit": 30,
            "metadata": {"of": "config"},
        },
    )  # fmt: skip
    for durability in ("sync", "async", "exit"):
        await c.runs.wait(thread, "steps", input=IN, durability=durability)
    older = {"assistant_id": "steps", "input": IN, "checkpoint_during": False}
    await c.http.post(f"/threads/{thread}/runs/wait", json=older)
    await c.threads.get_history(thread, limit=2)
    await c.runs.wait(thread, "steps", input=IN, config={"recursion_limit": 2}, raise_error=False)
    made = await c.runs.create(thread, "steps", input=IN, after_seconds=3600, metadata={"m": 2})
    await c.runs.get(thread, made["run_id"])
    await c.refused(c.threads.update_state(thread, {"steps": ["x"]}, as_node="first"))
    await c.runs.cancel(thread, made["run_id"])
    await c.refused(
        c.runs.wait(
            thread, "memory", input={"steps": []}, context={"who": "a"},
            config={"configurable": {"who": "b"}},
        ),
    )  # fmt: skip


async def runs_refused(c: Asking) -> None:
    """Bodies that are no runs."""
    thread = await c.thread()
    path = f"/threads/{thread}/runs"
    for one in (path, f"{path}/wait", f"{path}/stream", "/runs", "/runs/wait", "/runs/stream"):
        await c.refused(
            c.http.post(one, json={}),
            c.http.post(one, json={"assistant_id": "no_such_graph", "input": IN}),
            c.http.post(one, json={"assistant_id": NOBODY, "input": IN}),
            c.http.post(one, json={"assistant_id": "steps", "stream_mode": "loud"}),
        )
    await c.refused(
        c.http.post(path, json={"assistant_id": 3}),
        c.http.post(path, json={"assistant_id": "steps", "multitask_strategy": "panic"}),
        c.http.post(path, json={"assistant_id": "steps", "config": 3}),
        c.http.post(path, json={"assistant_id": "steps", "after_seconds": "soon"}),
        c.http.post(path, json={"assistant_id": "steps", "on_completion": "shout"}),
        c.http.post(path, json={"assistant_id": "steps", "on_disconnect": "shout"}),
        c.http.post(path, json={"assistant_id": "steps", "if_not_exists": "shout"}),
        c.http.post(path, json={"assistant_id": "steps", "command": 3}),
        c.http.post(path, json={"assistant_id": "steps", "metadata": 3}),
        c.http.post(path, json={"assistant_id": "steps", "interrupt_before": 3}),
        c.http.post(path, json={"assistant_id": "steps", "webhook": 3}),
        c.runs.wait("no-uuid", "steps", input=IN),
        c.runs.wait(NOBODY, "steps", input=IN),
        c.runs.wait(thread, "steps", input=IN, checkpoint_id=NOBODY),
        c.runs.wait(thread, "steps", input=IN, checkpoint_id="no-uuid"),
        c.runs.wait(thread, "steps", input=IN, interrupt_before=["no_such_node"]),
        c.http.post("/runs/batch", json=[{"assistant_id": "no_such_graph"}]),
        c.http.post("/runs/batch", json={}),
    )


async def runs_found(c: Asking) -> None:
    """Listed, read, joined after their end, deleted."""
    thread = await c.thread()
    made = await c.runs.create(thread, "steps", input=IN, metadata={"n": 1})
    key = made["run_id"]
    await c.runs.join(thread, key)
    await c.runs.get(thread, key)
    await c.runs.join(thread, key)
    await c.runs.wait(thread, "steps", input=IN)
    await c.runs.list(thread)
    await c.runs.list(thread, limit=1)
    await c.runs.list(thread, limit=1, offset=1)
    await c.runs.list(thread, status="success", select=["run_id", "status"])
    await c.runs.list(thread, status="error")
    await c.threads.get(thread)
    await c.runs.delete(thread, key)
    await c.threads.get_state(thread)
    await c.refused(
        c.runs.get(thread, key),
        c.runs.join(thread, key),
        c.runs.delete(thread, key),
        c.runs.cancel(thread, key),
        all_of(c.runs.join_stream(thread, key)),
        c.runs.get(NOBODY, key),
        c.runs.get(thread, "no-uuid"),
        c.runs.list("no-uuid"),
        c.http.get(f"/threads/{thread}/runs", params={"status": "merry"}),
        c.http.get(f"/threads/{thread}/runs", params={"limit": 0}),
    )


async def runs_in_batches(c: Asking) -> None:
    """Several at once."""
    thread = await c.thread()
    made = await c.runs.create_batch(
        [
            {"assistant_id": "steps", "input": IN, "thread_id": thread},
            {"assistant_id": "steps", "input": IN, "metadata": {"n": 2}},
        ]
    )
    for one in made:
        await c.runs.join(one["thread_id"], one["run_id"])


async def runs_after_others(c: Asking) -> None:
    """In a thread that is busy: enqueued, refused, instead of the first, as if it had not been."""
    for strategy in ("enqueue", "reject", "interrupt", "rollback"):
        thread = await c.thread()
        parts = c.runs.stream(thread, "wait", input=IN, stream_mode="updates")
        await c.first(parts, "updates")
        await c.threads.get(thread)
        first = (await c.runs.list(thread))[0]["run_id"]
        if strategy == "reject":
            await c.refused(c.runs.wait(thread, "steps", input=IN, multitask_strategy=strategy))
            await c.refused(c.threads.update_state(thread, {"steps": ["x"]}))
            await c.runs.cancel(thread, first, wait=True)
        elif strategy == "enqueue":
            second = await c.runs.create(thread, "steps", input=IN, multitask_strategy=strategy)
            await c.runs.get(thread, second["run_id"])
            await c.runs.cancel(thread, first, wait=True)
            await c.runs.join(thread, second["run_id"])
        else:
            await c.runs.wait(thread, "steps", input=IN, multitask_strategy=strategy)
            await c.refused(c.runs.get(thread, first))
        await c.threads.get(thread)
        await c.threads.get_state(thread)


async def runs_cancelled(c: Asking) -> None:
    """Stopped, with each action, waiting for the end and not; before they begin; by many."""
    for action in ("interrupt", "rollback"):
        thread = await c.thread()
        parts = c.runs.stream(
            thread, "wait", input=IN, stream_mode="updates", on_disconnect="continue"
        )
        await c.first(parts, "updates")
        [run] = await c.runs.list(thread)
        await c.runs.cancel(thread, run["run_id"], wait=True, action=action)
        await c.refused(c.runs.get(thread, run["run_id"]))
        await c.threads.get(thread)
        await c.threads.get_state(thread)
        await c.refused(c.runs.join(thread, run["run_id"]))
        await c.refused(c.runs.cancel(thread, run["run_id"]))
    thread = await c.thread()
    made = await c.runs.create(thread, "steps", input=IN, after_seconds=3600)
    await c.runs.cancel(thread, made["run_id"])
    await c.runs.get(thread, made["run_id"])
    await c.threads.get(thread)
    await c.runs.join(thread, made["run_id"])
    keys = []
    for _ in range(2):
        run = await c.runs.create(thread, "steps", input=IN, after_seconds=3600)
        keys.append(run["run_id"])
    await c.runs.cancel_many(thread_id=thread, run_ids=keys)
    for key in keys:
        await c.runs.get(thread, key)
    await c.refused(
        c.http.post("/runs/cancel", json={}),
        c.http.post("/runs/cancel", json={"status": "merry"}),
        c.http.post("/runs/cancel", json={"thread_id": thread}),
        c.runs.cancel(NOBODY, NOBODY),
        c.runs.cancel(thread, NOBODY),
        c.http.post(f"/threads/{thread}/runs/{keys[0]}/cancel?action=burn", json=None),
    )


async def runs_left(c: Asking) -> None:
    """Runs whose stream a client leaves: cancelled if requested; and a run of a deleted thread."""
    thread = await c.thread()
    parts = c.runs.stream(thread, "wait", input=IN, stream_mode="updates")
    await c.first(parts, "updates")
    [run] = await c.runs.list(thread)
    await c.threads.delete(thread)
    await c.refused(c.runs.get(thread, run["run_id"]), c.threads.get(thread))


async def runs_cancelled_by_leaving(c: Asking) -> None:
    """Runs whose client disconnects, with and without ``on_disconnect`` cancel."""
    thread = await c.thread()
    parts = c.runs.stream(thread, "wait", input=IN, stream_mode="updates", on_disconnect="cancel")
    await c.first(parts, "updates")
    [run] = await c.runs.list(thread)
    await parts.aclose()
    await c.runs.join(thread, run["run_id"])
    await c.threads.get_state(thread)
    thread = await c.thread()
    parts = c.runs.stream(thread, "wait", input=IN, stream_mode="updates", on_disconnect="continue")
    await c.first(parts, "updates")
    await parts.aclose()
    [run] = await c.runs.list(thread, status="running")
    await c.runs.cancel(thread, run["run_id"], wait=True)
    await c.threads.get(thread)
