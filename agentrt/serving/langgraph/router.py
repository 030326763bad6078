"""Opens the LangGraph API: its state, its queue of runs, and its routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version

from fastapi import APIRouter, Depends
from langgraph_sdk import Auth

from agentrt import __version__
from agentrt.serving.langgraph.a2a import routes as a2a_routes
from agentrt.serving.langgraph.auth.hooks import authenticate
from agentrt.serving.langgraph.crons.routes import LOOK_S, CronClock, Crons
from agentrt.serving.langgraph.protocol.commands import ProtocolCommands
from agentrt.serving.langgraph.protocol.routes import EVENTS, ProtocolRoutes
from agentrt.serving.langgraph.responses import JSON
from agentrt.serving.langgraph.routes import Route, Routes
from agentrt.serving.langgraph.runs.queue import MAX_RUNNING, RunQueue, open_queue
from agentrt.serving.langgraph.runs.routes import RunRoutes
from agentrt.serving.langgraph.runs.starts import StartRoutes
from agentrt.serving.langgraph.store import StoreRoutes
from agentrt.serving.langgraph.tenant_state import TenantState, open_tenant_state, sweeping
from agentrt.serving.langgraph.threads.questions import ThreadQuestions
from agentrt.serving.langgraph.threads.routes import StateRoutes, ThreadRoutes
from agentrt.serving.server import Server


@asynccontextmanager
async def open_api(server: Server, auth: Auth | None) -> AsyncIterator[APIRouter]:
    """Open the LangGraph API, and yield its routes. Unfinished runs of the last server resume.

    Raises `ConfigError` and `ProgramLoadError` as `open_tenant_state` does.
    """
    _widen_default_executor()
    server.has_users = auth is not None
    async with AsyncExitStack() as stack:
        state = await stack.enter_async_context(open_tenant_state(server))
        queue = await stack.enter_async_context(open_queue(state))
        starts = StartRoutes(state, queue)
        questions = ThreadQuestions(state, starts, auth)
        crons = Crons(state, starts)
        clock = CronClock(crons, state.storage.database, starts, auth)
        scheduled = server.background.doing("runs by the clock", clock.look, LOOK_S)
        await stack.enter_async_context(scheduled)
        await stack.enter_async_context(sweeping(state, questions.expire))
        server.checks["disk"] = state.room.shortage
        stack.callback(server.checks.pop, "disk")
        server.questions.sources.append(questions)
        stack.callback(server.questions.sources.remove, questions)
        yield _routes(state, queue, starts, crons, auth)


def _widen_default_executor() -> None:
    """Give the event loop a thread pool in which a synchronous node of each run can run at the same
    time, so that the engine, and not a small pool, decides which call waits. The pool starts
    threads only when it needs them.
    """
    pool = ThreadPoolExecutor(MAX_RUNNING, thread_name_prefix="run")
    asyncio.get_running_loop().set_default_executor(pool)


def _routes(
    state: TenantState,
    queue: RunQueue,
    starts: StartRoutes,
    crons: Crons,
    auth: Auth | None,
) -> APIRouter:
    public = APIRouter(route_class=Route, tags=["langgraph"])
    public.add_api_route("/ok", ok)
    public.add_api_route("/info", info)
    guarded = APIRouter(
        route_class=Route,
        dependencies=[Depends(authenticate(auth))],
        tags=["langgraph"],
    )
    states = StateRoutes(state, queue)
    threads = ThreadRoutes(state, queue, states)
    state.assistants.forget_threads = threads.forget_all_of
    runs = RunRoutes(state, queue)
    protocol = ProtocolRoutes(state, queue, ProtocolCommands(state, starts, states))
    state.server.at_drain.append(protocol.drain)
    public.add_api_websocket_route(EVENTS, protocol.socket)
    store = StoreRoutes(state.storage, state.quotas)
    served: list[Routes] = [state.assistants, threads, states, starts, crons, runs, protocol, store]
    if a2a_routes.is_installed():
        served.append(a2a_routes.AgentRoutes(state, queue, starts, runs))
    for routes in served:
        routes.add_to(guarded, state.room.check)
    router = APIRouter()
    router.include_router(public)
    router.include_router(guarded)
    return router


async def ok() -> JSON:
    """Answer that the server is alive."""
    return JSON({"ok": True})


async def info() -> JSON:
    """Return the server's version, and say which parts of the API it has."""
    return JSON(
        {
            "version": __version__,
            "langgraph_py_version": version("langgraph"),
            "flags": {"assistants": True, "crons": True, "langsmith": False},
            "strict_resume": True,
            "host": {"kind": "agentrt"},
        }
    )
