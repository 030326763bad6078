"""The MCP server at ``/mcp``: streamable HTTP, in both generations of the protocol.

It is the SDK's own server behind the server's middleware: keys, sizes and draining are as
everywhere, and a session belongs to the tenant that began it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import mcp.server
from fastapi import APIRouter
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
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from agentrt import __version__
from agentrt.serving.mcp import calls
from agentrt.serving.mcp.calls import Calls
from agentrt.serving.mcp.offers import Offer, offers_of
from agentrt.serving.middleware import MCP_PATH, tenant_of
from agentrt.serving.programs.runs import ProgramRuns
from agentrt.serving.server import Server


@asynccontextmanager
async def open_api(server: Server, *, graphs: bool) -> AsyncIterator[APIRouter]:
    """The route of ``server``'s tools. At its end their runs end."""
    async with AsyncExitStack() as stack:
        offers = await offers_of(server, stack, graphs=graphs)
        runs = ProgramRuns(server)
        stack.push_async_callback(runs.close)
        made = Calls(server, offers, runs)
        stack.callback(made.close)
        endpoint = Endpoint(_sdk_server(offers, made), server.bounds.body_bytes)
        await stack.enter_async_context(server.background.doing("mcp", endpoint.run))
        await endpoint.tried.wait()
        yield APIRouter(routes=[Route(MCP_PATH, endpoint)])


def _sdk_server(offers: dict[str, Offer], made: Calls) -> mcp.server.Server:
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


class Endpoint:
    """The ASGI application at the path. `run` has its sessions, which end with it; without them
    the answer is 503.
    """

    def __init__(self, sdk: mcp.server.Server, body_bytes: int) -> None:
        self._sdk = sdk
        self._body_bytes = body_bytes
        self._manager: StreamableHTTPSessionManager | None = None
        self.tried = asyncio.Event()

    async def run(self) -> None:
        """Have sessions until they fail, or this is cancelled."""
        manager = StreamableHTTPSessionManager(self._sdk, max_request_body_size=self._body_bytes)
        try:
            async with manager.run():
                self._manager = manager
                self.tried.set()
                await asyncio.Event().wait()
        finally:
            self._manager = None
            self.tried.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if scope["method"] not in ("POST", "DELETE"):
            # Nothing would be sent on a stream of its own, which would outlast all that runs.
            allowed = {"allow": "POST, DELETE"}
            answer = JSONResponse({"detail": "MCP is called with POST"}, 405, allowed)
            await answer(scope, receive, send)
        elif self._manager is None:
            text = "the MCP server failed and is started again; try again"
            await JSONResponse({"detail": text}, 503, {"retry-after": "1"})(scope, receive, send)
        else:
            # In the SDK's own terms, so that a session serves nobody but who began it.
            token = AccessToken(token="", client_id=tenant_of(request), scopes=[])
            scope["user"] = AuthenticatedUser(token)
            await self._manager.handle_request(scope, receive, send)
