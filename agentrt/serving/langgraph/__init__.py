"""The LangGraph API for graphs and programs, as ``langgraph_sdk`` and `RemoteGraph` call it.

`api` is this API without authentication hooks, and `api_with` returns it with the hooks of a
``langgraph.json``. Heavy modules are imported when the API opens.

`database` has the connections, the tables, and the rows of threads and runs. `auth` calls the
hooks. `assistants` has the graphs and their assistants, and `store` has the items that graphs keep.
`runs` queues, executes and streams runs. `threads` handles requests about threads. `a2a`, `crons`
and `protocol` start runs in other ways: from other agents, by a schedule, and by commands of the
streaming protocol. `router` opens all these parts, which share one `tenant_state`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import APIRouter

from agentrt.serving.server import Api, Server

if TYPE_CHECKING:
    from langgraph_sdk import Auth

__all__ = ["api", "api_with"]


def api_with(auth: Auth | None) -> Api:
    """Return the API with the authentication hooks of ``auth``; None means no hooks.

    Opening the API raises `ConfigError` if its database cannot be opened or is in use by another
    server, or if the environment variable LANGGRAPH_CONFIG is invalid. It raises `ProgramLoadError`
    for a graph that cannot be made.
    """

    @asynccontextmanager
    async def opened(server: Server) -> AsyncIterator[APIRouter]:
        from agentrt.serving.langgraph.router import open_api

        async with open_api(server, auth) as router:
            yield router

    return opened


api = api_with(None)
