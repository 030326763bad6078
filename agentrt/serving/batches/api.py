"""Opens the API of files and batches over a server, and goes on with the batches that it finds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from fastapi import APIRouter

from agentrt.serving.batches.files import Files
from agentrt.serving.batches.records import Folder
from agentrt.serving.error_responses import OpenAIRoute
from agentrt.serving.langgraph.database.connections import Address
from agentrt.serving.server import Server
from agentrt.steady import SteadyClock

_SWEEP_S = 60.0


@asynccontextmanager
async def api(server: Server) -> AsyncIterator[APIRouter]:
    """Files and batches in a folder beside the server's SQLite database. With PostgreSQL and no
    folder of its own, the server has neither. Raises `ConfigError` if the folder cannot be used.
    """
    router = APIRouter(prefix="/v1", route_class=OpenAIRoute)
    place = folder_beside(server.database)
    if place is None:
        yield router
        return
    async with AsyncExitStack() as stack:
        folder = Folder(place)
        stack.callback(folder.close)
        clock = SteadyClock(server.machine)
        files = Files(server, folder, clock, lambda tenant, file_id: None)
        files.forget_rest(lambda path: False)
        files.add_to(router)
        await stack.enter_async_context(
            server.background.doing("sweep of files", files.sweep, _SWEEP_S)
        )
        yield router


def folder_beside(database: str) -> Path | None:
    """Return the folder of the files of a server with this database; None for PostgreSQL."""
    file = Address.parse(database).file
    return None if file is None else file.with_name(f"{file.name}.files")
