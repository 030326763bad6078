"""The state that all requests share: the storage, the graphs, and the rows of all tenants."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from agentrt.integrations.langchain.client import RuntimeClient
from agentrt.integrations.langchain.shared import lend
from agentrt.integrations.langgraph.graphs import Access, Purpose
from agentrt.integrations.langgraph.threads import thread_config
from agentrt.serving.langgraph.assistants.configs import (
    CONFIGS,
    caller_access,
    graph_configs,
    run_access,
)
from agentrt.serving.langgraph.assistants.graphs import Graphs, open_graphs
from agentrt.serving.langgraph.assistants.routes import Assistants
from agentrt.serving.langgraph.auth.hooks import Requester
from agentrt.serving.langgraph.database.interrupts import Deadlines
from agentrt.serving.langgraph.database.kept_responses import KeptResponses
from agentrt.serving.langgraph.database.quotas import Quotas
from agentrt.serving.langgraph.database.runs import Runs
from agentrt.serving.langgraph.database.storage import Storage, open_storage
from agentrt.serving.langgraph.database.threads import Threads, sweep
from agentrt.serving.langgraph.outages import DiskRoom
from agentrt.serving.langgraph.webhooks import Webhooks, open_webhooks
from agentrt.serving.server import Server

LINGER_S = 300.0
"""Seconds for which a stateless run can still be joined after its end."""
REPLAY_S = 3600.0
"""Seconds for which the stream of a resumable run can still be replayed after its end."""
_SWEEP_S = 30.0
KEEP_LOCK_S = 5.0
"""Seconds between checks that this server still has the lock of the database."""


@dataclass(frozen=True, slots=True)
class TenantState:
    """The objects with which runs and request handlers work, for all tenants."""

    server: Server
    storage: Storage
    graphs: Graphs
    assistants: Assistants
    threads: Threads
    runs: Runs
    deadlines: Deadlines
    webhooks: Webhooks
    quotas: Quotas
    room: DiskRoom

    async def thread(
        self, caller: Requester, key: UUID, action: str, about: Mapping[str, Any] | None = None
    ) -> sa.Row[Any]:
        """Return a thread after asking the hooks whether the caller may do ``action`` with it.

        Hooks get the fields ``about`` in addition to the thread's id. Raises 403 if a hook refuses,
        and 404 if the caller may not see the thread or it does not exist.
        """
        only = await caller.authorize("threads", action, {"thread_id": key, **(about or {})})
        return await self.threads.get(caller.tenant, key, only)

    async def access_to(
        self, caller: Requester, thread: str, graph_id: str, purpose: Purpose
    ) -> Access:
        """Return the access with which to make a thread's graph: the config of the thread's last
        run, and the caller's user. If the last run is of another graph or does not exist, the
        config names only the thread. A graph that is the same for all runs needs no access.
        """
        if not self.graphs.varies(graph_id):
            return Access()
        record = await self.runs.last_of(thread)
        if record is None or record.graph_id != graph_id:
            return caller_access(caller, purpose, thread_config(thread))
        return replace(run_access(record, purpose), user=caller.user)

    async def clear_away(self, now: float) -> None:
        """Delete expired items of the store, expired threads or their older checkpoints (`sweep`),
        old streams, and temporary threads that are not in use and have not changed for `LINGER_S`
        seconds before ``now`` (seconds since 1970).
        """
        await self.storage.forget_items()
        if await sweep(self.storage.database, now):
            self.server.questions.changed()
        await self.runs.forget_streams(now - REPLAY_S)
        if left := await self.threads.left_over(now - LINGER_S):
            await self.threads.remove(left)


@asynccontextmanager
async def open_tenant_state(server: Server) -> AsyncIterator[TenantState]:
    """Open the storage and the graphs of ``server``.

    Until the ``with`` block ends, chat models without an engine of their own use the server's
    engine. Raises `ConfigError` if the database cannot be opened or is in use by another server, or
    if the environment variable LANGGRAPH_CONFIG is invalid. Raises `ProgramLoadError` for a graph
    that cannot be made.
    """
    configs = graph_configs(os.environ.get(CONFIGS))
    async with AsyncExitStack() as stack:
        storage = await stack.enter_async_context(
            open_storage(server.database, server.lifetimes, server.machine)
        )
        stack.enter_context(lend(RuntimeClient.borrow(server.runtime)))
        graphs = await stack.enter_async_context(open_graphs(server, storage))
        database, quotas = storage.database, Quotas(server)
        server.response_rows = KeptResponses(database, server.under_way)
        stack.callback(setattr, server, "response_rows", None)
        asks, deadlines = server.questions.changed, Deadlines(database.clock)
        if database.lock is not None:
            keeping = server.background.doing(
                "lock of the database", database.lock.keep, KEEP_LOCK_S
            )
            await stack.enter_async_context(keeping)
        yield TenantState(
            server,
            storage,
            graphs,
            Assistants(database, quotas, graphs, configs),
            Threads(database, quotas, asks, deadlines),
            Runs(database, quotas, asks),
            deadlines,
            await stack.enter_async_context(open_webhooks(server, database)),
            quotas,
            DiskRoom(database.address.file),
        )


@asynccontextmanager
async def sweeping(
    state: TenantState, expire: Callable[[], Awaitable[None]]
) -> AsyncIterator[None]:
    """Until the ``with`` block ends, run `TenantState.clear_away` in the background, and store the
    readings of the database's clock. Call ``expire`` at the beginning, when a question's deadline
    passes or a nearer deadline is noted, and at the latest `_SWEEP_S` seconds after the last call.
    """

    async def clear_away() -> None:
        await state.clear_away(time.time())

    async def expire_in_time() -> None:
        await expire()
        await state.deadlines.wait(_SWEEP_S)

    doing, database = state.server.background.doing, state.storage.database
    async with (
        doing("sweep of threads", clear_away, _SWEEP_S),
        doing("clock of the database", database.keep_clock, database.clock.look_s),
        doing("expiry of questions", expire_in_time),
    ):
        yield
