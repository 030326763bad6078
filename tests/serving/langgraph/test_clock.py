"""The machine's clock is set, forward or back, while a server runs and between two."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base import id as ids

from agentrt.serving.langgraph import run_queue
from agentrt.serving.langgraph.interrupts import Deadlines
from agentrt.serving.langgraph.storage import open_storage
from tests.serving.langgraph.test_runs import IN

HOUR_S = 3600.0


async def test_a_run_does_not_wait_for_the_clock_to_catch_up(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was created an hour "before" it is queued."""
    early = SimpleNamespace(time=lambda: time.time() - HOUR_S)
    monkeypatch.setattr(run_queue, "time", early)
    answer = await http.post("/runs/wait", json={"assistant_id": "steps", "input": IN}, timeout=60)
    assert answer.status_code == 200


async def test_a_wait_for_deadlines_is_not_longer_than_was_said() -> None:
    """The clock may be set meanwhile. A deadline that is nearer ends it, and a later one not."""
    deadlines = Deadlines()
    deadlines.note(time.time() + HOUR_S / 2)
    async with asyncio.timeout(60):
        await deadlines.wait(0.05)
    deadlines.note(time.time() + HOUR_S)
    waiting = asyncio.create_task(deadlines.wait(HOUR_S))
    await asyncio.sleep(0)
    deadlines.note(time.time() + 2 * HOUR_S)
    await asyncio.sleep(0)
    assert not waiting.done()
    deadlines.note(time.time() + HOUR_S / 4)
    async with asyncio.timeout(60):
        await waiting


async def test_checkpoints_are_later_than_those_of_a_server_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread goes on from its greatest id, and ids begin with their time."""
    given = f"sqlite:{tmp_path / 'threads.db'}"
    config: Any = {"configurable": {"thread_id": str(uuid4()), "checkpoint_ns": ""}}
    monkeypatch.setattr(ids, "_last_v6_timestamp", None)
    with monkeypatch.context() as before:
        before.setattr(ids, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + 10**9 * 3600))
        old = str(ids.uuid6())
    async with open_storage(given) as storage:
        checkpoint = empty_checkpoint()
        checkpoint["id"] = old
        await storage.saver.aput(config, checkpoint, {}, {})
    ids._last_v6_timestamp = None
    assert str(ids.uuid6()) < old
    async with open_storage(given):
        assert str(ids.uuid6()) > old
