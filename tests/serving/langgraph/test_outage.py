"""A full disk, a locked database, a bug: every run comes to its end, and none is stuck for ever."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import psycopg_pool
import pytest
import sqlalchemy as sa
from fastapi import HTTPException
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIStatusError, NotFoundError

from agentrt.serving.langgraph.database.connections import Database
from agentrt.serving.langgraph.outages import DiskRoom, is_outage
from agentrt.serving.langgraph.runs import execution
from agentrt.serving.langgraph.runs.execution import Execution
from tests.serving.langgraph.graphs import GATES, all_graphs
from tests.serving.langgraph.protocol.test_protocol import command, start, until
from tests.serving.langgraph.runs.test_runs import DONE, IN, a_thread, at_a_gate
from tests.serving.langgraph.serve import Serving, serving

FULL = sqlite3.OperationalError("database or disk is full")
BROKEN = sqlite3.OperationalError("disk I/O error")


class Disk:
    """Our tables' disk: while it is ``full``, ``broken`` or ``read_only``, nothing is written."""

    full = False
    broken = False
    read_only = False


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Disk]]:
    whole = Database.writing

    @asynccontextmanager
    async def writing(self: Database, **options: Any) -> AsyncIterator[Any]:
        if Disk.full:
            raise sa.exc.OperationalError("UPDATE", {}, FULL)
        if Disk.broken:
            raise sa.exc.OperationalError("UPDATE", {}, BROKEN)
        async with whole(self, **options) as connection:
            if Disk.read_only:  # SQLite's own refusal: root may write to any file
                await connection.execute(sa.text("PRAGMA query_only=1"))
            try:
                yield connection
            finally:
                await connection.execute(sa.text("PRAGMA query_only=0"))

    monkeypatch.setattr(Database, "writing", writing)
    monkeypatch.setattr(execution, "FIRST_BACKOFF_S", 0.01)
    yield Disk
    Disk.full = Disk.broken = Disk.read_only = False


