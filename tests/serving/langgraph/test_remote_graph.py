"""LangGraph's `RemoteGraph`: a graph of this server inside another program."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command
from langgraph_sdk import get_client, get_sync_client

from tests.serving.langgraph.graphs import TURN_S, Steps
from tests.serving.langgraph.runs.test_runs import DONE, IN
from tests.serving.langgraph.serve import Serving


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
