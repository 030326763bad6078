"""The servers of the tests: `server.py` as a command, and over HTTP."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from agentrt.graph import Progress
from agentrt.integrations.mcp import HttpServer, Server, StdioServer
from agentrt.integrations.mcp.connection import Mode
from agentrt.integrations.mcp.tools import McpTools
from agentrt.interrupts import Tool, ToolRequest
from tests.doubles.forked_python import forked_python

MODULE = "tests.integrations.mcp.server"
LARGEST = 100_000
WAIT_S = 60.0
"""What a test waits for is there sooner, or never."""


def stdio(name: str = "stdio") -> StdioServer:
    return StdioServer(name, forked_python(), ("-m", MODULE, "stdio"))


@contextmanager
def serving_http(*, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of its own, and its URL."""
    command = [forked_python(), "-m", MODULE, "http", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        finally:
            process.kill()


@dataclass
class Watching:
    """A `ToolContext` that keeps what it is told, and gives ``answer`` to each question."""

    answer: Callable[[str, Mapping[str, Any] | None], Any] = lambda question, schema: None
    heard: list[Progress] = field(default_factory=list)

    def progress(self, progress: Progress) -> None:
        self.heard.append(progress)

    async def ask(self, question: str, schema: Mapping[str, Any] | None = None) -> Any:
        return self.answer(question, schema)


@dataclass
class Client:
    """One server behind its transport, with its tools as they were at first."""

    transport: McpTools
    said: list[str]
    tools: dict[str, Tool] = field(default_factory=dict)

    async def call(self, name: str, context: Watching | None = None, **arguments: Any) -> Any:
        request = ToolRequest(self.tools[name], arguments, key="k")
        return await self.transport.call(request, context or Watching())


@asynccontextmanager
async def connected(server: Server, mode: Mode = "auto") -> AsyncIterator[Client]:
    said: list[str] = []
    transport = McpTools(server, said.append, largest=LARGEST, mode=mode)
    await transport.open()
    try:
        tools = {tool.name: tool for tool in await transport.tools()}
        yield Client(transport, said, tools)
    finally:
        async with asyncio.timeout(WAIT_S):
            await transport.close()


def http(url: str, name: str = "http", **headers: str) -> HttpServer:
    return HttpServer(name, url, headers)


async def until(done: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    async with asyncio.timeout(WAIT_S):
        while not done():
            await asyncio.sleep(0.01)
