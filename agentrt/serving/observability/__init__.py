"""Observability of the server: dashboard, metrics, lists of programs, and a stream of events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter

from agentrt.serving.server import Server

__all__ = ["api"]


@asynccontextmanager
async def api(server: Server) -> AsyncIterator[APIRouter]:
    """Yield the router of the observability routes, and follow the programs until the ``with``
    block ends.
    """
    from agentrt.serving.observability.engines import SnapshotPoller
    from agentrt.serving.observability.program_log import ProgramLog
    from agentrt.serving.observability.routes import Observability

    runtime = server.runtime
    log = ProgramLog(runtime.registry)
    poller = SnapshotPoller(runtime.executor, runtime.now, log.update_engines)
    log.open()
    try:
        yield Observability(server, log, poller).router()
    finally:
        log.close()
