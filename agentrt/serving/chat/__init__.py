"""The chat page at ``/``: people talk to the graphs and programs that are served.

It has no data of its own: it calls the LangGraph API and the dashboard's, with the user's key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, Response

from agentrt.serving.pages import Page
from agentrt.serving.server import Server

__all__ = ["api"]


@asynccontextmanager
async def api(server: Server) -> AsyncIterator[APIRouter]:
    """Serve the page."""
    page = Page(__name__)
    router = APIRouter(include_in_schema=False)

    @router.get("/", name="chat", response_class=Response)
    async def index() -> Response:
        return page.file("index.html")

    @router.get("/chat/{name}", response_class=Response)
    async def file(name: str) -> Response:
        return page.file(name)

    yield router
