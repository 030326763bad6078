"""Streams of runs: every mode, joining, coming back, going away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import uuid4

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import UnprocessableEntityError
from langgraph_sdk.schema import StreamPart

from agentrt.serving.langgraph.runs import streams
from agentrt.serving.langgraph.runs.streams import EventLog, FellBehindError, StreamEvent
from tests.serving.langgraph.graphs import GATES, TURN_S
from tests.serving.langgraph.runs.test_runs import IN, a_thread, at_a_gate, given
from tests.serving.langgraph.serve import Serving

HI: Any = {"messages": [{"role": "user", "content": "hi"}]}


async def streamed(
    client: LangGraphClient, graph: str, modes: Any, **more: Any
) -> list[StreamPart]:
    thread = await a_thread(client)
    given = more.pop("input", IN)
    stream = client.runs.stream(thread, graph, input=given, stream_mode=modes, **more)
    return [part async for part in stream]


def names(parts: Sequence[StreamPart]) -> list[str]:
    return [part.event for part in parts]


@pytest.mark.parametrize("mode", ["checkpoints", "debug"])
async def test_checkpoints_say_where_they_are(client: LangGraphClient, mode: Any) -> None:
    """Checkpoints have the form of the history; a task with a subgraph has its namespace."""
    thread = (await client.threads.create())["thread_id"]
    stream = client.runs.stream(thread, "nested", input=IN, stream_mode=mode, stream_subgraphs=True)
    found = [part.data for part in await _all(stream) if part.event == mode]
    if mode == "debug":
        found = [one["payload"] for one in found if one["type"] == "checkpoint"]
    history = list(await client.threads.get_history(thread))
    assert [one["checkpoint"] for one in found] == [one["checkpoint"] for one in reversed(history)]
    parents = [None, *(one["checkpoint"] for one in found[:-1])]
    assert [one["parent_checkpoint"] for one in found] == parents
    (inside,) = [task for one in found for task in one["tasks"] if "checkpoint" in task]
    place = {"thread_id": thread, "checkpoint_ns": f"sub:{inside['id']}"}
    assert inside["checkpoint"] == place
    whole: Any = await client.threads.get_state(thread, history[-2]["checkpoint"])
    assert whole["tasks"][0]["checkpoint"] == place
    assert whole["metadata"]["thread_id"] == thread


@pytest.mark.parametrize("modes", ["events", '["updates", "events"]'])
async def test_joining_a_stream_shows_what_is_to_come_of_its_modes(
    client: LangGraphClient, modes: Any
) -> None:
    """Modes that the run was not started with are left out. JavaScript sends a list."""
    thread, run, gate = await at_a_gate(client, stream_mode=["updates", "values"])
    joining = asyncio.create_task(_all(client.runs.join_stream(thread, run, stream_mode=modes)))
    await _following(client, thread, run)
    GATES.open(gate)
    updates = [{"wait": {"steps": ["waited"]}}, {"after": {"steps": ["after"]}}]
    assert [part.data for part in await joining] == (updates if "updates" in modes else [])


async def test_a_whole_message(client: LangGraphClient) -> None:
    parts = await streamed(client, "bare", "messages", input=HI)
    assert names(parts) == ["metadata", "messages/metadata", "messages/complete"]
    assert parts[-1].data[0]["content"] == "hello"


@pytest.mark.parametrize("modes", [["values"], ["values", "events"]])
async def test_values_outside_a_graphs_output_are_not_sent(
    client: LangGraphClient, modes: Any
) -> None:
    """As on LangGraph's own server, the state has them."""
    thread = await a_thread(client)
    stream = client.runs.stream(thread, "order", input=given(amount=1.25), stream_mode=modes)
    values = [part.data async for part in stream if part.event == "values"]
    assert values == [{"total": 2.5}]
    (run,) = await client.runs.list(thread)
    assert await client.runs.join(thread, run["run_id"]) == {"total": 2.5}
    kept: Any = await client.threads.get(thread)
    assert kept["values"] == {"amount": 1.25, "secret": "of the house", "total": 2.5}


# -- joining ------------------------------------------------------------------------------


async def _all(stream: Any) -> list[StreamPart]:
    return [part async for part in stream]


async def _following(client: LangGraphClient, thread: str, run: str) -> None:
    """Questions are answered in turn: when some are, the one before has been taken up."""
    for _ in range(20):
        await client.runs.get(thread, run)


async def test_a_resumable_stream_is_replayed_from_an_id(client: LangGraphClient) -> None:
    """1. A run streams with ids. 2. Its end is asked for again, after it has ended."""
    parts = await streamed(client, "steps", ["values", "updates"], stream_resumable=True)
    assert [part.id for part in parts] == [str(n) for n in range(1, len(parts) + 1)]
    run = parts[0].data["run_id"]
    thread = (await client.threads.search(sort_by="created_at", limit=1))[0]["thread_id"]
    for at in ("-1", "3", str(len(parts))):
        again = await _all(client.runs.join_stream(thread, run, last_event_id=at))
        assert again == parts[max(0, int(at)) :]
    only = client.runs.join_stream(thread, run, last_event_id="-1", stream_mode="values")
    assert {part.event for part in await _all(only)} == {"values"}
    assert await _all(client.runs.join_stream(thread, run)) == []


