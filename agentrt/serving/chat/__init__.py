"""The chat page at ``/``, on which people talk to the served graphs and programs, or to a model.

The page calls the LangGraph API and the routes of the dashboard with the user's key. On a server
without graphs and programs, it calls the API of chat completions, and the browser stores the chats.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, Response

from agentrt.serving.pages import WebPage
from agentrt.serving.server import Server

__all__ = ["api"]


@asynccontextmanager
async def api(server: Server) -> AsyncIterator[APIRouter]:
    """Yield the router of the chat page and its files."""
    page = WebPage(__name__)
    router = APIRouter(include_in_schema=False)

    @router.get("/", name="chat", response_class=Response)
    async def index() -> Response:
        return page.file("index.html")

    @router.get("/chat/{name}", response_class=Response)
    async def file(name: str) -> Response:
        return page.file(name)

    yield router
