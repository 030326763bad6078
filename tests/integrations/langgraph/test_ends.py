"""What a program leaves behind, and what it shares: ids, threads, workers, names."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from agentrt import Context, Runtime, program
from agentrt.errors import ConfigError
from agentrt.graph import NodeKind, NodeState
from agentrt.integrations.langchain import ChatAgentRT
from agentrt.integrations.langgraph.graphs import graph_program
from agentrt.integrations.langgraph.threads import standing_of
from agentrt.runtime.run import Run, RunState
from tests.doubles.scripted import ScriptedExecutor
from tests.integrations.langchain.stub import HeldExecutor
from tests.integrations.langgraph.probe import Probe, State, calls, edges, lone


def one_node(node: Any, name: str) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    return builder.compile(name=name)


async def test_programs_of_all_kinds_have_ids_of_their_own(runs: list[Run]) -> None:
    """A graph, a native program and a lone call, all named chat, meet in one engine."""
    executor = ScriptedExecutor()
    async with Runtime(executor) as runtime:
        model = ChatAgentRT(runtime=runtime)

        async def node(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke([HumanMessage("hi")])]}

        @program(name="chat")
        async def native(ctx: Context) -> None:
            await ctx.llm("hi")

        run = runtime.start(native)
        graph = one_node(node, "chat")
        await asyncio.gather(graph.ainvoke({"messages": []}), model.ainvoke("hi"), run.wait())
    ids = [call.program_id for call in executor.calls]
    assert len(set(ids)) == 3
    assert sorted(executor.ended) == sorted(ids)
    came_to = [totals for totals in executor.totals.values() if totals is not None]
    assert [one.service_s > 0.0 for one in came_to] == [True] * 3


async def test_a_cancelled_program_s_threads_call_no_more() -> None:
    """A thread cannot be cancelled; its call is aborted, and it gets no other."""
    held = HeldExecutor()
    errors: list[BaseException] = []
    over = threading.Event()
    async with Runtime(held) as runtime:
        model = ChatAgentRT(runtime=runtime)

        def node(state: MessagesState) -> dict[str, Any]:
            for _ in range(3):
                try:
                    model.invoke("hi")
                except Exception as error:
                    errors.append(error)
            over.set()
            return {}

        run = runtime.start(graph_program(one_node(node, "agent"), "agent", {}), {"messages": []})
        while held.live < 1:
            await asyncio.sleep(0)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run.wait()
        assert held.live == 0
        await asyncio.to_thread(over.wait, 60)
        assert [call.program_id for call in held.calls] == [run.id]
    assert len(errors) == 3
    assert "was cancelled" in str(errors[-1])
    assert [node.state for node in run.dag.nodes()] == [NodeState.CANCELLED]


async def test_a_worker_that_graphs_share_outlives_the_first() -> None:
    queue: asyncio.Queue[asyncio.Future[int]] = asyncio.Queue()
    workers: list[asyncio.Task[None]] = []

    async def work() -> None:
        while True:
            (await queue.get()).set_result(1)

    async def node(state: MessagesState) -> dict[str, Any]:
        if not workers:
            workers.append(asyncio.create_task(work()))
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        await queue.put(answer)
        assert await answer == 1
        return {}

    async with Runtime(ScriptedExecutor()) as runtime:
        shared = graph_program(one_node(node, "agent"), "agent", {})
        for _ in range(3):
            run = runtime.start(shared, {"messages": []})
            await run.wait()
            assert run.state is RunState.DONE
        workers[0].cancel()


async def test_a_tool_may_run_a_graph_named_like_its_node(model: Probe, runs: list[Run]) -> None:
    compiled = lone(calls(model, "p"), "p", name="research")

    @tool
    async def look() -> str:
        """Look it up."""
        await compiled.ainvoke({})
        await model.ainvoke("after")
        return ""

    async def research(state: State) -> State:
        await look.ainvoke({})
        return {}

    await lone(research, "research").ainvoke({})
    assert edges(runs[0]) == {"look": set(), "p": set(), "after": {"p"}}
    assert [n.kind for n in runs[0].dag.nodes() if n.name == "look"] == [NodeKind.TOOL]


async def test_checkpoints_that_cannot_be_read_are_told_of() -> None:
    class Broken(InMemorySaver):
        async def aget_tuple(self, config: Any) -> Any:
            raise TypeError("no checkpoint")

    def node(state: MessagesState) -> dict[str, Any]:
        return {}

    builder = StateGraph(MessagesState)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=Broken())
    with pytest.raises(ConfigError, match="thread 't': no checkpoint"):
        await standing_of(graph, "t")
