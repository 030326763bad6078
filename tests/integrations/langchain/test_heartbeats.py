"""A LangGraph node with an idle timeout lives as long as its call waits its turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, TypedDict

import pytest
from langchain_core.runnables import RunnableLambda
from langgraph.errors import NodeTimeoutError
from langgraph.graph import END, START, StateGraph
from langgraph.types import TimeoutPolicy

from agentrt import Runtime
from agentrt.integrations._compat.langgraph import node_heartbeat
from agentrt.integrations.langchain import ChatAgentRT, calls, chat
from agentrt.integrations.langchain.calls import Heartbeat, beating
from tests.integrations.langchain.stub import HeldExecutor

IDLE_S = 0.2
BEATS = 10
BEAT_S = 0.05
"""By LangGraph's clock: all beats take more than twice as long as the node may be idle."""


class State(TypedDict):
    text: str


Ask = Callable[[ChatAgentRT], Awaitable[str]]


async def ainvoke(model: ChatAgentRT) -> str:
    return (await model.ainvoke("hello")).text


async def astream(model: ChatAgentRT) -> str:
    return "".join([chunk.text async for chunk in model.astream("hello")])


async def in_a_thread(model: ChatAgentRT) -> str:
    return (await asyncio.to_thread(model.invoke, "hello")).text


def graph_of(node: Any, timeout: TimeoutPolicy | None) -> Any:
    graph = StateGraph(State)
    graph.add_node("ask", node, timeout=timeout)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", END)
    return graph.compile()


def asking(model: ChatAgentRT, ask: Ask) -> Callable[[State], Awaitable[State]]:
    async def node(state: State) -> State:
        return {"text": await ask(model)}

    return node


@pytest.mark.parametrize("refresh_on", ["auto", "heartbeat"])
@pytest.mark.parametrize("ask", [ainvoke, astream, in_a_thread])
async def test_a_call_that_is_held_keeps_its_node_alive(
    monkeypatch: pytest.MonkeyPatch, ask: Ask, refresh_on: Any
) -> None:
    held = HeldExecutor()
    given = 0
    clock = SimpleNamespace(**{**vars(time), "monotonic": lambda: 0.0})
    monkeypatch.setattr("langgraph.pregel._retry.time", clock)  # it stands still while we wait

    def counted() -> Heartbeat | None:
        beat = node_heartbeat()
        assert beat is not None

        def count() -> None:
            nonlocal given
            given += 1
            clock.monotonic = lambda now=BEAT_S * given: now
            beat()
            if given == BEATS:
                held.let_go()

        return count

    monkeypatch.setattr(chat, "node_heartbeat", counted)
    policy = TimeoutPolicy(idle_timeout=IDLE_S, refresh_on=refresh_on)
    async with Runtime(held) as runtime:
        graph = graph_of(asking(ChatAgentRT(runtime=runtime), ask), policy)
        assert await graph.ainvoke({"text": ""}) == {"text": "one two three"}
    assert given >= BEATS


async def test_without_heartbeats_the_node_dies_and_its_call_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat, "node_heartbeat", lambda: None)
    held = HeldExecutor()
    async with Runtime(held) as runtime:
        model = ChatAgentRT(runtime=runtime)
        graph = graph_of(asking(model, ainvoke), TimeoutPolicy(idle_timeout=IDLE_S))
        with pytest.raises(NodeTimeoutError):
            await graph.ainvoke({"text": ""})
        assert (held.live, len(runtime.runs)) == (0, 0)


@pytest.mark.parametrize("timeout", [None, TimeoutPolicy(run_timeout=60)])
async def test_no_heart_beats_where_nobody_listens(timeout: TimeoutPolicy | None) -> None:
    found = []

    async def node(state: State) -> State:
        found.append(node_heartbeat())
        return state

    await graph_of(node, timeout).ainvoke({"text": ""})
    await RunnableLambda(node).ainvoke({"text": ""})
    await node({"text": ""})
    assert found == [None, None, None]


async def test_a_heart_beats_only_while_a_call_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "_PERIOD_S", 0.0)
    beats = asyncio.Queue[str]()
    with beating(None):
        pass
    with beating(lambda: beats.put_nowait("a")):
        assert [await beats.get() for _ in range(3)] == ["a", "a", "a"]
    given = beats.qsize()
    for _ in range(5):
        await asyncio.sleep(0)
    assert beats.qsize() == given
