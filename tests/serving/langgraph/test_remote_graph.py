"""LangGraph's `RemoteGraph`: a graph of this server inside another program."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import orjson
import pytest
import pytest_asyncio
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command, interrupt
from langgraph_sdk import get_client, get_sync_client

from agentrt.serving.langgraph.database.interrupts import interrupts_in
from agentrt.serving.langgraph.protocol.routes import REPLAYED
from agentrt.serving.langgraph.runs.queue import RunQueue
from tests.serving.langgraph.graphs import GATES, TURN_S, Gated, Steps, ask
from tests.serving.langgraph.runs.test_runs import DONE, IN
from tests.serving.langgraph.serve import Serving, serving


@pytest_asyncio.fixture
async def remote(it: Serving) -> AsyncIterator[Callable[[str], RemoteGraph]]:
    async with get_client(url=it.url) as client:
        with get_sync_client(url=it.url) as sync_client:
            yield lambda name: RemoteGraph(name, client=client, sync_client=sync_client)


def in_thread() -> RunnableConfig:
    return {"configurable": {"thread_id": str(uuid4())}}


async def test_it_is_invoked_and_streamed(remote: Any) -> None:
    graph = remote("steps")
    assert await graph.ainvoke(IN) == DONE
    parts = [part async for part in graph.astream(IN, in_thread(), stream_mode="updates")]
    assert [list(part) for part in parts] == [["first"], ["sub"], ["last"]]
    inside = graph.astream(IN, stream_mode="values", subgraphs=True)
    assert any(namespace for namespace, _ in [part async for part in inside])
    tokens = remote("chat").astream({"messages": "hi"}, stream_mode="messages")
    assert len([chunk async for chunk, _ in tokens]) > 2


async def test_its_state_is_read_changed_and_gone_back_to(remote: Any) -> None:
    graph, config = remote("ask"), in_thread()
    asked = await graph.ainvoke(IN, config)
    state = await graph.aget_state(config)
    assert [one.value for one in state.interrupts] == [{"question": "which way?"}]
    assert state.next == ("ask",)
    assert asked["steps"] == ["in", "first"]
    done = await graph.ainvoke(Command(resume="right"), config)
    assert done["steps"][-2:] == ["answered right", "last"]
    history = [one async for one in graph.aget_state_history(config)]
    assert len(history) == 5
    past = await graph.aget_state(history[2].config)
    assert past.values == history[2].values
    forked = await graph.aupdate_state(history[2].config, {"steps": ["x"]}, as_node="first")
    assert (await graph.aget_state(forked)).values["steps"][-1] == "x"


async def test_it_draws_itself(remote: Any) -> None:
    graph = remote("steps")
    drawn = await asyncio.to_thread(graph.get_graph)
    assert list(drawn.nodes) == ["__start__", "first", "sub", "last", "__end__"]
    assert (await graph.aget_graph()).edges == drawn.edges
    assert await asyncio.to_thread(graph.invoke, IN) == DONE


async def test_it_is_a_node_of_another_graph(remote: Any) -> None:
    """Also one that asks: the question goes up to the graph around it."""
    graph = remote("steps")
    builder = StateGraph(Steps).add_node("remote", graph).add_edge(START, "remote")
    whole = builder.compile(checkpointer=InMemorySaver())
    result = await whole.ainvoke({"steps": ["in"]}, in_thread())
    assert result["steps"] == ["in", *DONE["steps"]]
    asking = remote("ask")
    builder = StateGraph(Steps).add_node("remote", asking).add_edge(START, "remote")
    whole = builder.compile(checkpointer=InMemorySaver())
    asked = await whole.ainvoke({"steps": ["in"]}, in_thread())
    assert asked["__interrupt__"][0].value == {"question": "which way?"}


@pytest.mark.parametrize("answer", ["right", {"way": "right"}, ["a", "b"], 5, False])
async def test_its_newest_streams_answer_a_question_with_any_value(
    remote: Any, answer: Any
) -> None:
    graph, config = remote("ask"), in_thread()

    async with asyncio.timeout(TURN_S):
        async with await graph.astream_events(IN, config, version="v3") as run:
            # The question comes on a connection of its own, and may end the values before the last.
            assert [values async for values in run.values]
            assert await run.interrupted()
        state = await graph.aget_state(config)
        assert state.values["steps"] == ["in", "first"]
        async with await graph.astream_events(Command(resume=answer), config, version="v3") as run:
            done = await run.output()
        assert done["steps"] == ["in", "first", f"answered {answer}", "last"]
        asked = await graph.ainvoke(IN, config)  # the thread has no question: input begins a run
        assert len(asked["steps"]) == 6


async def test_input_at_a_checkpoint_is_no_answer(it: Serving, remote: Any) -> None:
    graph, config = remote("ask"), in_thread()
    await graph.ainvoke(IN, config)
    [*_, first] = [one async for one in graph.aget_state_history(config)]
    place = first.config["configurable"]
    async with httpx.AsyncClient(base_url=it.url) as http:
        params = {"assistant_id": "ask", "input": IN, "checkpoint_id": place["checkpoint_id"]}
        command = {"id": 1, "method": "run.start", "params": params}
        answer = await http.post(f"/threads/{place['thread_id']}/commands", json=command)
        run = answer.json()["result"]["run_id"]
        await http.get(f"/threads/{place['thread_id']}/runs/{run}/join")
    state = await graph.aget_state(config)
    assert state.values["steps"] == ["in", "first"]
    assert state.next == ("ask",)


async def command(http: httpx.AsyncClient, thread: str, graph: str, value: Any) -> str:
    """Start a run with ``run.start``; return its id."""
    params = {"assistant_id": graph, "input": value}
    body = {"id": 1, "method": "run.start", "params": params}
    answer = (await http.post(f"/threads/{thread}/commands", json=body)).json()
    assert answer["type"] == "success", answer
    return str(answer["result"]["run_id"])


async def finished(http: httpx.AsyncClient, thread: str, run: str) -> Any:
    """Return the result of a run."""
    return (await http.get(f"/threads/{thread}/runs/{run}/join")).json()


async def test_input_in_a_thread_without_a_question_is_no_answer(it: Serving) -> None:
    """The thread is interrupted at a breakpoint, or because its run was cancelled."""
    thread = str(uuid4())
    async with httpx.AsyncClient(base_url=it.url, timeout=TURN_S) as http:
        started = {"assistant_id": "steps", "input": IN, "interrupt_before": ["last"]}
        started["if_not_exists"] = "create"
        await http.post(f"/threads/{thread}/runs/wait", json=started)
        assert (await http.get(f"/threads/{thread}")).json()["status"] == "interrupted"
        run = await command(http, thread, "steps", {"steps": ["again"]})
        steps = (await finished(http, thread, run))["steps"]
        assert steps == ["in", "first", "inner", "again", "first", "inner", "last"]

        thread, gate = str(uuid4()), str(uuid4())
        run = await command(http, thread, "gate", {"gate": gate, "steps": ["in"]})
        await GATES.reached(gate)
        await http.post(f"/threads/{thread}/runs/{run}/cancel", params={"wait": "1"})
        GATES.open(gate)
        run = await command(http, thread, "gate", {"gate": gate, "steps": ["again"]})
        steps = (await finished(http, thread, run))["steps"]
        assert steps == ["in", "before", "again", "before", "waited", "after"]


def two_questions() -> StateGraph[Any]:
    """Two nodes that ask at once."""
    builder = StateGraph(Steps)
    for name in ("left", "right"):
        builder.add_node(name, lambda state, name=name: {"steps": [f"{name} {interrupt(name)}"]})
        builder.add_edge(START, name)
    return builder


async def _waiting(state: Gated) -> dict[str, Any]:
    await GATES.passing(state["gate"])
    return {}


def late_question() -> StateGraph[Any]:
    """A question after a gate."""
    builder = StateGraph(Gated).add_node("wait", _waiting).add_node("ask", ask)
    return builder.add_edge(START, "wait").add_edge("wait", "ask")


async def test_a_question_stays_open_after_an_answer_that_failed(tmp_path: Path) -> None:
    """LangGraph takes answers to two questions by their ids only."""
    thread = str(uuid4())
    with serving({"two": two_questions()}, tmp_path / "agentrt.db") as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=TURN_S) as http:
            await finished(http, thread, await command(http, thread, "two", IN))
            failed = await finished(http, thread, await command(http, thread, "two", "yes"))
            assert "multiple pending interrupts" in failed["__error__"]["message"]
            tasks = (await http.get(f"/threads/{thread}")).json()["interrupts"]
            ids = {each["id"]: f"to {each['value']}" for each in interrupts_in(tasks)}
            assert len(ids) == 2
            done = await finished(http, thread, await command(http, thread, "two", ids))
            assert done["steps"] == ["in", "left to left", "right to right"]


async def test_an_answer_may_come_before_the_end_of_the_run_that_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread, gate = str(uuid4()), str(uuid4())
    settled = RunQueue.settled

    async def opening(queue: RunQueue, key: str) -> bool:
        waiting = asyncio.ensure_future(settled(queue, key))
        GATES.open(gate)
        return await waiting

    with serving({"late": late_question()}, tmp_path / "agentrt.db") as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=TURN_S) as http:
            await command(http, thread, "late", {"gate": gate, "steps": ["in"]})
            await GATES.reached(gate)
            monkeypatch.setattr(RunQueue, "settled", opening)
            run = await command(http, thread, "late", "right")
            assert (await finished(http, thread, run))["steps"] == ["in", "answered right"]


async def asked_for(http: httpx.AsyncClient, thread: str, **asked: Any) -> list[tuple[str, Any]]:
    """Return what a stream has before it waits: the methods of its events, with what they say."""
    events: list[tuple[str, Any]] = []
    path = f"/threads/{thread}/stream/events"
    async with asyncio.timeout(TURN_S), http.stream("POST", path, json=asked) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data:"):
                event = orjson.loads(line[5:])
                data = event["params"]["data"]
                events.append((event["method"], data.get("event", data.get("payload"))))
            if line == f": {REPLAYED}":
                break
    return events


async def test_its_newest_streams_take_many_turns_of_a_thread(remote: Any) -> None:
    """Each turn gets its own values, question and end, and not those of earlier turns."""
    graph, config = remote("ask"), in_thread()
    for turn in range(1, 4):
        async with asyncio.timeout(TURN_S):
            async with await graph.astream_events(IN, config, version="v3") as run:
                values = [len(values.get("steps", ())) async for values in run.values]
                assert values[-1] == 4 * turn - 2
                assert await run.interrupted()
                assert len(await run.interrupts()) == 1
            answer: Command[Any] = Command(resume=str(turn))
            async with await graph.astream_events(answer, config, version="v3") as run:
                done = await run.output()
        assert done["steps"][-2:] == [f"answered {turn}", "last"]
        assert len(done["steps"]) == 4 * turn


async def test_its_newest_streams_end_at_the_second_question(remote: Any) -> None:
    """The answer to the first question begins a run that asks the second one."""
    graph, config = remote("twice"), in_thread()
    for given, question in ((IN, "one"), (Command(resume="a"), "two")):
        async with (
            asyncio.timeout(TURN_S),
            await graph.astream_events(given, config, version="v3") as run,
        ):
            assert [values async for values in run.values]
            assert [each["value"] for each in await run.interrupts()] == [question]
    async with await graph.astream_events(Command(resume="b"), config, version="v3") as run:
        assert (await run.output())["steps"] == ["in", "a", "b"]


async def test_who_watches_for_questions_sees_how_the_thread_stands(it: Serving) -> None:
    """The last question alone, and the end of the last run; other streams have all that was."""
    thread = str(uuid4())
    watched = {"channels": ["lifecycle", "input"]}
    everything = {"channels": ["lifecycle", "input", "values"]}
    async with httpx.AsyncClient(base_url=it.url, timeout=TURN_S) as http:

        async def turn(given: Any) -> None:
            params = {"assistant_id": "twice", "input": given}
            command = {"id": 1, "method": "run.start", "params": params}
            answer = (await http.post(f"/threads/{thread}/commands", json=command)).json()
            await http.get(f"/threads/{thread}/runs/{answer['result']['run_id']}/join")

        def questions(events: list[tuple[str, Any]]) -> list[Any]:
            return [data for method, data in events if method == "input.requested"]

        await turn(IN)
        assert questions(await asked_for(http, thread, **watched)) == ["one"]
        await turn("a")
        assert questions(await asked_for(http, thread, **watched)) == ["two"]
        assert questions(await asked_for(http, thread, **everything)) == ["one", "two"]
        await turn("b")
        assert questions(await asked_for(http, thread, **watched)) == []
        await turn(IN)
        await turn("a")
        await turn("b")
        for asked, ends in ((watched, 1), (everything, 2)):
            events = await asked_for(http, thread, **asked)
            assert events.count(("lifecycle", "completed")) == ends
