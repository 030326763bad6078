"""The data of ended runs is deleted when it expires."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from sqlalchemy import Row

from agentrt import Runtime
from agentrt.serving.background import Background
from agentrt.serving.langgraph import tenant_state
from agentrt.serving.langgraph.database.runs import NewRun
from agentrt.serving.langgraph.runs.streams import EventLog, stored_events
from agentrt.serving.langgraph.store import TenantStore
from agentrt.serving.langgraph.tenant_state import (
    LINGER_S,
    REPLAY_S,
    TenantState,
    open_tenant_state,
)
from agentrt.serving.server import Server
from tests.doubles.scripted import ScriptedExecutor


@pytest_asyncio.fixture
async def state(tmp_path: Path) -> AsyncIterator[TenantState]:
    """A server's state, without a queue that runs anything."""
    server = Server(Runtime(ScriptedExecutor()), (), {}, f"sqlite:{tmp_path / 'a.db'}")
    async with open_tenant_state(server) as state:
        yield state


def a_run(*, temporary: bool) -> NewRun:
    texts = {"tenant": "t", "assistant_id": str(uuid4()), "graph_id": "g"}
    columns = {**texts, "multitask_strategy": "enqueue", "metadata": {}, "start_at": 0.0}
    return NewRun(None, columns, {}, temporary, True)


async def end(state: TenantState, row: Row[Any]) -> None:
    update = state.runs.end(row.run_id, "success", b"1", None)
    await state.threads.update_state(str(row.thread_id), {"status": "idle"}, update)


async def test_threads_of_lone_runs_go_some_time_after_their_end(state: TenantState) -> None:
    """1. A run that has not ended stays. 2. Ended, it lingers. 3. Then it goes; others stay."""
    lone, _ = await state.runs.enter(a_run(temporary=True), None)
    kept, _ = await state.runs.enter(a_run(temporary=False), None)
    for row in (lone, kept):
        await state.clear_away(time.time() + 2 * LINGER_S)
        await end(state, row)
        await state.clear_away(time.time() + LINGER_S / 2)
        assert (await state.runs.get("t", row.thread_id, row.run_id)).status == "success"
    await state.clear_away(time.time() + 2 * LINGER_S)
    assert await state.threads.left_over(time.time() + 10 * LINGER_S) == []
    assert (await state.runs.get("t", kept.thread_id, kept.run_id)).result == "1"
    with pytest.raises(Exception, match="not found"):
        await state.runs.get("t", lone.thread_id, lone.run_id)


async def test_streams_can_be_replayed_for_a_while(state: TenantState) -> None:
    database = state.storage.database
    row, _ = await state.runs.enter(a_run(temporary=False), None)
    log = EventLog(row.run_id, database, resumable=True)
    await log.put([("values", b"1")])
    await state.clear_away(time.time() + 2 * REPLAY_S)
    assert await stored_events(database, row.run_id, 0)
    await end(state, row)
    await state.clear_away(time.time() + REPLAY_S / 2)
    assert await stored_events(database, row.run_id, 0)
    await state.clear_away(time.time() + 2 * REPLAY_S)
    assert not await stored_events(database, row.run_id, 0)


async def test_a_locked_database_does_not_end_the_sweep(
    state: TenantState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of work continues by itself: questions expire while threads cannot be swept."""
    state.server.background = Background(rest_s=0.0)
    monkeypatch.setattr(tenant_state, "_SWEEP_S", 0.0)
    locked, swept, expired = 3, asyncio.Event(), asyncio.Event()

    async def forget_streams(before: float) -> None:
        nonlocal locked
        locked -= 1
        if locked >= 0:
            raise sqlite3.OperationalError("database is locked")
        swept.set()

    async def expire() -> None:
        expired.set()

    monkeypatch.setattr(state.runs, "forget_streams", forget_streams)
    async with asyncio.timeout(60), tenant_state.sweeping(state, expire):
        await expired.wait()
        await swept.wait()


async def test_items_of_the_store_go_when_their_time_is_over(state: TenantState) -> None:
    """1. One is over its time, one is not, one has none. 2. One is written again in time."""
    store = TenantStore(state.storage.store, "t")
    for key, minutes in (("over", -1.0), ("there", 1.0), ("ever", None)):
        await store.aput(("n",), key, {"v": 1}, ttl=minutes)
    await state.clear_away(time.time())
    assert {one.key for one in await store.asearch(("n",))} == {"there", "ever"}
    await store.aput(("n",), "again", {"v": 1}, ttl=-1.0)
    await store.aput(("n",), "again", {"v": 2}, ttl=2.0)
    await state.clear_away(time.time())
    assert await store.aget(("n",), "again", refresh_ttl=True) is not None
