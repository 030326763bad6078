"""The routes of sessions and of programs that are served, and the tasks behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter

from agentrt.serving.programs.errors import OpenAIRoute
from agentrt.serving.programs.runs import ProgramRuns, add_runs
from agentrt.serving.programs.sessions import add_sessions
from agentrt.serving.programs.tasks import Tasks
from agentrt.serving.server import Server

_LONGEST_PAUSE_S = 1.0


@asynccontextmanager
async def api(server: Server) -> AsyncIterator[APIRouter]:
    """Sessions and program runs over ``server``. At its end all clients' programs end."""
    tasks, runs = Tasks(), ProgramRuns(server)
    router = APIRouter(prefix="/v1", route_class=OpenAIRoute)
    add_sessions(router, server)
    add_runs(router, server, runs, tasks)
    tasks.start(_sweep(server, runs))
    try:
        yield router
    finally:
        await tasks.close()
        await runs.close()
        server.programs.end_all()


async def _sweep(server: Server, runs: ProgramRuns) -> None:
    """End what was not heard of for long, again and again; at the end, what nobody is in."""
    pause_s = min(_LONGEST_PAUSE_S, server.bounds.idle_s / 4, server.bounds.silent_idle_s / 4)
    while True:
        await asyncio.sleep(pause_s)
        server.programs.sweep(all_idle=server.draining)
        runs.sweep()
