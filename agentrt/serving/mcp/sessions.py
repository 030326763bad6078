"""The SDK's own MCP server, with the offers as its tools, and its clients' sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import mcp.server
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from agentrt import __version__
from agentrt.serving.mcp import calls
from agentrt.serving.mcp.calls import Calls
from agentrt.serving.mcp.offers import Offer
from agentrt.serving.middleware import tenant_of
from agentrt.serving.programs.runs import ProgramRuns
from agentrt.serving.server import Server


class Sessions:
    """What is known of the clients. Calls that wait for an answer outlast a fault of the SDK's."""

    def __init__(self, server: Server, offers: Mapping[str, Offer], runs: ProgramRuns) -> None:
        self._calls = Calls(server, offers, runs)
        self._sdk = _sdk_server(offers, self._calls)
        self._body_bytes = server.bounds.body_bytes

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ASGIApp]:
        """The application that answers requests; all sessions end with the block."""
        manager = StreamableHTTPSessionManager(self._sdk, max_request_body_size=self._body_bytes)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            # In the SDK's own terms, so that a session serves nobody but who began it.
            token = AccessToken(token="", client_id=tenant_of(Request(scope)), scopes=[])
            scope["user"] = AuthenticatedUser(token)
            await manager.handle_request(scope, receive, send)

        async with manager.run():
            yield answer

    def close(self) -> None:
        """Wait for no client any more."""
        self._calls.close()


def _sdk_server(offers: Mapping[str, Offer], made: Calls) -> mcp.server.Server:
    tools = [
        Tool(name=one.name, description=one.description, input_schema=dict(one.schema))
        for one in offers.values()
    ]

    async def list_tools(
        request: calls.Request, params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=tools)

    async def call_tool(
        request: calls.Request, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        return await made.call(request, params)

    return mcp.server.Server(
        "agentrt",
        version=__version__,
        instructions="Each tool runs an agent program on this server.",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=lambda name: offers[name].schema if name in offers else None,
    )
