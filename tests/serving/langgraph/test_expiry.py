"""The nearest deadline of a thread's questions is waited for, whenever it becomes known."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from agentrt.serving.langgraph.expiry import Deadlines

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
