"""Opens the LangGraph API: database, graphs, queue, and the routes over them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from fastapi import APIRouter, Depends
from langgraph_sdk import Auth

from agentrt import tracking
from agentrt.integrations.langchain.portal import Portal
from agentrt.integrations.langchain.shared import lend
from agentrt.serving.langgraph.answers import Route
from agentrt.serving.langgraph.assistants import Assistants
from agentrt.serving.langgraph.auth import Gate
from agentrt.serving.langgraph.execution import Services
from agentrt.serving.langgraph.graphs import Graphs, open_graphs
from agentrt.serving.langgraph.keepers import Storage, open_storage
from agentrt.serving.langgraph.runqueue import MAX_RUNNING, RunQueue, open_queue
from agentrt.serving.langgraph.runs import Runs
from agentrt.serving.langgraph.threads import Threads
from agentrt.serving.server import Server

LINGER_S = 300.0
"""How long a run without a thread can still be joined after its end."""
REPLAY_S = 3600.0
"""How long the stream of a resumable run can still be replayed after its end."""
_SWEEP_S = 30.0


@dataclass(frozen=True, slots=True)
class TenantState:
    """What the routes work with."""

    server: Server
    storage: Storage
    graphs: Graphs
    assistants: Assistants
    threads: Threads
    runs: Runs
    queue: RunQueue


@asynccontextmanager
async def open_house(server: Server, auth: Auth | None) -> AsyncIterator[APIRouter]:
    """The routes of the LangGraph API. Runs that were under way go on.

    Meanwhile chat models without an engine of their own use the server's.
    """
    _make_room()
    async with AsyncExitStack() as stack:
        storage = await stack.enter_async_context(open_storage(server.database))
        stack.enter_context(lend(Portal.borrow(server.runtime)))
        graphs = await stack.enter_async_context(open_graphs(server, storage))
        runs, threads = Runs(storage.database), Threads(storage.database)
        services = Services(server.runtime, storage, graphs, runs, threads)
        queue = await stack.enter_async_context(open_queue(services))
        tenant_state = TenantState(
            server, storage, graphs, Assistants(storage.database, graphs), threads, runs, queue
        )
        await stack.enter_async_context(_sweeping(tenant_state))
        yield _routes(tenant_state, Gate(auth))


def _make_room() -> None:
    """Let the synchronous nodes of all runs run at once: the engine, and not a pool of a few
    threads, is to say whose call waits. Threads are made when they are needed.
    """
    pool = ThreadPoolExecutor(MAX_RUNNING, thread_name_prefix="run")
    asyncio.get_running_loop().set_default_executor(pool)


def _routes(tenant_state: TenantState, gate: Gate) -> APIRouter:
    from agentrt.serving.langgraph.assistant_routes import AssistantRoutes
    from agentrt.serving.langgraph.info_routes import InfoRoutes
    from agentrt.serving.langgraph.run_routes import RunRoutes
    from agentrt.serving.langgraph.start_routes import StartRoutes
    from agentrt.serving.langgraph.state_routes import StateRoutes
    from agentrt.serving.langgraph.store_routes import StoreRoutes
    from agentrt.serving.langgraph.thread_routes import ThreadRoutes

    guarded = APIRouter(route_class=Route, dependencies=[Depends(gate.admit)], tags=["langgraph"])
    AssistantRoutes(tenant_state).add_to(guarded)
    # What is more specific comes first: /threads/search is no thread.
    ThreadRoutes(tenant_state).add_to(guarded)
    StateRoutes(tenant_state).add_to(guarded)
    StartRoutes(tenant_state).add_to(guarded)
    RunRoutes(tenant_state).add_to(guarded)
    StoreRoutes(tenant_state).add_to(guarded)
    router = APIRouter()
    InfoRoutes(tenant_state).add_to(router)
    router.include_router(guarded)
    return router


@asynccontextmanager
async def _sweeping(tenant_state: TenantState) -> AsyncIterator[None]:
    """Meanwhile, what runs without a thread have left is cleared away some time after."""
    with tracking.outside():
        task = asyncio.create_task(_sweep(tenant_state), name="agentrt-sweep")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _sweep(tenant_state: TenantState) -> None:
    while True:
        await clear_away(tenant_state, time.time())
        await asyncio.sleep(_SWEEP_S)


async def clear_away(tenant_state: TenantState, now: float) -> None:
    """Forget temporary threads whose runs have ended a while ago, and streams of long ago."""
    await tenant_state.runs.forget_streams(now - REPLAY_S)
    left = await tenant_state.threads.left_over(now - LINGER_S)
    for thread in left:
        await tenant_state.storage.saver.adelete_thread(thread)
    if left:
        await tenant_state.threads.remove(left)
