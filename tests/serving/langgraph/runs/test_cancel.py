"""Stopping runs, and forgetting them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from langgraph.graph import START, StateGraph
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import NotFoundError

from agentrt.serving.langgraph.database.threads import Threads
from agentrt.serving.langgraph.runs.execution import Execution
from agentrt.serving.langgraph.runs.streams import Action, LiveRun
from agentrt.steady import Alarm
from tests.serving.langgraph.graphs import GATES, TURN_S, Gated, gate_graph
from tests.serving.langgraph.runs.test_runs import IN, a_thread
from tests.serving.langgraph.serve import Serving, serving


async def at_a_gate(client: LangGraphClient) -> tuple[str, str]:
    thread, gate = await a_thread(client), str(uuid4())
    await client.runs.wait(thread, "steps", input=IN)
    given: Any = {"gate": gate, "steps": ["2"]}
    run = await client.runs.create(thread, "gate", input=given)
    await GATES.reached(gate)
    return thread, run["run_id"]


async def test_an_answer_that_is_rolled_back_can_be_given_again(client: LangGraphClient) -> None:
    thread = await a_thread(client)
    await client.runs.wait(thread, "ask", input=IN)
    run = await client.runs.create(thread, "ask", command={"resume": "x"}, after_seconds=3600)
    await client.runs.cancel(thread, run["run_id"], wait=True, action="rollback")
    done = await client.runs.wait(thread, "ask", command={"resume": "y"})
    assert isinstance(done, dict)
    assert done["steps"] == ["in", "first", "answered y", "last"]


async def test_the_start_time_of_a_run_that_is_cancelled_is_forgotten(
    client: LangGraphClient,
) -> None:
    """Its timer would wake the server up again and again, for up to 30 days."""

    def alarms() -> list[Alarm]:
        gc.collect()
        return [each for each in gc.get_objects() if type(each) is Alarm]

    thread, before = await a_thread(client), {id(each) for each in alarms()}
    run = await client.runs.create(thread, "steps", input=IN, after_seconds=3600)
    [alarm] = [weakref.ref(each) for each in alarms() if id(each) not in before]
    await client.runs.cancel(thread, run["run_id"], wait=True)
    async with asyncio.timeout(TURN_S):
        while gc.collect() >= 0 and alarm() is not None:
            await asyncio.sleep(0.01)


async def test_many_runs_are_stopped_at_once(client: LangGraphClient) -> None:
    threads = [await at_a_gate(client) for _ in range(3)]
    thread, run = threads[0]
    await client.runs.cancel_many(thread_id=thread, run_ids=[run, str(uuid4())])
    await client.runs.join(thread, run)
    assert (await client.runs.get(thread, run))["status"] == "interrupted"
    await client.runs.cancel_many(status="running")
    for thread, run in threads[1:]:
        await client.runs.join(thread, run)
        assert (await client.runs.get(thread, run))["status"] == "interrupted"


@pytest.mark.parametrize(
    ("fields", "status"),
    [("run_ids", "pending"), ("thread_id", "all"), ("run_ids thread_id", "all"), ("run_ids", None)],
)
async def test_a_cancellation_by_id_and_by_status_is_refused(
    client: LangGraphClient, fields: str, status: str | None
) -> None:
    """No field is ignored, because other runs than the client means would be cancelled."""
    thread = await a_thread(client)
    run = await client.runs.create(thread, "steps", input=IN, after_seconds=3600)
    named: dict[str, Any] = {"thread_id": thread, "run_ids": [run["run_id"]]}
    body = {**{name: named[name] for name in fields.split()}, "status": status}
    answer = await client.http.client.post("/runs/cancel", json=body)
    assert (answer.status_code, "only status" in answer.json()["detail"]) == (422, True)
    assert (await client.runs.get(thread, run["run_id"]))["status"] == "pending"
    await client.threads.delete(thread)


async def test_a_stopped_run_stops_its_program(client: LangGraphClient, it: Serving) -> None:
    """Nothing of it is left in the runtime: no row, no task."""
    thread, run = await at_a_gate(client)
    assert it.server is not None
    runtime = it.server.runtime
    (program,) = [one for one in runtime.runs.values() if one.row.session == thread]
    await client.runs.cancel(thread, run, wait=True)
    assert str(program.state) == "cancelled"
    assert program.task is not None
    assert program.task.done()
    assert program.id not in runtime.table


@pytest.mark.parametrize("first", ["interrupt", "rollback", "shutdown"])
async def test_a_second_stop_does_not_interrupt_the_first(first: Action) -> None:
    """The run waits for the end of its program, which may take a while."""
    begun, stopping, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow_to_stop() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopping.set()
            await over.wait()

    task = asyncio.create_task(slow_to_stop())
    live = LiveRun(cast("Any", None), cast("Any", None), task=task, stoppable=True)
    await begun.wait()
    live.stop(first)
    await stopping.wait()
    live.stop("rollback")
    over.set()
    await task
    assert live.action == ("rollback" if first == "interrupt" else first)


async def stubborn_at_first(state: Gated) -> dict[str, Any]:
    """Go on when the run is stopped, some times."""
    for _ in range(5):  # LangGraph itself cancels its nodes more than once
        with contextlib.suppress(asyncio.CancelledError):
            await GATES.passing(state["gate"])
    await asyncio.Event().wait()
    return {"steps": ["stubborn"]}


async def stubborn(state: Gated) -> dict[str, Any]:
    """Go on however often the run is stopped, until the test opens the gate."""
    waiting = asyncio.create_task(GATES.passing(state["gate"]))
    while not waiting.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(waiting)
    await GATES.passing(f"{state['gate']} passed")
    return {"steps": ["stubborn"]}


async def beside(state: Gated) -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


@pytest.mark.parametrize("action", ["interrupt", "rollback"])
@pytest.mark.parametrize("node", [stubborn_at_first, stubborn])
async def test_a_run_stops_although_a_node_ignores_the_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: Any, node: Any
) -> None:
    """The thread then takes the next run, and a node that runs on does not change the thread."""
    monkeypatch.setattr("agentrt.runtime.run._AGAIN_S", 0.01)
    graph = StateGraph(Gated).add_node("before", lambda _: {"steps": ["before"]})
    graph.add_node("node", node).add_edge(START, "before").add_edge("before", "node")
    if node is stubborn:
        graph.add_node("beside", beside).add_edge("before", "beside")
    with serving({"graph": graph, "gate": gate_graph()}, tmp_path / "a.db") as it:
        async with get_client(url=it.url) as client:
            thread, gate, next_gate = await a_thread(client), str(uuid4()), str(uuid4())
            given: Any = {"gate": gate, "steps": ["in"]}
            run = (await client.runs.create(thread, "graph", input=given))["run_id"]
            await GATES.reached(gate)
            await client.runs.cancel(thread, run, wait=True, action=action)
            kept: Any = await client.threads.get(thread)
            assert kept["status"] == ("interrupted" if action == "interrupt" else "idle")
            if node is stubborn:
                GATES.open(gate)
                GATES.open(f"{gate} passed")
                await GATES.reached(f"{gate} passed")
            GATES.open(next_gate)
            given = {"gate": next_gate, "steps": ["again"]}
            done: Any = await client.runs.wait(thread, "gate", input=given)
            before = ["in", "before"] if action == "interrupt" else []
            assert done["steps"] == [*before, "again", "before", "waited", "after"]


async def hold_on(state: Gated) -> dict[str, Any]:
    """Wait at the gate when the run is stopped."""
    try:
        await GATES.passing(f"{state['gate']} begun")
        await asyncio.Event().wait()
    finally:
        await GATES.passing(state["gate"])
    return {}


@pytest.mark.parametrize("at", ["stopping", "storing"])
async def test_a_rollback_counts_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """A client interrupts a run, and rolls it back while the run's program still stops, or while
    the run's end is being stored.
    """
    # The node may wait at its gate for as long as a busy machine takes.
    monkeypatch.setattr("agentrt.runtime.run._AGAIN_S", 3600.0)
    storing, update_state = str(uuid4()), Threads.update_state

    async def update_and_wait(self: Threads, *args: Any) -> None:
        await update_state(self, *args)
        if at == "storing":
            await GATES.passing(storing)

    graph = StateGraph(Gated).add_node("before", lambda _: {"steps": ["before"]})
    graph.add_node("hold", hold_on).add_edge(START, "before").add_edge("before", "hold")
    with serving({"slow": graph}, tmp_path / "a.db") as it:
        async with get_client(url=it.url) as client:
            thread, gate = await a_thread(client), str(uuid4())
            given: Any = {"gate": gate, "steps": ["in"]}
            run = (await client.runs.create(thread, "slow", input=given))["run_id"]
            GATES.open(f"{gate} begun")
            await GATES.reached(f"{gate} begun")
            monkeypatch.setattr(Threads, "update_state", update_and_wait)
            await client.runs.cancel(thread, run)
            await GATES.reached(gate)
            if at == "storing":
                GATES.open(gate)
                await GATES.reached(storing)
            await client.runs.cancel(thread, run, action="rollback")
            GATES.open(gate)
            GATES.open(storing)
            await client.runs.join(thread, run)
            with pytest.raises(NotFoundError):
                await client.runs.get(thread, run)
            assert (await client.threads.get_state(thread))["values"] == {}
            assert (await client.threads.get(thread))["status"] == "idle"


async def test_a_run_that_has_ended_when_the_server_stops_was_not_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stops while it reads the thread's state, to store it with the run's end."""
    reading, read = threading.Event(), Execution._thread_state

    async def read_and_wait(self: Execution) -> dict[str, Any]:
        state = await read(self)
        reading.set()
        while self._live.action is None:
            await asyncio.sleep(0)
        return state

    monkeypatch.setattr(Execution, "_thread_state", read_and_wait)
    graph = (
        StateGraph(Gated).add_node("node", lambda _: {"steps": ["node"]}).add_edge(START, "node")
    )
    given: Any = {"steps": ["in"]}
    with serving({"graph": graph}, tmp_path / "a.db") as it:
        async with get_client(url=it.url) as client:
            thread = await a_thread(client)
            run = (await client.runs.create(thread, "graph", input=given))["run_id"]
            await asyncio.to_thread(reading.wait, TURN_S)
    with serving({"graph": graph}, tmp_path / "a.db") as it:
        async with get_client(url=it.url) as client:
            result: Any = await client.runs.join(thread, run)
            assert result["steps"] == ["in", "node"]
            assert (await client.runs.get(thread, run))["status"] == "success"
            assert (await client.threads.get(thread))["status"] == "idle"


