"""Open questions of graphs, programs, and MCP tools in graphs outlive the server that asked."""

from __future__ import annotations

import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from tests.integrations.mcp.servers import MODULE
from tests.serving.langgraph.graphs import ask_graph
from tests.serving.langgraph.runs.test_runs import IN, a_thread
from tests.serving.langgraph.serve import serving
from tests.serving.langgraph.threads.test_questions import answered, clients, joined, listed, waiter

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it says that it is in beta
    from langchain.mcp import MCPAdapter


@asynccontextmanager
async def cutter() -> AsyncIterator[Any]:
    """A tool of an MCP server, which asks a human how large it is to be."""
    server = {"command": sys.executable, "args": ["-m", MODULE, "stdio"]}
    async with MCPAdapter({"mcpServers": {"things": server}}) as adapter:
        builder = StateGraph(MessagesState)
        builder.add_node("tools", ToolNode(await adapter.list_tools()))
        yield builder.add_edge(START, "tools").compile()


def wish(name: str, **arguments: Any) -> dict[str, Any]:
    call = {"name": name, "args": arguments, "id": "1"}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


async def test_an_open_question_outlives_its_server(tmp_path: Path) -> None:
    """1. A thread asks. 2. The server ends, and another starts. 3. The question is there, and
    its answer resumes the thread: of a graph, of a program, of a graph with an MCP tool.
    """
    served = {"ask": ask_graph(), "waiter": waiter, "cutter": cutter}
    given: list[Any] = [IN, None, {"messages": [wish("cut", thing="cake")]}]
    size = {"action": "accept", "content": {"centimetres": 5}}
    with serving(served, tmp_path / "agentrt.db") as it:
        async with clients(it, "") as (client, http):
            questions = []
            for name, value in zip(served, given, strict=True):
                thread = await a_thread(client)
                await client.runs.wait(thread, name, input=value)
                questions += await listed(http, thread=thread)
    with serving(served, tmp_path / "agentrt.db") as it:
        async with clients(it, "") as (client, http):
            assert await listed(http) == questions[::-1]
            [request] = questions[2]["value"]["requests"]
            answers = ["left", {"drink": "tea"}, {"responses": {request["key"]: size}}]
            done = [
                await joined(client, await answered(http, *one))
                for one in zip(questions, answers, strict=True)
            ]
    assert done[0]["steps"][2] == "answered left"
    assert done[1] == "tea"
    assert "cake: 5 cm" in str(done[2]["messages"][-1]["content"])
