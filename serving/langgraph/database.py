"""The database of the LangGraph API: an SQLite file, or PostgreSQL.

One server at a time uses it: two would run each other's runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from agentrt.errors import ConfigError
from agentrt.files import check_plain
from agentrt.serving.langgraph import tables
from agentrt.serving.langgraph.connections import Address, engines
from agentrt.serving.langgraph.outages import first_line
from agentrt.serving.langgraph.reading import limited
from agentrt.serving.langgraph.tables import about

LOCK_WAIT_S = 5.0
"""How long a server that was killed may still have its database locked."""
_LOCK_KEY = 0x6167656E  # of PostgreSQL's advisory locks; any number that is always the same
_LOCK_TRIES = 20


class Database:
    """Access to the tables. SQLite has one connection that writes, and several that read;
    PostgreSQL has a ``lock``.
    """

    def __init__(
        self,
        address: Address,
        reads: AsyncEngine,
        writes: AsyncEngine,
        lock: AdvisoryLock | None = None,
    ) -> None:
        self.address = address
        self.lock = lock
        self._reads = reads
        self._writes = writes

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection for queries only. Raises 503 where these take too long."""
        async with limited(), self._reads.connect() as connection:
            yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """A transaction: committed at the block's end, or rolled back if it raises."""
        async with self._writes.begin() as connection:
            yield connection

    async def rows(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        """All rows of a query."""
        async with self.reading() as connection:
            rows: Sequence[sa.Row[Any]] = (await connection.execute(query)).all()
            return rows

    async def first(self, query: sa.Select[Any]) -> sa.Row[Any] | None:
        """The first row of a query, if there is one."""
        async with self.reading() as connection:
            row: sa.Row[Any] | None = (await connection.execute(query)).first()
            return row

    async def count(self, table: sa.Table, conditions: Sequence[sa.ColumnElement[bool]]) -> int:
        """How many rows meet all ``conditions``."""
        row = await self.first(sa.select(sa.func.count()).select_from(table).where(*conditions))
        return 0 if row is None else int(row[0])

    async def search(
        self, table: sa.Table, conditions: Sequence[sa.ColumnElement[bool]], key: str, page: Any
    ) -> Sequence[sa.Row[Any]]:
        """A page of rows in the order that ``page`` asks for (a search body); ties by ``key``."""
        column = table.c[page.sort_by]
        order = column.asc() if page.sort_order == "asc" else column.desc()
        query = sa.select(table).where(*conditions).order_by(order, table.c[key])
        return await self.rows(query.limit(page.limit).offset(page.offset))

    async def page(
        self, table: sa.Table, conditions: Sequence[sa.ColumnElement[bool]], key: str, page: Any
    ) -> tuple[Sequence[sa.Row[Any]], dict[str, str]]:
        """As `search`, and headers: how many there are up to here, and one more if there are
        more; and where the next page begins, if there is one.
        """
        more = page.model_copy(update={"limit": page.limit + 1})
        rows = await self.search(table, conditions, key, more)
        headers = {"X-Pagination-Total": str(page.offset + len(rows))}
        if len(rows) > page.limit:
            headers["X-Pagination-Next"] = str(page.offset + page.limit)
        return rows[: page.limit], headers

    async def write(self, *statements: sa.Executable) -> None:
        """Execute the statements in one transaction."""
        async with self.writing() as connection:
            for statement in statements:
                await connection.execute(statement)


@asynccontextmanager
async def open_database(address: Address) -> AsyncIterator[Database]:
    """Open the database, and create the tables that are missing.

    Raises `ConfigError` if it cannot be opened, or is in use by another server.
    """
    async with AsyncExitStack() as stack:
        try:
            if address.file is not None:
                await _lock_file(address.file, stack)
            reads, writes = engines(address)
            stack.push_async_callback(reads.dispose)
            stack.push_async_callback(writes.dispose)
            lock = None
            if address.file is None:
                lock = AdvisoryLock(writes, address)
                stack.push_async_callback(lock.release)
                await lock.take()
            await _make_tables(writes, address)
        except (SQLAlchemyError, OSError, sqlite3.Error, ImportError) as error:
            raise ConfigError(f"--database {address}: {first_line(error)}") from error
        yield Database(address, reads, writes, lock)


async def _make_tables(engine: AsyncEngine, address: Address) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(tables.metadata.create_all)
        is_version = about.c.key == "version"
        found = (await connection.execute(sa.select(about.c.value).where(is_version))).scalar()
        if found is None:
            await connection.execute(
                sa.insert(about).values(key="version", value=str(tables.VERSION))
            )
        elif found != str(tables.VERSION):
            raise ConfigError(
                f"--database {address}: its tables are of version {found}, and this agentrt has "
                f"version {tables.VERSION}; name another database"
            )
        # Where nothing may be written, that is said now, and not by the first run.
        await connection.execute(sa.update(about).where(is_version).values(value=about.c.value))


# -- locks ----------------------------------------------------------------------------------


async def _lock_file(path: Path, stack: AsyncExitStack) -> None:
    """Lock a file beside the database; the lock goes when this process does."""
    check_plain(path)
    file = stack.enter_context(path.with_name(path.name + ".lock").open("w"))
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            await asyncio.sleep(LOCK_WAIT_S / _LOCK_TRIES)
    raise _in_use(f"sqlite:{path}")


class AdvisoryLock:
    """PostgreSQL's lock of the tables, on a connection of its own, which ends with this process."""

    def __init__(self, engine: AsyncEngine, address: Address) -> None:
        self._engine = engine
        self._address = address
        self._connection: AsyncConnection | None = None

    async def take(self) -> None:
        """Take it. Raises `ConfigError` if another server has it."""
        self._connection = connection = await self._engine.connect()
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        try_lock = sa.select(sa.func.pg_try_advisory_lock(_LOCK_KEY))
        for _ in range(_LOCK_TRIES):
            if (await connection.execute(try_lock)).scalar():
                return
            await asyncio.sleep(LOCK_WAIT_S / _LOCK_TRIES)
        await self.release()
        raise _in_use(str(self._address))

    async def keep(self) -> None:
        """Take it again if its connection broke: it is lost then."""
        try:
            assert self._connection is not None
            await self._connection.execute(sa.select(1))
        except (SQLAlchemyError, AssertionError):
            await self.release()
            await self.take()

    async def release(self) -> None:
        """Give it up, with its connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(SQLAlchemyError):
                await connection.invalidate()  # it may be broken, and must not be lent again
                await connection.close()


def _in_use(name: str) -> ConfigError:
    return ConfigError(
        f"--database {name}: another server uses it; stop that one, or name another database"
    )
