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
    from agentrt.serving.observability.program_log import ProgramLog
    from agentrt.serving.observability.routes import Observability
    from agentrt.serving.observability.snapshot_poller import SnapshotPoller

    runtime = server.runtime
    books = ProgramLog(runtime.registry)
    poller = SnapshotPoller(runtime.executor, runtime.now, books.saw_engines)
    books.open()
    try:
        yield Observability(server, books, poller).router()
    finally:
        books.close()
