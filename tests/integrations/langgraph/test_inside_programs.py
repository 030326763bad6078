"""Graphs inside agentrt's own programs: one DAG, joined on both sides. And runtimes that close."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from agentrt import Context, Runtime, program
from agentrt.errors import EngineDiedError
from agentrt.graph import NodeKind, NodeState
from agentrt.integrations.langchain import ChatAgentRT
from agentrt.integrations.langgraph import follow
from agentrt.runtime.run import Run, RunState
from tests.doubles.scripted import ScriptedExecutor
from tests.graph.integrity import check_integrity
from tests.integrations.langchain.stub import HeldExecutor


def chain_of(model: ChatAgentRT, *names: str) -> Any:
    """A graph of these nodes, one after another, a call each."""
    builder = StateGraph(MessagesState)
    before = START
    for name in names:

        async def node(state: MessagesState, say: str = name) -> dict[str, Any]:
            return {"messages": [await model.ainvoke([HumanMessage(say)])]}

        builder.add_node(name, node)
        builder.add_edge(before, name)
        before = name
    return builder.compile(name="inner")


async def test_a_graph_is_a_part_of_the_program_that_runs_it(runs: list[Run]) -> None:
    """a leads to the graph's p and q, and they to b."""
    async with Runtime(ScriptedExecutor()) as runtime:
        model = ChatAgentRT(runtime=runtime)

        @program
        async def outer(ctx: Context) -> None:
            await ctx.llm("a")
            await chain_of(model, "p", "q").ainvoke({"messages": []})
            await ctx.llm("b")

        run = runtime.start(outer)
        await run.wait()
    assert runs == []
    assert [node.parents for node in run.dag.nodes()] == [(), (0,), (1,), (2,)]
    scopes = [node.scope for node in run.dag.nodes()]
    assert scopes == ["outer", "outer/p", "outer/q", "outer"]


async def test_graphs_side_by_side_in_a_program_stay_apart() -> None:
    async with Runtime(ScriptedExecutor()) as runtime:
        model = ChatAgentRT(runtime=runtime)

        @program
        async def outer(ctx: Context) -> None:
            one, two = chain_of(model, "p", "q"), chain_of(model, "r")
            await asyncio.gather(one.ainvoke({"messages": []}), two.ainvoke({"messages": []}))
            await ctx.llm("b")

        run = runtime.start(outer)
        await run.wait()
    nodes = {node.scope.rpartition("/")[2]: node for node in run.dag.nodes()}
    assert nodes["p"].parents == nodes["r"].parents == ()
    assert nodes["q"].parents == (nodes["p"].id,)
    assert set(nodes["outer"].parents) == {nodes["q"].id, nodes["r"].id}


async def test_a_runtime_that_closes_ends_the_calls_of_foreign_programs() -> None:
    """The engine is never left with a call, nor a graph waiting for one."""
    held = HeldExecutor()
    runtime = Runtime(held)
    await runtime.open()
    graph = chain_of(ChatAgentRT(runtime=runtime), "p")
    waiting = asyncio.create_task(graph.ainvoke({"messages": []}))
    while held.live < 1:
        await asyncio.sleep(0)
    await runtime.close()
    with pytest.raises(EngineDiedError, match="its runtime was closed"):
        await waiting
    assert held.live == 0


async def test_cancelled_tools_of_own_programs_are_forgotten() -> None:
    """LangChain says nothing of the end of a tool that is cancelled."""

    @tool
    async def hang() -> str:
        """Never ends."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    @program
    async def outer(ctx: Context) -> None:
        await hang.ainvoke({})

    follower = follow()
    before = follower.open_runs()
    async with Runtime(ScriptedExecutor()) as runtime:
        for _ in range(300):
            begun = asyncio.Event()
            run = runtime.start(outer)
            await begun.wait()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run.wait()
            assert [node.state for node in run.dag.nodes()] == [NodeState.CANCELLED]
    assert follower.open_runs() - before < 150


async def test_a_program_answers_its_own_graph() -> None:
    """draft leads to the question; the node runs again after the answer, and then the rest."""
    async with Runtime(ScriptedExecutor()) as runtime:
        model = ChatAgentRT(runtime=runtime)

        async def asks(state: MessagesState) -> dict[str, Any]:
            await model.ainvoke([HumanMessage("draft")])
            interrupt("Is it good?")
            return {"messages": [await model.ainvoke([HumanMessage("final")])]}

        builder = StateGraph(MessagesState)
        builder.add_node("asks", asks)
        builder.add_edge(START, "asks")
        graph = builder.compile(checkpointer=InMemorySaver())

        @program
        async def outer(ctx: Context) -> None:
            config: Any = {"configurable": {"thread_id": ctx.run_id}}
            await graph.ainvoke({"messages": []}, config)
            await graph.ainvoke(Command(resume="yes"), config)
            await ctx.llm("end")

        run = runtime.start(outer)
        await run.wait()
    assert run.state is RunState.DONE
    check_integrity(run.dag)
    found = [(node.kind, node.parents, node.state) for node in run.dag.nodes()]
    assert found == [
        (NodeKind.CALL, (), NodeState.DONE),
        (NodeKind.HUMAN, (0,), NodeState.DONE),
        (NodeKind.CALL, (1,), NodeState.DONE),
        (NodeKind.CALL, (2,), NodeState.DONE),
        (NodeKind.CALL, (3,), NodeState.DONE),
    ]
