"""An MCP server at ``/mcp`` that offers the served programs and graphs as tools: streamable HTTP,
in both generations of the protocol.

The SDK's own server runs behind this server's middleware, so that keys and size limits are the same
as for all routes. A draining server refuses only new tool calls. A session belongs to the tenant
that began it. Importing the SDK takes about a second; only the first request waits for it. `offers`
has the tools, and `calls` runs the tool calls of clients and asks the clients the questions of
runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from agentrt.serving.middleware import MCP_PATH
from agentrt.serving.programs.runs import ProgramRuns
from agentrt.serving.server import Api, Server

if TYPE_CHECKING:
    from agentrt.serving.mcp.calls import Sessions
    from agentrt.serving.mcp.offers import Offer


def is_installed() -> bool:
    """Return whether the MCP SDK is installed; it is an optional dependency."""
    return find_spec("mcp") is not None


def api_with(*, graphs: bool = True) -> Api:
    """Return the MCP API, whose tools are the programs and, with ``graphs``, the graphs.

    For graphs with authentication hooks, ``graphs`` must be False, because MCP calls do not pass
    these hooks.
    """

    @asynccontextmanager
    async def opened(server: Server) -> AsyncIterator[APIRouter]:
        from agentrt.serving.mcp.offers import offers_of

        async with AsyncExitStack() as stack:
            offers = await offers_of(server, stack, graphs=graphs)
            runs = ProgramRuns(server)
            # At the end, all runs of the MCP tools are cancelled.
            stack.push_async_callback(runs.close)
            endpoint = Endpoint(server, offers, runs)
            stack.callback(endpoint.close)
            await stack.enter_async_context(server.background.doing("mcp", endpoint.run))
            yield APIRouter(routes=[Route(MCP_PATH, endpoint)])

    return opened


api = api_with()


class Endpoint:
    """The ASGI application of the MCP endpoint.

    `run` opens the MCP SDK's session manager when the first request arrives. If the session manager
    has failed, requests are answered with status 503 until it runs again.
    """

    def __init__(self, server: Server, offers: Mapping[str, Offer], runs: ProgramRuns) -> None:
        self._made_of = server, offers, runs
        self._sessions: Sessions | None = None
        self._answer: ASGIApp | None = None
        self._requested, self._tried = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Keep the SDK's sessions open until they fail or the task is cancelled."""
        try:
            await self._requested.wait()
            if self._sessions is None:
                self._sessions = await asyncio.to_thread(self._load)
            async with self._sessions.open() as self._answer:
                self._tried.set()
                await asyncio.Event().wait()
        finally:
            self._answer = None
            self._tried.set()

    def _load(self) -> Sessions:
        from agentrt.serving.mcp.calls import Sessions

        return Sessions(*self._made_of)

    def close(self) -> None:
        """Stop waiting for clients' answers to questions."""
        if self._sessions is not None:
            self._sessions.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("POST", "DELETE"):
            # A GET would open a stream on which this server never sends anything.
            allowed = {"allow": "POST, DELETE"}
            refusal = JSONResponse({"detail": "call the MCP endpoint with POST"}, 405, allowed)
            await refusal(scope, receive, send)
            return
        self._requested.set()
        await self._tried.wait()
        if self._answer is None:
            text = "the MCP server failed and is being restarted; try again"
            await JSONResponse({"detail": text}, 503, {"retry-after": "1"})(scope, receive, send)
        else:
            await self._answer(scope, receive, send)
