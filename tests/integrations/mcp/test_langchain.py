"""LangChain's own adapters for MCP, unchanged, in a graph that agentrt runs."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastmcp.client import Client
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from agentrt import Runtime
from agentrt.graph import NodeKind, NodeState
from agentrt.integrations.langgraph.graphs import Graph, graph_program
from agentrt.runtime.run import Run, RunState
from tests.doubles.forked_python import forked_python
from tests.doubles.scripted import ScriptedExecutor
from tests.integrations.mcp.servers import MODULE

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it says that it is in beta
    from langchain.mcp import MCPAdapter


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    async with Runtime(ScriptedExecutor(lambda call: "one")) as runtime:
        yield runtime


async def graph_of(adapter: MCPAdapter) -> Graph:
    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode(await adapter.list_tools()))
    builder.add_edge(START, "tools")
    return builder.compile(checkpointer=InMemorySaver())


def wish(name: str, **arguments: Any) -> dict[str, Any]:
    call = {"name": name, "args": arguments, "id": "1", "type": "tool_call"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


async def run_of(runtime: Runtime, graph: Graph, given: Any) -> tuple[Run, Any]:
    config: Any = {"configurable": {"thread_id": "t"}}
    run = runtime.start(graph_program(graph, "agent", config), given)
    return run, await run.wait()


def target_of(kind: str, url: str) -> Any:
    if kind == "stdio":
        server = {"command": forked_python(), "args": ["-m", MODULE, "stdio"]}
        return {"mcpServers": {"things": server}}
    return Client(url, mode="legacy" if kind == "http-legacy" else "auto")


@pytest.mark.parametrize("kind", ["stdio", "http", "http-legacy"])
async def test_its_tools_are_tools_of_the_program(
    runtime: Runtime, kind: str, http_url: str
) -> None:
    async with MCPAdapter(target_of(kind, http_url)) as adapter:
        graph = await graph_of(adapter)
        run, result = await run_of(runtime, graph, wish("add", a=1, b=2))
    assert '"total": 3' in str(result["messages"][-1].content)
    tools = [node for node in run.dag.nodes() if node.kind is NodeKind.TOOL]
    assert [(node.name, node.state) for node in tools] == [("add", NodeState.DONE)]


async def test_what_its_server_asks_is_an_interrupt(runtime: Runtime, http_url: str) -> None:
    async with MCPAdapter(http_url) as adapter:
        graph = await graph_of(adapter)
        run, _ = await run_of(runtime, graph, wish("cut", thing="cake"))
        assert run.state is RunState.INTERRUPTED
        kinds = {node.kind: node for node in run.dag.nodes()}
        assert kinds[NodeKind.TOOL].state is NodeState.CANCELLED
        assert "How large is the cake?" in kinds[NodeKind.HUMAN].name
        state = await graph.aget_state({"configurable": {"thread_id": "t"}})
        [request] = state.interrupts[0].value["requests"]
        answer = {"action": "accept", "content": {"centimetres": 5}}
        command: Any = Command(resume={"responses": {request["key"]: answer}})
        run, result = await run_of(runtime, graph, command)
        assert run.state is RunState.DONE
        assert "cake: 5 cm" in str(result["messages"][-1].content)
