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


@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S])
async def test_a_wait_for_deadlines_is_as_long_as_was_said(step_s: float) -> None:
    """Set back, it would last an hour; set forward, what is over its time is found."""
    offset = 0.0
    deadlines = Deadlines(lambda: time.time() + offset)
    deadlines.add(time.time() + HOUR_S / 2)
    waiting = asyncio.create_task(deadlines.passed(0.05))
    await asyncio.sleep(0)
    offset = step_s
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


# -- deadlines of questions ----------------------------------------------------------------

SWEEP_S = 1000.0


def asking(*times: Any) -> dict[str, Any]:
    values: list[Any] = [{"question": "?", "expires_at": one} for one in times]
    return {"task": [{"id": "a", "value": one} for one in ["?", {}, *values]]}


@pytest.fixture
def deadlines() -> Deadlines:
    return Deadlines()


async def test_a_nearer_deadline_that_comes_later_is_the_one(deadlines: Deadlines) -> None:
    deadlines.note(asking(time.time() + SWEEP_S))
    waiting = asyncio.create_task(deadlines.passed(SWEEP_S))
    await asyncio.sleep(0)
    deadlines.note(asking("soon", time.time() + 2 * SWEEP_S))
    await asyncio.sleep(0)
    assert not waiting.done()
    soon = time.time() + 0.05
    deadlines.note(asking(time.time() + SWEEP_S, soon))
    async with asyncio.timeout(SWEEP_S / 10):
        await waiting
    assert time.time() >= soon


async def test_what_was_forgotten_is_not_waited_for(deadlines: Deadlines) -> None:
    deadlines.note(asking(0.0))
    await deadlines.passed(SWEEP_S)
    deadlines.forget()
    deadlines.note(None)
    waiting = asyncio.create_task(deadlines.passed(SWEEP_S))
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
