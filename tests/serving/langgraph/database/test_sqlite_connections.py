"""How writers share SQLite's file: their turns, their common commits, and what waits in threads."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import aiosqlite
import pytest
import pytest_asyncio
import sqlalchemy as sa
from langgraph.checkpoint.base import empty_checkpoint
from sqlalchemy.exc import IntegrityError, OperationalError

from agentrt.serving.langgraph.database._compat_sqlite import CommitGroups, WritingConnection
from agentrt.serving.langgraph.database.connections import Address, Database, open_database
from agentrt.serving.langgraph.database.storage import Storage, open_storage
from agentrt.serving.langgraph.database.tables import threads
from agentrt.serving.langgraph.database.threads import add_thread


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What the connections pass to their threads, by the statements or the names of methods."""
    counts: Counter[str] = Counter()
    inner: Any = aiosqlite.Connection._execute

    async def counted(self: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        called = fn.func if isinstance(fn, partial) else fn
        counts[str(args[0]).split()[0] if args else called.__name__] += 1
        return await inner(self, fn, *args, **kwargs)

    monkeypatch.setattr(aiosqlite.Connection, "_execute", counted)
    return counts


@pytest_asyncio.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    async with open_storage(f"sqlite:{tmp_path / 'a.db'}") as opened:
        yield opened


async def add(database: Database, thread: UUID) -> None:
    async with database.writing(rows=True) as connection:
        await add_thread(connection, "t", thread, {})


async def stored(database: Database) -> int:
    """Count the threads as another process sees them."""
    assert database.address.file is not None
    async with (
        aiosqlite.connect(database.address.file) as other,
        other.execute("SELECT count(*) FROM agentrt_threads") as cursor,
    ):
        row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


async def test_a_transaction_of_rows_waits_for_its_lock_and_for_the_disk_alone(
    tmp_path: Path, waits: Counter[str]
) -> None:
    async with open_database(Address.parse(f"sqlite:{tmp_path / 'a.db'}")) as database:
        await add(database, UUID(int=1))  # the connections are made
        by_key = sa.select(threads.c.tenant).where(threads.c.thread_id == str(UUID(int=2)))
        assert await database.first(by_key, quick=True) is None
        waits.clear()
        async with database.writing(rows=True) as connection:
            await add_thread(connection, "t", UUID(int=2), {})
            assert (await connection.execute(by_key)).scalar() == "t"
        assert waits == {"_begin_group": 1, "commit": 1}
        waits.clear()
        assert await database.first(by_key, quick=True) == ("t",)
        assert waits == {}
        assert await database.count(threads, []) == 2
        assert waits == {"SELECT": 1, "fetchall": 1}


async def test_writes_that_come_together_share_a_commit(
    storage: Storage, waits: Counter[str]
) -> None:
    """Rows of ours and checkpoints: those that come during the first commit are the next group."""
    await add(storage.database, uuid4())
    waits.clear()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for number in range(50):
            config: Any = {"configurable": {"thread_id": str(number), "checkpoint_ns": ""}}
            group.create_task(add(storage.database, uuid4()))
            group.create_task(storage.saver.aput(config, empty_checkpoint(), {}, {}))
            config["configurable"]["checkpoint_id"] = "1"
            group.create_task(storage.saver.aput_writes(config, [("a", 1)], "task"))
    assert waits["commit"] <= 5
    assert await stored(storage.database) == 51
    assert len([one async for one in storage.saver.alist(None)]) == 50


async def test_a_write_returns_once_others_can_read_it(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while its commit is still under way, and a read meanwhile does not see it."""
    gate, at_commit = asyncio.Event(), asyncio.Event()
    commit = CommitGroups._commit

    async def late(self: CommitGroups, group: Any) -> None:
        at_commit.set()
        await gate.wait()
        await commit(self, group)

    monkeypatch.setattr(CommitGroups, "_commit", late)
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    writes = [
        asyncio.create_task(add(storage.database, uuid4())),
        asyncio.create_task(storage.saver.aput(config, empty_checkpoint(), {}, {})),
    ]
    await at_commit.wait()
    assert await storage.database.count(threads, []) == 0
    assert await storage.saver.aget_tuple(config) is None
    assert not any(write.done() for write in writes)
    gate.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*writes)
    assert await storage.database.count(threads, []) == 1
    assert await storage.saver.aget_tuple(config) is not None


async def test_a_transaction_that_fails_is_undone_alone(storage: Storage) -> None:
    database, taken = storage.database, UUID(int=1)
    await add(database, taken)

    async def two(first: UUID) -> None:
        async with database.writing(rows=True) as connection:
            await add_thread(connection, "t", uuid4(), {})
            await add_thread(connection, "t", first, {})

    keys = [taken if number % 3 == 0 else uuid4() for number in range(30)]
    async with asyncio.timeout(60):
        results = await asyncio.gather(*map(two, keys), return_exceptions=True)
    failed = [isinstance(result, IntegrityError) for result in results]
    assert failed == [key == taken for key in keys]
    assert await stored(database) == 1 + 2 * failed.count(False)


async def test_an_error_that_undoes_the_group_reaches_each_of_its_transactions(
    storage: Storage,
) -> None:
    """As SQLite does for a full disk: here the file may not become larger."""
    database = storage.database
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    async with database.writing() as connection:
        pages = (await connection.execute(sa.text("PRAGMA page_count"))).scalar_one()
        await connection.execute(sa.text(f"PRAGMA max_page_count={pages + 20}"))

    async def large() -> None:
        async with database.writing() as connection:
            await add_thread(connection, "t", uuid4(), {"text": "x" * 2**20})

    writes: list[asyncio.Task[Any]] = []

    async def begin_all() -> None:
        async with database.writing():  # so that the others wait for their turns
            writes.append(asyncio.create_task(add(database, uuid4())))
            put = storage.saver.aput(config, empty_checkpoint(), {}, {})
            writes.append(asyncio.create_task(put))
            await asyncio.sleep(0)
            writes.append(asyncio.create_task(large()))
            await asyncio.sleep(0)

    async with asyncio.timeout(60):
        with pytest.raises(OperationalError, match="full"):
            await begin_all()
        results = await asyncio.gather(*writes, return_exceptions=True)
    assert all("full" in str(result) for result in results), results
    assert isinstance(results[0], OperationalError)
    assert isinstance(results[1], sqlite3.OperationalError)
    assert await stored(database) == 0
    assert await storage.saver.aget_tuple(config) is None
    await add(database, uuid4())
    assert await stored(database) == 1


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("turns", range(12))
async def test_cancelling_a_write_at_any_point_leaves_the_others(
    storage: Storage, turns: int, rows: bool
) -> None:
    """It is stored whole or not at all, and the next write finds its turn."""
    database = storage.database

    async def two() -> None:
        async with database.writing(rows=rows) as connection:
            await add_thread(connection, "t", uuid4(), {})
            await add_thread(connection, "t", uuid4(), {})

    async with asyncio.timeout(60):
        before = [asyncio.create_task(add(database, uuid4())) for _ in range(2)]
        cancelled = asyncio.create_task(two())
        after = [asyncio.create_task(add(database, uuid4())) for _ in range(2)]
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(*before, *after)
        await asyncio.wait([cancelled])
        await add(database, uuid4())
    assert await stored(database) in (5, 7)


async def test_large_values_are_written_in_the_thread(
    storage: Storage, waits: Counter[str]
) -> None:
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}}
    await storage.saver.aput_writes(config, [("a", "small")], "small")
    assert waits["INSERT"] == 0
    await storage.saver.aput_writes(config, [("a", "x" * 2**20)], "large")
    assert waits["INSERT"] == 1


async def test_closing_stores_what_has_ended(tmp_path: Path) -> None:
    """And the connection can be opened again."""
    path = tmp_path / "a.db"
    groups = CommitGroups(str(path), lambda connection: None, timeout=30.0)
    for number in range(2):
        connection = WritingConnection(groups, await groups.open())
        await connection.begin()
        await connection.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER)")
        await connection.execute("INSERT INTO t VALUES (?)", [number])
        await connection.commit()
        await groups.close()
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT n FROM t").fetchall() == [(0,), (1,)]
    other.close()
