"""What a person sees of the server: dashboard, metrics, lists, and the stream of events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import APIRouter

    from agentrt.serving.server import Server

__all__ = ["room"]


@asynccontextmanager
async def room(server: Server) -> AsyncIterator[APIRouter]:
    """Follow the programs of the server's runtime while it is open."""
    from agentrt.serving.seeing.books import Books
    from agentrt.serving.seeing.lookout import Lookout
    from agentrt.serving.seeing.routes import Seeing

    runtime = server.runtime
    books = Books(runtime.ledger)
    lookout = Lookout(runtime.executor, runtime.now, books.saw_engines)
    books.open()
    try:
        yield Seeing(server, books, lookout).router()
    finally:
        books.close()
