"""How SQLite's connections share the file: what waits in their threads, and who may write."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import UUID, uuid4

import aiosqlite
import pytest
import sqlalchemy as sa

from agentrt.serving.langgraph.database._compat_sqlite import SqliteConnection
from agentrt.serving.langgraph.database.connections import Address, open_database
from agentrt.serving.langgraph.database.tables import threads
from agentrt.serving.langgraph.database.threads import add_thread


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What the connections pass to their threads, by the statements or the names of methods."""
    counts: Counter[str] = Counter()
    inner: Any = aiosqlite.Connection._execute

    async def counted(self: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        called = fn.args[0] if isinstance(fn, partial) else fn
        counts[str(args[0]).split()[0] if args else called.__name__] += 1
        return await inner(self, fn, *args, **kwargs)

    monkeypatch.setattr(aiosqlite.Connection, "_execute", counted)
    return counts


async def test_a_transaction_of_rows_waits_for_its_lock_and_for_the_disk_alone(
    tmp_path: Path, waits: Counter[str]
) -> None:
    async with open_database(Address.parse(f"sqlite:{tmp_path / 'a.db'}")) as database:
        async with database.writing(rows=True) as connection:  # the connections are made
            await add_thread(connection, "t", UUID(int=1), {})
        by_key = sa.select(threads.c.tenant).where(threads.c.thread_id == str(UUID(int=2)))
        assert await database.first(by_key, quick=True) is None
        waits.clear()
        async with database.writing(rows=True) as connection:
            await add_thread(connection, "t", UUID(int=2), {})
            assert (await connection.execute(by_key)).scalar() == "t"
        assert waits == {"BEGIN": 1, "commit": 1}
        waits.clear()
        assert await database.first(by_key, quick=True) == ("t",)
        assert waits == {}
        assert await database.count(threads, []) == 2
        assert waits == {"SELECT": 1, "fetchall": 1}


async def opened(path: Path, lock: Lock) -> SqliteConnection:
    connection = SqliteConnection(str(path), lock, timeout=30.0)
    await connection
    return connection


@pytest.mark.parametrize("end", ["commit", "rollback", "fail", "close", "stop"])
async def test_the_lock_passes_on_however_a_transaction_ends(tmp_path: Path, end: str) -> None:
    lock, path = Lock(), tmp_path / "a.db"
    first, second = await opened(path, lock), await opened(path, lock)
    await first.execute("CREATE TABLE t (n INTEGER PRIMARY KEY)")
    await first.execute("INSERT INTO t VALUES (1)")
    assert lock.locked()
    await first.commit()
    assert not lock.locked()
    await first.execute("INSERT INTO t VALUES (2)")
    waiting = asyncio.create_task(second.execute("INSERT INTO t VALUES (3)").__aenter__())
    if end == "fail":
        with pytest.raises(sqlite3.IntegrityError):
            await first.execute("INSERT OR ROLLBACK INTO t VALUES (2)")
    elif end == "stop":
        stopped = first.stop()
        assert stopped is not None
        await stopped
    else:
        await getattr(first, end)()
    async with asyncio.timeout(60):
        await waiting
        await second.commit()
    async with second.execute("SELECT n FROM t ORDER BY n") as cursor:
        rows = [row[0] for row in await cursor.fetchall()]
    assert rows == ([1, 2, 3] if end == "commit" else [1, 3])
    assert not lock.locked()
    await first.close()
    await second.close()


async def test_writers_do_not_lose_a_write(tmp_path: Path) -> None:
    """Transactions of the database, and those of another connection, all at once."""
    address = Address.parse(f"sqlite:{tmp_path / 'a.db'}")
    async with open_database(address) as database:
        other = await opened(tmp_path / "a.db", address.lock)
        await other.execute("CREATE TABLE other (n INTEGER)")
        one_by_one = asyncio.Lock()

        async def mine() -> None:
            async with database.writing(rows=True) as connection:
                await add_thread(connection, "t", uuid4(), {})

        async def theirs(number: int) -> None:
            async with one_by_one:
                await other.execute("INSERT INTO other VALUES (?)", [number])
                await other.commit()

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(mine())
                group.create_task(theirs(number))
        assert await database.count(threads, []) == 50
        async with other.execute("SELECT count(*) FROM other") as cursor:
            assert await cursor.fetchone() == (50,)
        await other.close()
