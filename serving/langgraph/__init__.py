"""Graphs behind the LangGraph API: what ``langgraph_sdk`` and `RemoteGraph` talk to.

`api` is for a server without authentication hooks; `api_with` takes those of a
``langgraph.json``. Heavy modules are imported when the API opens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import APIRouter

from agentrt.serving.server import Api, Server

if TYPE_CHECKING:
    from langgraph_sdk import Auth

__all__ = ["api", "api_with"]


def api(server: Server) -> AbstractAsyncContextManager[APIRouter]:
    """Open the LangGraph API over the graphs and programs of ``server``.

    Raises `ConfigError` if its database cannot be opened or is in use by another server, and
    `ProgramLoadError` for a graph that cannot be made.
    """
    return api_with(None)(server)


def api_with(auth: Auth | None) -> Api:
    """The API whose requests pass the hooks of ``auth`` (`agentrt.serving.langgraph.auth`)."""

    @asynccontextmanager
    async def opened(server: Server) -> AsyncIterator[APIRouter]:
        from agentrt.serving.langgraph.api import open_api

        async with open_api(server, auth) as router:
            yield router

    return opened