@pytest.mark.parametrize(
    ("bad", "why"), [("1.5", "number of an event"), ("9" * 30, "number"), ("1", "stream_resumable")]
)
async def test_a_bad_id_is_refused(client: LangGraphClient, bad: str, why: str) -> None:
    thread = await a_thread(client)
    run = await client.runs.create(thread, "steps", input=IN)
    with pytest.raises(UnprocessableEntityError, match=f"Last-Event-ID.*{why}"):
        await _all(client.runs.join_stream(thread, run["run_id"], last_event_id=bad))


async def test_a_threads_stream_has_all_its_runs(client: LangGraphClient) -> None:
    thread = await a_thread(client)
    parts: list[StreamPart] = []
    listening = asyncio.Event()

    async def listen() -> None:
        stream = await client.threads.join_stream(thread)
        listening.set()
        async for part in stream:
            parts.append(part)
            if part.data.get("status") == "run_done" and len(parts) > 8:
                return

    task = asyncio.create_task(listen())
    await listening.wait()
    async with asyncio.timeout(TURN_S):
        while not task.done():  # the stream begins when its request is there
            await client.runs.wait(thread, "bare", input=HI)
    marks = [part.data["status"] for part in parts if "status" in part.data]
    assert marks == ["run_started", "run_done"] * (len(marks) // 2)
    assert "values" in names(parts)


async def test_a_threads_stream_tells_which_events_it_misses(
    client: LangGraphClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EventLog, "follow", behind)
    thread = await a_thread(client)
    parts: list[StreamPart] = []
    listening = asyncio.Event()

    async def listen() -> None:
        stream = await client.threads.join_stream(thread)
        listening.set()
        async for part in stream:
            parts.append(part)
            if part.data.get("status") == "run_done":
                return

    task = asyncio.create_task(listen())
    await listening.wait()
    async with asyncio.timeout(TURN_S):
        while not task.done():  # the stream begins when its request is there
            await client.runs.wait(thread, "bare", input=HI)
    assert [part.event for part in parts] == ["metadata", "error", "metadata"]
    assert parts[1].data == {"error": "FellBehindError", "message": "they are gone"}


async def behind(log: EventLog, after: int) -> AsyncIterator[StreamEvent]:
    """The events of a run for a reader that is too slow."""
    raise FellBehindError("they are gone")
    yield


async def test_a_reader_that_falls_behind_does_not_cancel_the_run(
    client: LangGraphClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EventLog, "follow", behind)
    thread, gate = await a_thread(client), str(uuid4())
    given: Any = {"gate": gate, "steps": []}
    stream = client.runs.stream(thread, "gate", input=given, on_disconnect="cancel")
    assert names(await _all(stream)) == ["error"]
    (run,) = await client.runs.list(thread)
    GATES.open(gate)
    await client.runs.join(thread, run["run_id"])
    assert (await client.runs.get(thread, run["run_id"]))["status"] == "success"


async def test_an_event_that_is_larger_than_the_buffer_reaches_its_readers(
    client: LangGraphClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_BYTES", 1000)
    thread, run, gate = await at_a_gate(client, "x" * 2000, stream_mode="values")
    joining = asyncio.create_task(_all(client.runs.join_stream(thread, run)))
    await _following(client, thread, run)
    GATES.open(gate)
    parts = await joining
    assert [part.data["steps"][2:] for part in parts] == [["waited"], ["waited", "after"]]


# -- going away ---------------------------------------------------------------------------


@pytest.mark.parametrize("on_disconnect", ["cancel", "continue"])
async def test_a_client_that_waits_and_goes_away(
    client: LangGraphClient, it: Serving, on_disconnect: str
) -> None:
    """The corpus leaves streams."""
    thread, gate = await a_thread(client), str(uuid4())
    body = {
        "assistant_id": "gate",
        "input": {"gate": gate, "steps": []},
        "on_disconnect": on_disconnect,
    }
    async with httpx.AsyncClient(base_url=it.url, timeout=60) as http:
        asking = asyncio.create_task(http.post(f"/threads/{thread}/runs/wait", json=body))
        await GATES.reached(gate)
        asking.cancel()
        await asyncio.wait([asking])
    (run,) = await client.runs.list(thread)
    if on_disconnect == "continue":
        GATES.open(gate)
    await client.runs.join(thread, run["run_id"])
    status = (await client.runs.get(thread, run["run_id"]))["status"]
    assert status == ("interrupted" if on_disconnect == "cancel" else "success")


async def test_a_stream_that_is_left_cancels_its_run_when_told(
    client: LangGraphClient, it: Serving
) -> None:
    thread, run, _ = await at_a_gate(client, stream_resumable=True)
    where = f"/threads/{thread}/runs/{run}/stream?cancel_on_disconnect=true"
    async with (
        httpx.AsyncClient(base_url=it.url, timeout=60) as http,
        http.stream("GET", where, headers={"Last-Event-ID": "-1"}) as response,
    ):
        async for _ in response.aiter_lines():
            break
    await client.runs.join(thread, run)
    assert (await client.runs.get(thread, run))["status"] == "interrupted"
