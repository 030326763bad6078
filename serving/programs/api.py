"""The routes of sessions and of programs that are served, and the tasks behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from fastapi import APIRouter

from agentrt.errors import ConfigError
from agentrt.serving.programs.errors import OpenAIRoute
from agentrt.serving.programs.run_routes import add_runs
from agentrt.serving.programs.runs import ProgramRuns
from agentrt.serving.programs.sessions import add_sessions
from agentrt.serving.server import Server

_LONGEST_PAUSE_S = 1.0


@asynccontextmanager
async def api(server: Server) -> AsyncIterator[APIRouter]:
    """Sessions and program runs over ``server``. At its end all clients' programs end."""
    runs = ProgramRuns(server)
    router = APIRouter(prefix="/v1", route_class=OpenAIRoute)
    add_sessions(router, server)
    answer = add_runs(router, server, runs)
    pause_s = min(_LONGEST_PAUSE_S, server.bounds.idle_s / 4, server.bounds.silent_idle_s / 4)

    async def sweep() -> None:
        """End programs without a request for long; while the server drains, all idle ones."""
        server.programs.sweep(all_idle=server.draining)
        runs.sweep()

    async with AsyncExitStack() as stack:
        if server.submit:
            await stack.enter_async_context(_submissions()(router, server, runs, answer))
        try:
            async with server.background.doing("sweep of programs", sweep, pause_s):
                yield router
        finally:
            await runs.close()
            server.programs.end_all()


def _submissions() -> Any:
    try:
        from agentrt.serving.submit.api import submissions
    except ImportError as error:
        text = f"--submit needs agentrt[submit] ({error}): pip install 'agentrt[submit]'"
        raise ConfigError(text) from error
    return submissions
