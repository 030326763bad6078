"""Writes of a run after its rollback, and during its cancellation."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph
from langgraph_sdk import get_client

from agentrt.serving.langgraph.database._compat_sqlite import WritingConnection
from agentrt.serving.langgraph.database.storage import RevokedRuns, Storage, open_storage
from tests.serving.langgraph.graphs import TURN_S
from tests.serving.langgraph.nested import Told
from tests.serving.langgraph.runs.test_runs import a_thread, given
from tests.serving.langgraph.serve import serving

LATE: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "run_id": "late"}}
OTHER: Any = {"configurable": {**LATE["configurable"], "run_id": "other"}}


@pytest_asyncio.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    async with open_storage(f"sqlite:{tmp_path / 'a.db'}") as storage:
        yield storage


@pytest.mark.parametrize(("config", "kept"), [(LATE, False), (OTHER, True)])
async def test_late_writes_are_discarded(storage: Storage, config: Any, kept: bool) -> None:
    await storage.revoked.revoke("late")
    await storage.saver.aput(config, empty_checkpoint(), {}, {})
    assert (await storage.saver.aget_tuple(OTHER) is not None) is kept


async def test_revoking_a_run_waits_for_its_current_write() -> None:
    revoked = RevokedRuns()
    with revoked.writing(LATE) as may:
        revoking = asyncio.create_task(revoked.revoke("late"))
        await asyncio.sleep(0)
        assert may
        assert not revoking.done()
        await revoked.revoke("other")
    await revoking
    with revoked.writing(LATE) as may:
        assert not may


@pytest.mark.parametrize("what", ["checkpoint", "writes"])
async def test_a_cancelled_write_releases_its_lock(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    at_commit, go_on, commit = asyncio.Event(), asyncio.Event(), WritingConnection.commit

    async def slow_commit(connection: WritingConnection) -> None:
        at_commit.set()
        await go_on.wait()
        await commit(connection)

    monkeypatch.setattr(WritingConnection, "commit", slow_commit)
    placed: Any = {"configurable": {**OTHER["configurable"], "checkpoint_id": "1"}}
    write: Any = (
        storage.saver.aput(OTHER, empty_checkpoint(), {}, {})
        if what == "checkpoint"
        else storage.saver.aput_writes(placed, [("channel", 1)], "task")
    )
    writing = asyncio.create_task(write)
    await at_commit.wait()
    writing.cancel()
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait([writing])
    with closing(sqlite3.connect(storage.database.address.file or "", timeout=0)) as other:
        other.execute("BEGIN IMMEDIATE")


# -- a node in a thread --------------------------------------------------------------------


class Node:
    """A node in a thread, which nothing stops: it waits, and then calls its subgraph."""

    def __init__(self) -> None:
        self.begun, self.go_on, self.over = (threading.Event() for _ in range(3))
        self._sub = StateGraph(Told).add_node("inner", lambda _: {"told": ["inner"]})
        self._sub.add_edge(START, "inner")

    def graph(self) -> StateGraph[Any]:
        sub = self._sub.compile(checkpointer=True)

        def call(state: Told) -> Any:
            self.begun.set()
            assert self.go_on.wait(TURN_S)
            try:
                return sub.invoke(state)
            finally:
                self.over.set()

        return StateGraph(Told).add_node("call", call).add_edge(START, "call")


async def test_a_continued_thread_leaves_no_state(tmp_path: Path) -> None:
    """The next run does not find the state of the earlier run's subgraph."""
    node = Node()
    with serving({"slow": node.graph()}, tmp_path / "a.db") as it:
        async with get_client(url=it.url) as client:
            thread = await a_thread(client)
            run = await client.runs.create(thread, "slow", input=given(told=["first"]))
            assert await asyncio.to_thread(node.begun.wait, TURN_S)
            await client.runs.cancel(thread, run["run_id"], wait=True, action="rollback")
            node.go_on.set()
            assert await asyncio.to_thread(node.over.wait, TURN_S)
            done: Any = await client.runs.wait(thread, "slow", input=given(told=["second"]))
            assert done["told"] == ["second", "inner"]
