"""What is left of runs is cleared away, when its time has come."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from sqlalchemy import Row

from agentrt import Runtime
from agentrt.serving.langgraph.assistants import Assistants
from agentrt.serving.langgraph.eventlog import EventLog, stored
from agentrt.serving.langgraph.execution import Services
from agentrt.serving.langgraph.graphs import open_graphs
from agentrt.serving.langgraph.keepers import open_storage
from agentrt.serving.langgraph.runqueue import RunQueue
from agentrt.serving.langgraph.runs import Order, Runs
from agentrt.serving.langgraph.tenant_state import LINGER_S, REPLAY_S, TenantState, clear_away
from agentrt.serving.langgraph.threads import Threads
from agentrt.serving.server import Server
from agentrt.testing.scripted import ScriptedExecutor


@pytest_asyncio.fixture
async def tenant_state(tmp_path: Path) -> AsyncIterator[TenantState]:
    """A server's inside, whose queue nobody serves."""
    server = Server(Runtime(ScriptedExecutor()), (), {}, f"sqlite:{tmp_path / 'a.db'}")
    async with open_storage(server.database) as storage, open_graphs(server, storage) as graphs:
        runs, threads = Runs(storage.database), Threads(storage.database)
        queue = RunQueue(Services(server.runtime, storage, graphs, runs, threads))
        assistants = Assistants(storage.database, graphs)
        yield TenantState(server, storage, graphs, assistants, threads, runs, queue)


def an_order(*, temporary: bool) -> Order:
    return Order(str(uuid4()), "g", {}, {}, "enqueue", 0, True, temporary, True)


async def end(tenant_state: TenantState, row: Row[Any]) -> None:
    ending = tenant_state.runs.ending(row.run_id, "success", b"1", None)
    await tenant_state.threads.settle(str(row.thread_id), {"status": "idle"}, ending)


async def test_threads_of_lone_runs_go_some_time_after_their_end(tenant_state: TenantState) -> None:
    """1. A run that has not ended stays. 2. Ended, it lingers. 3. Then it goes; others stay."""
    lone, _ = await tenant_state.runs.enter("t", None, an_order(temporary=True), None)
    kept, _ = await tenant_state.runs.enter("t", None, an_order(temporary=False), None)
    for row in (lone, kept):
        await clear_away(tenant_state, time.time() + 2 * LINGER_S)
        await end(tenant_state, row)
        await clear_away(tenant_state, time.time() + LINGER_S / 2)
        assert (await tenant_state.runs.get("t", row.thread_id, row.run_id)).status == "success"
    await clear_away(tenant_state, time.time() + 2 * LINGER_S)
    assert await tenant_state.threads.left_over(time.time() + 10 * LINGER_S) == []
    assert (await tenant_state.runs.get("t", kept.thread_id, kept.run_id)).result == "1"
    with pytest.raises(Exception, match="not found"):
        await tenant_state.runs.get("t", lone.thread_id, lone.run_id)


async def test_streams_can_be_replayed_for_a_while(tenant_state: TenantState) -> None:
    database = tenant_state.storage.database
    row, _ = await tenant_state.runs.enter("t", None, an_order(temporary=False), None)
    log = EventLog(row.run_id, database, resumable=True)
    await log.put([("values", b"1")])
    await clear_away(tenant_state, time.time() + 2 * REPLAY_S)
    assert await stored(database, row.run_id, 0)
    await end(tenant_state, row)
    await clear_away(tenant_state, time.time() + REPLAY_S / 2)
    assert await stored(database, row.run_id, 0)
    await clear_away(tenant_state, time.time() + 2 * REPLAY_S)
    assert not await stored(database, row.run_id, 0)
