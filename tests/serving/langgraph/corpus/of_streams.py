"""Asks for the streams of runs and of threads."""

from __future__ import annotations

from tests.serving.langgraph.corpus.asking import HI, IN, NOBODY, Asking, all_of

_MODES = ("values", "updates", "messages", "messages-tuple", "events", "tasks", "checkpoints")


async def streams_of_modes(c: Asking) -> None:
    """Each mode of a run alone, without a thread."""
    for mode in (*_MODES, "debug", "custom"):
        await all_of(c.runs.stream(None, "steps", input=IN, stream_mode=mode))


async def streams_of_other_modes(c: Asking) -> None:
    """Modes of newer clients, in older streams."""
    for mode in ("tools", "lifecycle"):
        await c.refused(all_of(c.runs.stream(None, "chat", input=HI, stream_mode=mode)))


async def streams_of_messages(c: Asking) -> None:
    """A model's tokens."""
    for mode in ("messages", "messages-tuple", "values", "updates", ["messages", "values"]):
        await all_of(c.runs.stream(None, "chat", input=HI, stream_mode=mode))


async def streams_of_subgraphs(c: Asking) -> None:
    """Each mode, with the graphs inside."""
    for mode in ("values", "updates", "messages", "tasks", "checkpoints", "debug", "custom"):
        await all_of(
            c.runs.stream(None, "nested", input=IN, stream_mode=mode, stream_subgraphs=True)
        )
    thread = await c.thread()
    await all_of(
        c.runs.stream(thread, "deep", input=IN, stream_mode="updates", stream_subgraphs=True)
    )


async def streams_of_several(c: Asking) -> None:
    """Modes together, in a thread."""
    for modes in (["values", "updates"], ["updates", "custom"], ["tasks", "checkpoints", "values"]):
        thread = await c.thread()
        await all_of(c.runs.stream(thread, "steps", input=IN, stream_mode=modes))
        await c.threads.get(thread)


async def streams_of_ends(c: Asking) -> None:
    """Runs that fail, ask, are stopped at nodes."""
    for name in ("fail", "ask", "twice", "fan"):
        for mode in ("values", "updates", "tasks"):
            thread = await c.thread()
            await all_of(c.runs.stream(thread, name, input=IN, stream_mode=mode))
    thread = await c.thread()
    await all_of(
        c.runs.stream(thread, "steps", input=IN, stream_mode="updates", interrupt_before=["last"])
    )
    await all_of(c.runs.stream(thread, "steps", input=None, stream_mode="updates"))


async def streams_joined(c: Asking) -> None:
    """Followed afterwards, from the start, from an event on, in some modes."""
    thread = await c.thread()
    run = await c.runs.create(
        thread, "steps", input=IN, stream_mode=["updates", "values"], stream_resumable=True
    )
    key = run["run_id"]
    await c.runs.join(thread, key)
    await all_of(c.runs.join_stream(thread, key, last_event_id="-1"))
    await all_of(c.runs.join_stream(thread, key, last_event_id="-1", stream_mode="updates"))
    await all_of(c.runs.join_stream(thread, key, last_event_id="-1", stream_mode="custom"))
    await all_of(c.runs.join_stream(thread, key))
    plain = await c.runs.create(thread, "steps", input=IN)
    await c.runs.join(thread, plain["run_id"])
    await all_of(c.runs.join_stream(thread, plain["run_id"]))
    await all_of(c.runs.join_stream(thread, plain["run_id"], stream_mode="updates"))
    await c.refused(
        all_of(c.runs.join_stream(thread, NOBODY)),
        all_of(c.runs.join_stream(thread, "no-uuid")),
        c.threads.join_stream(NOBODY),
        c.http.get(f"/threads/{thread}/runs/{key}/stream?stream_mode=loud"),
    )


async def streams_cancelled(c: Asking) -> None:
    """A stream of a run that is stopped ends."""
    thread = await c.thread()
    parts = c.runs.stream(thread, "wait", input=IN, stream_mode=["updates", "values"])
    async for part in parts:
        if part.event == "updates":
            [run] = await c.runs.list(thread)
            await c.runs.cancel(thread, run["run_id"])
    await c.runs.join(thread, run["run_id"])
    await all_of(c.runs.join_stream(thread, run["run_id"]))
