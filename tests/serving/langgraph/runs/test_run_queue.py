"""A run that waited for another is its own, whoever's end lets it begin."""

from __future__ import annotations

import asyncio
import contextvars
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from agentrt import Runtime
from agentrt.serving.langgraph.database.runs import record_of
from agentrt.serving.langgraph.outages import READER
from agentrt.serving.langgraph.runs import queue as run_queue
from agentrt.serving.langgraph.runs.queue import RunQueue
from agentrt.serving.langgraph.runs.streams import LiveRun
from agentrt.serving.langgraph.tenant_state import open_tenant_state
from agentrt.serving.server import Server
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.langgraph.runs.test_sweep import a_run

ASKED_BY: ContextVar[str] = ContextVar("asked_by")
"""As a trace has it, of which the spans of a request are."""


async def test_a_run_has_the_context_of_who_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began within the end of the run before it, which may be another tenant's. What it reads
    of the database is no client's read: it does not fail where its tenant reads much.
    """
    seen: list[tuple[str, str | None]] = []

    class Execution:
        def __init__(self, live: LiveRun, state: Any) -> None:
            pass

        async def run(self) -> None:
            seen.append((ASKED_BY.get(), READER.get()))

    monkeypatch.setattr(run_queue, "Execution", Execution)
    monkeypatch.setattr(run_queue, "MAX_RUNNING", 1)
    server = Server(Runtime(ScriptedExecutor()), (), {}, f"sqlite:{tmp_path / 'a.db'}")
    async with open_tenant_state(server) as state:
        queue, lives = RunQueue(state), []
        for tenant in ("ann", "eve"):
            row, _ = await state.runs.enter(a_run(temporary=True), None)

            def enter(tenant: str = tenant, row: Any = row) -> LiveRun:
                ASKED_BY.set(tenant)
                READER.set(tenant)
                return queue.enter(record_of(row))

            lives.append(contextvars.copy_context().run(enter))
        await asyncio.gather(*(live.done.wait() for live in lives))
        await queue.close()
    assert seen == [("ann", None), ("eve", None)]