STOPPED: Any = {"gate": "", "steps": ["in", "first", "inner", "last", "2", "before"]}


@pytest.mark.parametrize("action", ["interrupt", "rollback"])
async def test_a_client_that_waits_for_a_stopped_run_gets_the_threads_values(
    client: LangGraphClient, action: Any
) -> None:
    """By wait, join and join_stream alike; the stream ends without an error."""
    thread, gate = await a_thread(client), str(uuid4())
    await client.runs.wait(thread, "steps", input=IN)
    given: Any = {"gate": gate, "steps": ["2"]}
    waiting = asyncio.create_task(client.runs.wait(thread, "gate", input=given))
    await GATES.reached(gate)
    run = (await client.runs.list(thread))[0]["run_id"]
    joining = asyncio.create_task(client.runs.join(thread, run))
    following = asyncio.create_task(_events(client.runs.join_stream(thread, run)))
    for _ in range(4):  # those two open connections first: they are there before the run may go
        await client.threads.get(thread)
    await client.runs.cancel(thread, run, wait=True, action=action)
    steps = STOPPED["steps"] if action == "interrupt" else STOPPED["steps"][:4]
    for result in (await waiting, await joining):
        assert isinstance(result, dict)
        assert result["steps"] == steps
    assert "error" not in await following
    if action == "interrupt":
        again: Any = await client.runs.join(thread, run)
        assert again["steps"] == steps


async def _events(stream: Any) -> list[str]:
    return [part.event async for part in stream]


async def test_a_run_that_is_forgotten_is_stopped_first(client: LangGraphClient) -> None:
    thread, run = await at_a_gate(client)
    await client.runs.delete(thread, run)
    with pytest.raises(NotFoundError):
        await client.runs.get(thread, run)
    kept: Any = await client.threads.get(thread)
    assert (kept["status"], kept["values"]["steps"][-1]) == ("interrupted", "before")