async def holds(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def is_failing(it: Serving) -> bool:
    assert it.server is not None
    return "ends of runs" in it.call(it.server.background.failing)


async def status_of(client: LangGraphClient, thread: str, run: str) -> tuple[str, str]:
    found = await client.runs.get(thread, run)
    return found["status"], (await client.threads.get(thread))["status"]


@pytest.mark.parametrize(
    ("fault", "status", "words", "cancelled"),
    [
        ("full", 507, "disk is full; free some space", False),
        ("broken", 507, "disk is full or has failed (disk I/O error); free some space", False),
        ("read_only", 503, "cannot be used now: attempt to write a readonly database", True),
    ],
)
async def test_an_end_waits_until_it_can_be_stored(
    it: Serving,
    client: LangGraphClient,
    http: httpx.AsyncClient,
    disk: type[Disk],
    fault: str,
    status: int,
    words: str,
    cancelled: bool,
) -> None:
    """1. The run has ended, and that cannot be stored: it counts as running, who joins it waits,
    what would be written is refused with one line, what is read is not. 2. It can be cancelled.
    3. It can be stored: it ends.
    """
    thread, run, gate = await at_a_gate(client)
    joining = asyncio.create_task(client.runs.join(thread, run))
    setattr(disk, fault, True)
    GATES.open(gate)
    await holds(lambda: is_failing(it))
    assert await status_of(client, thread, run) == ("running", "busy")
    made = await http.post("/threads", json={})
    changed = await http.patch(f"/threads/{thread}", json={"metadata": {}})
    for answer in (made, changed):
        assert (answer.status_code, words in answer.json()["detail"]) == (status, True)
        assert "\n" not in answer.json()["detail"]
    if cancelled:
        await client.runs.cancel(thread, run)
        at = f"/threads/{thread}/runs/{run}"
        for answer in (await http.post(f"{at}/cancel?wait=true"), await http.delete(at)):
            assert (answer.status_code, words in answer.text) == (status, True)
    assert not joining.done()
    setattr(disk, fault, False)
    assert (await joining)["steps"][-1] == "after"
    end = ("interrupted", "interrupted") if cancelled else ("success", "idle")
    assert await status_of(client, thread, run) == end
    await holds(lambda: not is_failing(it))
    with pytest.raises(NotFoundError, match="has ended"):
        await client.runs.cancel(thread, run)
    await client.runs.delete(thread, run)


async def test_the_next_server_ends_what_this_one_could_not(
    disk: type[Disk], tmp_path: Path
) -> None:
    with serving(all_graphs(), tmp_path / "a.db") as it:
        async with get_client(url=it.url) as client:
            thread, run, gate = await at_a_gate(client)
            other, cancelled, gate_ = await at_a_gate(client)
            disk.full = True
            GATES.open(gate)
            await client.runs.cancel(other, cancelled)
            await holds(lambda: is_failing(it))
    disk.full = False
    with serving(all_graphs(), tmp_path / "a.db") as it:
        async with get_client(url=it.url) as client:
            assert (await client.runs.join(thread, run))["steps"][-1] == "after"
            assert await status_of(client, thread, run) == ("success", "idle")
            GATES.open(gate_)
            await client.runs.join(other, cancelled)


async def test_a_bug_at_the_end_is_the_runs_error(
    client: LangGraphClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def _finish(self: Execution, error: Exception | None) -> None:
        raise ValueError("what no database can hold")

    monkeypatch.setattr(Execution, "_finish", _finish)
    thread = await a_thread(client)
    found: Any = await client.runs.wait(thread, "steps", input=IN, raise_error=False)
    assert found["__error__"] == {"error": "ValueError", "message": "what no database can hold"}
    assert (await client.threads.get(thread))["status"] == "error"
    assert "the end could not be stored" in caplog.text


async def test_a_disk_that_is_nearly_full_takes_nothing_new(
    it: Serving,
    client: LangGraphClient,
    http: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Running work continues to its end; reading, cancelling and deleting work."""
    thread, run, gate = await at_a_gate(client)
    stored = await client.threads.create()
    streamed = str(uuid4())
    await start(http, streamed, "steps")
    await until(http, streamed, "completed")
    free = SimpleNamespace(total=100 << 30, free=63 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
    for request in (
        client.threads.create(),
        client.runs.create(thread, "steps", input=IN),
        client.store.put_item(["a"], "b", {}),
        client.assistants.create("steps"),
        client.threads.update(thread, metadata={"a": 1}),
    ):
        with pytest.raises(APIStatusError, match="63 MiB are free") as raised:
            await request
        assert raised.value.response.status_code == 507
    assert it.server is not None
    assert "nearly full" in str(it.call(it.server.checks["disk"]))
    assert await client.threads.search(limit=1)
    assert await until(http, streamed, "completed")
    state = await command(http, streamed, "state.get", namespace=[])
    assert state["result"]["values"] == DONE
    refused = await command(http, streamed, "run.start", assistant_id="steps", input=IN)
    assert (refused["error"], "63 MiB are free" in refused["message"]) == ("unknown_error", True)
    await client.threads.delete(stored["thread_id"])
    GATES.open(gate)
    assert (await client.runs.join(thread, run))["steps"][-1] == "after"
    free.free = 64 << 20
    await client.threads.create()
    assert it.call(it.server.checks["disk"]) is None


def test_a_small_disk_keeps_less_free_and_postgresql_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(total=100 << 20, free=2 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
    assert DiskRoom(tmp_path / "a.db").shortage() is None
    free.free -= 1
    assert DiskRoom(tmp_path / "a.db").shortage() is not None
    assert DiskRoom(None).shortage() is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FULL, True),
        (sqlite3.OperationalError("attempt to write a readonly database"), True),
        (sa.exc.OperationalError("x", {}, FULL), True),
        (sa.exc.TimeoutError("QueuePool limit"), True),
        (psycopg.OperationalError("server closed the connection"), True),
        (psycopg.errors.ReadOnlySqlTransaction("cannot execute INSERT"), True),
        (sa.exc.InternalError("x", {}, psycopg.errors.ReadOnlySqlTransaction("no")), True),
        (sa.exc.InternalError("x", {}, psycopg.errors.InFailedSqlTransaction("no")), False),
        (psycopg_pool.PoolTimeout("no connection"), True),
        (OSError(28, "No space left on device"), True),
        (sa.exc.IntegrityError("x", {}, sqlite3.IntegrityError("unique")), False),
        (sa.exc.DataError("x", {}, psycopg.DataError("NUL")), False),
        (HTTPException(503, "the database takes too long"), True),
        (HTTPException(409, "the thread is busy"), False),
        (ValueError("no"), False),
    ],
)
def test_what_an_outage_is(error: Exception, expected: bool) -> None:
    assert is_outage(error) is expected
