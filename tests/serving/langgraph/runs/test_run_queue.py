"""A run that waited for another one starts when that ends, in its own context."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph_sdk import get_sync_client

from agentrt import Runtime
from agentrt.serving.langgraph.outages import READER
from agentrt.serving.langgraph.runs import queue as run_queue
from agentrt.serving.langgraph.runs.queue import RunQueue
from agentrt.serving.langgraph.runs.streams import LiveRun
from agentrt.serving.langgraph.tenant_state import open_tenant_state
from agentrt.serving.server import Server
from agentrt.serving.tenants import BusyError
from tests.doubles.scripted import ScriptedExecutor
from tests.lines import lines_run
from tests.serving.langgraph.runs.test_sweep import a_run
from tests.serving.langgraph.serve import serving

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

            async def enter(tenant: str = tenant) -> LiveRun:
                ASKED_BY.set(tenant)
                READER.set(tenant)
                [(_, live)] = await queue.enter((a_run(temporary=True), None))
                return live

            lives.append(await asyncio.create_task(enter()))
        await asyncio.gather(*(live.done.wait() for live in lives))
        await queue.close()
    assert seen == [("ann", None), ("eve", None)]


async def test_a_run_whose_end_fails_lets_the_next_run_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[str] = []

    class Execution:
        def __init__(self, live: LiveRun, state: Any) -> None:
            self._live = live

        async def run(self) -> None:
            started.append(self._live.record.run_id)
            if len(started) == 1:
                raise RuntimeError("a bug")

    monkeypatch.setattr(run_queue, "Execution", Execution)
    monkeypatch.setattr(run_queue, "MAX_RUNNING", 1)
    server = Server(Runtime(ScriptedExecutor()), (), {}, f"sqlite:{tmp_path / 'a.db'}")
    async with open_tenant_state(server) as state:
        queue = RunQueue(state)
        lives = [(await queue.enter((a_run(temporary=True), None)))[0][1] for _ in range(2)]
        for live in lives:
            await live.ended()
        await queue.close()
    assert started == [live.record.run_id for live in lives]
    assert "a bug" in caplog.text


async def test_runs_of_other_threads_start_where_runs_were_at_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs of a thread start one after another, and the end of one that was cancelled before
    it began starts none beside the one under way.
    """
    started: list[str] = []
    goes_on = asyncio.Event()

    class Execution:
        def __init__(self, live: LiveRun, state: Any) -> None:
            self._live = live

        async def run(self) -> None:
            if self._live.action is None:
                started.append(self._live.record.run_id)
                await goes_on.wait()

    monkeypatch.setattr(run_queue, "Execution", Execution)
    monkeypatch.setattr(run_queue, "MAX_RUNNING", 2)
    server = Server(Runtime(ScriptedExecutor()), (), {}, f"sqlite:{tmp_path / 'a.db'}")
    async with open_tenant_state(server) as state:
        queue = RunQueue(state)
        [(_, first)] = await queue.enter((a_run(temporary=True), None))
        same = replace(a_run(temporary=False), thread=UUID(first.record.thread_id))
        seconds = [
            (await queue.enter((replace(same, run_id=uuid4()), None)))[0][1] for _ in range(3)
        ]
        others = [(await queue.enter((a_run(temporary=True), None)))[0][1] for _ in range(3)]
        await asyncio.sleep(0)
        assert queue.cancel(seconds[0], "interrupt")
        await seconds[0].done.wait()
        assert started == [run.record.run_id for run in (first, others[0])]
        with pytest.raises(BusyError, match="6 live programs"), queue.reserve("t", 6):
            pass
        goes_on.set()
        lives = [first, *seconds[1:], *others]
        await asyncio.gather(*(live.done.wait() for live in lives))
        with queue.reserve("t", 1):
            pass
        await queue.close()
    assert sorted(started) == sorted(live.record.run_id for live in lives)
    ids = [live.record.run_id for live in (first, *seconds[1:])]
    assert [run_id for run_id in started if run_id in ids] == ids


async def test_entering_a_run_looks_at_its_own_thread_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many runs of other threads wait."""
    goes_on = asyncio.Event()

    class Execution:
        def __init__(self, live: LiveRun, state: Any) -> None:
            pass

        async def run(self) -> None:
            await goes_on.wait()

    monkeypatch.setattr(run_queue, "Execution", Execution)
    server = Server(Runtime(ScriptedExecutor()), (), {}, f"sqlite:{tmp_path / 'a.db'}")
    async with open_tenant_state(server) as state:
        queue, lines = RunQueue(state), []
        for _ in range(2):
            [(_, first)] = await queue.enter((a_run(temporary=True), None))
            same = replace(a_run(temporary=False), thread=UUID(first.record.thread_id))
            for _ in range(20):
                await queue.enter((replace(same, run_id=uuid4()), None))
            lines.append(lines_run(partial(queue._dispatch, first.record.thread_id)))
        goes_on.set()
        await queue.close()
    assert lines[0] == lines[1]


def test_a_run_whose_graph_is_not_served_any_more_fails_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another server left the run unfinished. The thread can be used again."""

    async def wait(state: MessagesState) -> MessagesState:
        await asyncio.Event().wait()
        return state

    builder = StateGraph(MessagesState)
    builder.add_sequence([wait])
    builder.add_edge(START, "wait")
    graph, database = builder.compile(name="gone"), tmp_path / "agentrt.db"
    with serving({"gone": graph}, database) as it, get_sync_client(url=it.url) as client:
        thread = client.threads.create()["thread_id"]
        run = client.runs.create(thread, "gone", input={"messages": []})["run_id"]
    with serving({}, database) as it, get_sync_client(url=it.url) as client:
        result: Any = client.runs.join(thread, run)
        assert result["__error__"]["error"] == "GraphNotServedError"
        assert "this run of the graph 'gone'" in result["__error__"]["message"]
        assert client.runs.get(thread, run)["status"] == "error"
        assert client.threads.get(thread)["status"] == "error"
    assert f"run {run} of thread {thread} failed: an earlier server started" in caplog.text
    assert "Traceback" not in caplog.text
