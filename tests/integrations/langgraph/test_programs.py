"""What a program is: its type, session, states and ends; what is lost, and what is not."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from agentrt.graph import NodeKind, NodeState
from agentrt.runtime.run import Run, RunState
from tests.integrations.langgraph.probe import Probe, State, calls, edges, lone


@pytest.mark.parametrize("sync", [False, True])
async def test_a_question_ends_the_program_and_its_answer_begins_another(
    model: Probe, runs: list[Run], sync: bool
) -> None:
    """1. A sibling finishes, the program is interrupted, with the question open in its DAG.
    2. The resume is a program of its own in the same session; the node runs again from its top.
    """

    async def asks(state: State) -> State:
        await model.ainvoke("draft")
        answer = interrupt("Is it good?")
        await model.ainvoke(f"after {answer}")
        return {}

    def asks_sync(state: State) -> State:
        model.invoke("draft")
        answer = interrupt("Is it good?")
        model.invoke(f"after {answer}")
        return {}

    def beside(state: State) -> State:
        model.invoke("beside")
        return {}

    builder = StateGraph(State)
    builder.add_node("asks", asks_sync if sync else asks)
    builder.add_node("beside", beside)
    builder.add_edge(START, "asks")
    builder.add_edge(START, "beside")
    graph = builder.compile(checkpointer=InMemorySaver(), name="asker")
    config: Any = {"configurable": {"thread_id": "t1"}}

    async def go(given: Any) -> None:
        if sync:
            await asyncio.to_thread(graph.invoke, given, config)
        else:
            await graph.ainvoke(given, config)

    await go({})
    [first] = runs
    assert first.state is RunState.INTERRUPTED
    question = next(node for node in first.dag.nodes() if node.kind is NodeKind.HUMAN)
    assert (question.name, question.state) == ("Is it good?", NodeState.INTERRUPTED)
    assert edges(first) == {"draft": set(), "beside": set(), "Is it good?": {"draft"}}
    await go(Command(resume="yes"))
    second = runs[1]
    assert (first.row.session, second.row.session) == ("t1", "t1")
    assert second.state is RunState.DONE
    assert edges(second) == {"draft": set(), "after yes": {"draft"}}


async def test_a_question_with_choices_has_its_text_as_its_name(runs: list[Run]) -> None:
    async def asks(state: State) -> State:
        interrupt({"question": "Which city?", "schema": {"enum": ["Paris", "Lyon"]}})
        return {}

    builder = StateGraph(State).add_node("asks", asks).add_edge(START, "asks")
    graph = builder.compile(checkpointer=InMemorySaver(), name="asker")
    await graph.ainvoke({}, {"configurable": {"thread_id": "t1"}})
    [run] = runs
    assert [node.name for node in run.dag.nodes()] == ["Which city?"]


async def test_a_graph_that_raises_has_failed(model: Probe, runs: list[Run]) -> None:
    async def broken(state: State) -> State:
        await model.ainvoke("x")
        raise KeyError("mine")

    with pytest.raises(KeyError):
        await lone(broken, "broken").ainvoke({})
    assert runs[0].state is RunState.FAILED
    assert isinstance(runs[0].error, KeyError)


async def test_a_graph_that_is_cancelled_leaves_nothing(model: Probe, runs: list[Run]) -> None:
    begun = asyncio.Event()

    @tool
    async def hang() -> str:
        """Never ends."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    async def node(state: State) -> State:
        await hang.ainvoke({})
        return {}

    running = asyncio.create_task(lone(node).ainvoke({}))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    [run] = runs
    assert run.state is RunState.CANCELLED
    assert [node.state for node in run.dag.nodes()] == [NodeState.CANCELLED]


async def test_lost_callbacks_do_not_lose_the_place(model: Probe, runs: list[Run]) -> None:
    async def node(state: State) -> State:
        await model.ainvoke("one", {"callbacks": []})
        await model.ainvoke("two")
        return {}

    await lone(node).ainvoke({})
    assert edges(runs[0]) == {"one": set(), "two": {"one"}}


def test_a_call_in_a_bare_thread_is_lost_and_known_to_be(model: Probe, runs: list[Run]) -> None:
    def node(state: State, config: RunnableConfig) -> State:
        with ThreadPoolExecutor() as pool:
            pool.submit(model.invoke, "bare").result()
            pool.submit(model.invoke, "told", config).result()
        return {}

    lone(node).invoke({})
    assert model.lost == ["bare"]
    assert edges(runs[0]) == {"told": set()}


async def test_tenant_session_and_size_hint_come_from_the_config(
    model: Probe, runs: list[Run]
) -> None:
    metadata = {"agentrt_tenant": "ann", "agentrt_size_hint": 900}
    config: Any = {"configurable": {"thread_id": "t7"}, "metadata": metadata}
    await lone(calls(model, "x")).ainvoke({}, config)
    row = runs[0].row
    assert (row.tenant, row.session, row.size_hint) == ("ann", "t7", 900)


async def test_concurrent_graphs_are_programs_of_their_own(model: Probe, runs: list[Run]) -> None:
    compiled = lone(calls(model, "a", "b"))
    await asyncio.gather(*(compiled.ainvoke({}) for _ in range(20)))
    assert [edges(run) for run in runs] == [{"a": set(), "b": {"a"}}] * 20


async def test_streams_and_chains_are_programs_too(model: Probe, runs: list[Run]) -> None:
    async for _ in lone(calls(model, "a", "b")).astream({}, stream_mode=["messages", "updates"]):
        pass
    await (RunnableLambda(lambda text: text) | model).ainvoke("in a chain")
    assert edges(runs[0]) == {"a": set(), "b": {"a"}}
    assert edges(runs[1]) == {"in a chain": set()}
    assert runs[1].type == "RunnableSequence"
