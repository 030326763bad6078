"""An MCP server at ``/mcp`` that offers the served programs and graphs as tools.

The server uses the official SDK, which is imported at the first request. `offers` has the tools,
`calls` runs the tool calls of clients and asks the clients the questions of runs, and `app` has the
HTTP endpoint.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec

from fastapi import APIRouter

from agentrt.serving.server import Api, Server


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
        from agentrt.serving.mcp.app import open_api

        async with open_api(server, graphs=graphs) as router:
            yield router

    return opened


api = api_with()
