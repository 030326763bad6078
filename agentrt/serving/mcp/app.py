"""The MCP server at ``/mcp``: streamable HTTP, in both generations of the protocol.

It is the SDK's own server behind the server's middleware: keys, sizes and draining are as
everywhere, and a session belongs to the tenant that began it. The SDK takes a second to import,
which the first request waits for, and nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from agentrt.serving.mcp.offers import Offer, offers_of
from agentrt.serving.middleware import MCP_PATH
from agentrt.serving.programs.runs import ProgramRuns
from agentrt.serving.server import Server

if TYPE_CHECKING:
    from agentrt.serving.mcp.calls import Sessions


@asynccontextmanager
async def open_api(server: Server, *, graphs: bool) -> AsyncIterator[APIRouter]:
    """The route of ``server``'s tools. At its end their runs end."""
    async with AsyncExitStack() as stack:
        offers = await offers_of(server, stack, graphs=graphs)
        runs = ProgramRuns(server)
        stack.push_async_callback(runs.close)
        endpoint = Endpoint(server, offers, runs)
        stack.callback(endpoint.close)
        await stack.enter_async_context(server.background.doing("mcp", endpoint.run))
        yield APIRouter(routes=[Route(MCP_PATH, endpoint)])


class Endpoint:
    """The ASGI application at the path. `run` has its sessions, from the first request on; where
    they failed the answer is 503.
    """

    def __init__(self, server: Server, offers: Mapping[str, Offer], runs: ProgramRuns) -> None:
        self._made_of = server, offers, runs
        self._sessions: Sessions | None = None
        self._answer: ASGIApp | None = None
        self._asked, self._tried = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Have sessions until they fail, or this is cancelled."""
        try:
            await self._asked.wait()
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
        """Wait for no client any more."""
        if self._sessions is not None:
            self._sessions.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("POST", "DELETE"):
            # Nothing would be sent on a stream of its own, which would outlast all that runs.
            allowed = {"allow": "POST, DELETE"}
            refusal = JSONResponse({"detail": "MCP is called with POST"}, 405, allowed)
            await refusal(scope, receive, send)
            return
        self._asked.set()
        await self._tried.wait()
        if self._answer is None:
            text = "the MCP server failed and is started again; try again"
            await JSONResponse({"detail": text}, 503, {"retry-after": "1"})(scope, receive, send)
        else:
            await self._answer(scope, receive, send)
