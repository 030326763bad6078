"""The served programs and graphs as tools of an MCP server at ``/mcp``, by the official SDK.

`offers` has what is offered, `calls` has the SDK's server, and carries each call through as a run
and its questions to the client; `app` is the path. The first request imports the SDK.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec

from fastapi import APIRouter

from agentrt.serving.server import Api, Server


def is_installed() -> bool:
    """Whether the SDK is there: it is an extra."""
    return find_spec("mcp") is not None


def api_with(*, graphs: bool = True) -> Api:
    """The API, with or without the ``graphs``: those behind hooks of their own are left out."""

    @asynccontextmanager
    async def opened(server: Server) -> AsyncIterator[APIRouter]:
        from agentrt.serving.mcp.app import open_api

        async with open_api(server, graphs=graphs) as router:
            yield router

    return opened


api = api_with()
