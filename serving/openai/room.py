"""The room of the OpenAI API: its routes, and the tasks behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter

from agentrt.serving.openai.client_programs import ClientPrograms
from agentrt.serving.openai.faults import OpenAIRoute
from agentrt.serving.openai.generation import add_generation
from agentrt.serving.openai.programs import ProgramRuns, add_programs
from agentrt.serving.openai.request_handler import RequestHandler
from agentrt.serving.openai.sessions import add_sessions
from agentrt.serving.server import Server

_LONGEST_PAUSE_S = 1.0


@asynccontextmanager
async def api(server: Server) -> AsyncIterator[APIRouter]:
    """The OpenAI API over ``server``."""
    desk = RequestHandler(server)
    runs = ProgramRuns(server)
    router = APIRouter(prefix="/v1", route_class=OpenAIRoute)
    add_generation(router, desk)
    add_sessions(router, desk)
    add_programs(router, desk, runs)
    sweeper = desk.calls.start(_sweep(server, desk.guests, runs))
    try:
        yield router
    finally:
        sweeper.cancel()
        await desk.calls.close()
        await runs.close()
        desk.guests.end_all()


def _pause_s(server: Server) -> float:
    shortest = min(server.bounds.idle_s, server.bounds.silent_idle_s)
    return min(_LONGEST_PAUSE_S, shortest / 4)


async def _sweep(server: Server, guests: ClientPrograms, runs: ProgramRuns) -> None:
    """End what was not heard of for long, again and again; at the end, what nobody is in."""
    while True:
        await asyncio.sleep(_pause_s(server))
        guests.sweep(all_idle=server.draining)
        runs.sweep()
