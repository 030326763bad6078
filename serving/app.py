"""The server's rooms as one ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from fastapi import APIRouter, FastAPI
from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agentrt import __version__
from agentrt.serving.error_responses import is_openai, refusal
from agentrt.serving.middleware import Middleware
from agentrt.serving.server import Server

Room = Callable[[Server], AbstractAsyncContextManager[APIRouter]]
"""Opens a part of the server (its database, its tasks) and gives its routes; closes it after."""


@asynccontextmanager
async def opened_app(server: Server, rooms: Sequence[Room]) -> AsyncIterator[FastAPI]:
    """The application with its ``rooms`` open; their tasks end with the block."""
    app = FastAPI(title="agentrt", version=__version__, docs_url=None, redoc_url=None)
    app.add_middleware(Middleware, server=server)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)
    async with AsyncExitStack() as stack:
        for room in rooms:
            app.include_router(await stack.enter_async_context(room(server)))
        yield app


async def _bug(request: Request, error: Exception) -> Response:
    """A fault of ours: its trace goes to the log, and nothing of it to the client."""
    return refusal(request.url.path, 500, "the server failed", code="internal_error")


async def _http_error(request: Request, error: Exception) -> Response:
    """What has no route, in the words of the API that was asked."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if not is_openai(path):
        return await http_exception_handler(request, error)
    what = f"{request.method} {path}: {str(error.detail).lower()}"
    return refusal(path, error.status_code, what, headers=error.headers)
