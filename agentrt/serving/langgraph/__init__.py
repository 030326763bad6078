"""Graphs behind the LangGraph API: what ``langgraph_sdk`` and `RemoteGraph` talk to.

`api` is for a server without authentication hooks; `api_with` takes those of a
``langgraph.json``. Heavy modules are imported when the API opens.

`database` has connections, tables and the rows of threads and runs; `auth` says what a caller may
see, `store` and `assistants` what graphs are made with. `runs` queues, executes and streams runs,
`threads` has the requests about threads, and `a2a`, `crons` and `protocol` are other doors to runs.
`router` puts it all together over one `tenant_state`.
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
    """The API whose requests pass the hooks of ``auth`` (`agentrt.serving.langgraph.auth.hooks`).

    It raises `ConfigError` if its database cannot be opened or is in use by another server, and
    `ProgramLoadError` for a graph that cannot be made.
    """

    @asynccontextmanager
    async def opened(server: Server) -> AsyncIterator[APIRouter]:
        from agentrt.serving.langgraph.router import open_api

        async with open_api(server, auth) as router:
            yield router

    return opened


api = api_with(None)
