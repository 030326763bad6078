"""The routes of the OpenAI API, and the tasks behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter

from agentrt.serving.openai.generation import add_generation
from agentrt.serving.openai.request_handler import RequestHandler
from agentrt.serving.programs.errors import OpenAIRoute
from agentrt.serving.server import Server


@asynccontextmanager
async def api(server: Server) -> AsyncIterator[APIRouter]:
    """The OpenAI API over ``server``."""
    handler = RequestHandler(server)
    router = APIRouter(prefix="/v1", route_class=OpenAIRoute)
    add_generation(router, handler)
    try:
        yield router
    finally:
        await handler.calls.tasks.close()
