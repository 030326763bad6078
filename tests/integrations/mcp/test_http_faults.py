"""MCP servers over HTTP that answer in a wrong form, not at all, or have lost the session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentrt.errors import (
    ToolFailedError,
    UnknownToolError,
)
from agentrt.integrations.mcp.transport import McpTransport
from tests.integrations.mcp.raw_http import Exchange, RawHttp, never, raw_http
from tests.integrations.mcp.servers import WAIT_S, Client, connected, http

JSON = "content-type: application/json"


@asynccontextmanager
async def raw() -> AsyncIterator[tuple[RawHttp, Client]]:
    async with raw_http() as server, connected(http(server.url)) as client:
        yield server, client


async def test_a_refusal_that_names_no_session_is_the_result_of_the_call() -> None:
    async def call(exchange: Exchange) -> None:
        exchange.refuse(-32000, "the field session_id is missing", 400)

    async with raw() as (server, client):
        server.instead["tools/call"] = call
        with pytest.raises(ToolFailedError, match="the field session_id is missing"):
            await client.call("good")
        assert server.sessions == ["session-0"]


@pytest.mark.parametrize("code", [-32000, -32601, -32602])
async def test_a_tool_that_is_gone_is_named_with_each_code(code: int) -> None:
    async def call(exchange: Exchange) -> None:
        exchange.refuse(code, f"Unknown tool: {exchange.tool}")

    async with raw() as (server, client):
        server.instead["tools/call"] = call
        server.tools = ("good",)
        with pytest.raises(UnknownToolError, match="no longer has a tool 'bad'; available: good"):
            await client.call("bad")


async def test_a_call_fails_although_the_server_lists_no_tools_meanwhile() -> None:
    """An error that names the tool is compared with the list of the tools."""

    async def call(exchange: Exchange) -> None:
        exchange.refuse(-32603, "bad is out of order")

    async with raw_http() as server:
        transport = McpTransport(http(server.url), lambda line: None, listed_within=0.05)
        await transport.open()
        try:
            tools: Any = {tool.name: tool for tool in await transport.tools()}
            server.instead |= {"tools/call": call, "tools/list": never}
            async with asyncio.timeout(WAIT_S):
                with pytest.raises(ToolFailedError, match="bad is out of order"):
                    await Client(transport, [], tools).call("bad")
        finally:
            await transport.close()
