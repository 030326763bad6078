"""The server's rooms as one ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from fastapi import APIRouter, FastAPI

from agentrt import __version__
from agentrt.serving.server import Server

Room = Callable[[Server], AbstractAsyncContextManager[APIRouter]]
"""Opens a part of the server (its database, its tasks) and gives its routes; closes it after."""


@asynccontextmanager
async def opened_app(server: Server, rooms: Sequence[Room]) -> AsyncIterator[FastAPI]:
    """The application with its ``rooms`` open; their tasks end with the block."""
    app = FastAPI(title="agentrt", version=__version__)
    async with AsyncExitStack() as stack:
        for room in rooms:
            app.include_router(await stack.enter_async_context(room(server)))
        yield app
