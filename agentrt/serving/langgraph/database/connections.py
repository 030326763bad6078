"""The database of the LangGraph API: an SQLite file, or PostgreSQL.

One server at a time uses it: two would run each other's runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import math
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from agentrt.errors import ConfigError
from agentrt.files import file_named, lock_beside
from agentrt.serving.langgraph.database import filters, tables
from agentrt.serving.langgraph.database._compat_sqlite import (
    CommitGroups,
    SqliteConnection,
    WritingConnection,
)
from agentrt.serving.langgraph.database.tables import CONTAINS, about, dumps, json_contains
from agentrt.serving.langgraph.outages import READ_S, READER, Deadline, first_line, limited
from agentrt.steady import KEEP_S, MachineClocks, Reading, SteadyClock

READS, _WRITES = 4, 8
"""Connections that read; that write to PostgreSQL. SQLite has one writer."""
_FORMS = "give sqlite:FILE or postgresql://USER@HOST/NAME"
_DEADLINE = "agentrt_deadline"
_CLOCK = "clock"
_STEPS = 10_000
"""So many steps of SQLite's virtual machine pass until it is asked whether it may go on."""
_BUSY_S = 30.0
"""How long SQLite waits for another connection's write."""
_TURNS = 256
"""Transactions that may wait for their turn to write to SQLite."""

TIMEOUTS = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""How long connections to PostgreSQL wait for a host that is silent, as libpq has it."""


@dataclass(frozen=True, slots=True)
class Address:
    """What ``--database`` names: an SQLite file, or else a PostgreSQL URL."""

    file: Path | None
    url: str
    writer: CommitGroups | None = field(default=None, compare=False, repr=False)
    """What writes to the file."""

    @classmethod
    def parse(cls, given: str) -> Address:
        """Parse the option. Raises `ConfigError` for anything else."""
        if given.startswith(("postgresql://", "postgres://")):
            return cls(None, "postgresql://" + given.partition("://")[2])
        kind, _, name = given.partition(":")
        if kind != "sqlite" or name in ("", ":memory:") or name.startswith("//"):
            raise ConfigError(f"--database {given!r}: {_FORMS}")
        path = file_named(name, f"--database {given}")
        writer = CommitGroups(str(path), _add_functions, timeout=_BUSY_S)
        return cls(path, f"sqlite+aiosqlite:///{path}", writer)

    def __str__(self) -> str:
        """Without the password."""
        if self.file is not None:
            return f"sqlite:{self.file}"
        head, at, tail = self.url.rpartition("@")
        user = head.removeprefix("postgresql://").partition(":")[0]
        return f"postgresql://{user}{at}{tail}" if at else self.url


def engines(address: Address) -> tuple[AsyncEngine, AsyncEngine]:
    """What reads, and what writes."""
    if address.writer is None:
        url = address.url.replace("postgresql://", "postgresql+psycopg://", 1)
        reads, writes = (_engine(url, n, 2 * READ_S, TIMEOUTS) for n in (READS, _WRITES))
        _limit_statements(reads)
        return reads, writes
    return _sqlite_reads(address), _sqlite_writes(address, address.writer)


def _engine(
    url: str, connections: int, wait_s: float, connect_args: Mapping[str, Any], **options: Any
) -> AsyncEngine:
    """An engine with so many connections; who finds none free waits ``wait_s`` at most."""
    return create_async_engine(
        url,
        json_serializer=dumps,
        json_deserializer=json.loads,
        hide_parameters=True,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=wait_s,
        connect_args=dict(connect_args),
        **options,
    )


def _limit_statements(reads: AsyncEngine) -> None:
    """PostgreSQL breaks a client's statement off by itself."""

    @sa.event.listens_for(reads.sync_engine, "begin")
    def began(connection: Any) -> None:
        if READER.get() is not None:
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {round(READ_S * 1000)}")


def _sqlite_reads(address: Address) -> AsyncEngine:
    """An engine that only reads. While it works for a client, SQLite asks a function of ours
    whether it may go on.
    """

    async def connect() -> SqliteConnection:
        connection = SqliteConnection(str(address.file), timeout=_BUSY_S)
        await connection
        return connection

    engine = _engine(address.url, READS, 2 * READ_S, {}, async_creator=connect)

    @sa.event.listens_for(engine.sync_engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        deadline = record.info[_DEADLINE] = Deadline()
        connection.isolation_level = None
        _add_functions(connection, deadline.check)
        connection.run_async(lambda own: own.set_progress_handler(deadline, _STEPS))
        connection.execute("PRAGMA journal_mode=WAL").close()

    @sa.event.listens_for(engine.sync_engine, "begin")
    def began(connection: Any) -> None:
        is_limited = READER.get() is not None
        connection.info[_DEADLINE].start(READ_S if is_limited else math.inf)
        connection.exec_driver_sql("BEGIN")

    return engine


def _add_functions(connection: Any, check: Callable[[], None] = lambda: None) -> None:
    """Give a connection of SQLite the functions of our queries; ``check`` stops slow ones."""
    functions = (
        (CONTAINS, 2, json_contains),
        (filters.EQUALS, 3, filters.equals_in_sqlite),
        (filters.HAS_ALL, 3, filters.has_all_in_sqlite),
    )
    for name, count, function in functions:
        bound = functools.partial(function, check=check)
        connection.create_function(name, count, bound, deterministic=True)


def _sqlite_writes(address: Address, writer: CommitGroups) -> AsyncEngine:
    """An engine whose transactions take turns on the connection of ``writer``.

    A transaction that reads first and writes later fails at once if another has written in
    between; one that begins as a writer waits for its turn.
    """

    async def connect() -> WritingConnection:
        return WritingConnection(writer, await writer.open())

    engine = _engine(address.url, _TURNS, _BUSY_S, {}, async_creator=connect)

    @sa.event.listens_for(engine.sync_engine, "begin")
    def began(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


@asynccontextmanager
async def _direct(connection: AsyncConnection, wanted: bool) -> AsyncIterator[Any]:
    """Have SQLite's statements need no thread until the block's end, if that is ``wanted``. The
    block gets the driver's connection.
    """
    raw: Any = (await connection.get_raw_connection()).driver_connection
    is_sqlite = isinstance(raw, SqliteConnection | WritingConnection)
    if is_sqlite:
        raw.direct = wanted
    try:
        yield raw
    finally:
        if is_sqlite:
            raw.direct = False


# -- the database --------------------------------------------------------------------------


LOCK_WAIT_S = 5.0
"""How long a server that was killed may still have its database locked."""
_LOCK_KEY = 0x6167656E  # of PostgreSQL's advisory locks; any number that is always the same
_LOCK_TRIES = 20


class Database:
    """Access to the tables. SQLite has one connection that writes, and several that read;
    PostgreSQL has a ``lock``. What is due some time from now is due by the ``clock``, whose last
    reading is among the tables.
    """

    def __init__(
        self,
        address: Address,
        reads: AsyncEngine,
        writes: AsyncEngine,
        clock: SteadyClock,
        lock: AdvisoryLock | None = None,
    ) -> None:
        self.address = address
        self.lock = lock
        self.clock = clock
        self._kept = clock.reading()
        self._reads = reads
        self._writes = writes

    @asynccontextmanager
    async def reading(self, *, rows: bool = False) -> AsyncIterator[AsyncConnection]:
        """A connection for queries only, with ``rows`` for single rows, as in `writing`. Raises
        503 where these take too long.
        """
        async with (
            limited(),
            self._reads.connect() as connection,
            _direct(connection, rows),
        ):
            yield connection

    @asynccontextmanager
    async def writing(self, *, rows: bool = False) -> AsyncIterator[AsyncConnection]:
        """A transaction: stored when this returns, or rolled back if the block raises. With
        ``rows``, its statements are about single rows, and so quick that SQLite's need no thread.
        """
        group = None
        async with self._writes.begin() as connection, _direct(connection, rows) as raw:
            yield connection
            if isinstance(raw, WritingConnection):
                group = raw.group
        if group is not None:
            try:
                await group.stored()
            except sqlite3.Error as error:
                raise OperationalError("COMMIT", None, error) from error

    async def rows(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        """All rows of a query."""
        async with self.reading() as connection:
            rows: Sequence[sa.Row[Any]] = (await connection.execute(query)).all()
            return rows

    async def first(self, query: sa.Select[Any], *, quick: bool = False) -> sa.Row[Any] | None:
        """The first row of a query, if there is one; ``quick`` for a small row by its key."""
        async with self.reading(rows=quick) as connection:
            row: sa.Row[Any] | None = (await connection.execute(query)).first()
            return row

    async def count(self, table: sa.Table, conditions: Sequence[sa.ColumnElement[bool]]) -> int:
        """How many rows meet all ``conditions``."""
        row = await self.first(sa.select(sa.func.count()).select_from(table).where(*conditions))
        return 0 if row is None else int(row[0])

    async def page(
        self,
        table: sa.Table,
        conditions: Sequence[sa.ColumnElement[bool]],
        key: str,
        page: Any,
        columns: Sequence[sa.ColumnElement[Any]] | None = None,
    ) -> tuple[Sequence[sa.Row[Any]], dict[str, str]]:
        """A page of rows in the order that ``page`` asks for (a search body), ties by ``key``; and
        headers: how many there are up to here, and one more if there are more; and where the next
        page begins, if there is one. The rows have these ``columns``, or all.
        """
        column = table.c[page.sort_by]
        order = column.asc() if page.sort_order == "asc" else column.desc()
        query = sa.select(*(table.c if columns is None else columns)).where(*conditions)
        query = query.order_by(order, table.c[key])
        rows = await self.rows(query.limit(page.limit + 1).offset(page.offset))
        headers = {"X-Pagination-Total": str(page.offset + len(rows))}
        if len(rows) > page.limit:
            headers["X-Pagination-Next"] = str(page.offset + page.limit)
        return rows[: page.limit], headers

    async def write(self, *statements: sa.Executable) -> None:
        """Execute the statements in one transaction."""
        async with self.writing() as connection:
            for statement in statements:
                await connection.execute(statement)

    async def write_rows(self, *statements: sa.Executable) -> None:
        """Execute the statements, each about a single row, in one transaction."""
        async with self.writing(rows=True) as connection:
            for statement in statements:
                await connection.execute(statement)

    async def keep_clock(self, after_s: float = KEEP_S) -> None:
        """Keep what the clock shows, if the time of day was set, or it was kept so long ago."""
        reading, last = self.clock.reading(), self._kept
        if reading.shift != last.shift or reading.now > last.now + after_s:
            await self.write(_keep(reading))
            self._kept = reading


@asynccontextmanager
async def open_database(
    address: Address, machine: MachineClocks | None = None
) -> AsyncIterator[Database]:
    """Open the database, on a ``machine`` with these clocks, and create the tables that are
    missing.

    Raises `ConfigError` if it cannot be opened, or is in use by another server.
    """
    async with AsyncExitStack() as stack:
        try:
            if address.file is not None:
                await _lock_file(address.file, stack)
            if address.writer is not None:
                stack.push_async_callback(address.writer.close)
            reads, writes = engines(address)
            stack.push_async_callback(reads.dispose)
            stack.push_async_callback(writes.dispose)
            lock = None
            if address.file is None:
                lock = AdvisoryLock(writes, address)
                stack.push_async_callback(lock.release)
                await lock.take()
            await _make_tables(writes, address)
            clock = await _clock_of(writes, machine)
        except (SQLAlchemyError, OSError, sqlite3.Error, ImportError) as error:
            raise ConfigError(f"--database {address}: {first_line(error)}") from error
        database = Database(address, reads, writes, clock, lock)
        yield database
        with contextlib.suppress(SQLAlchemyError, OSError):  # it is as if it had been killed
            await database.keep_clock(0.0)


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


# -- the clock -----------------------------------------------------------------------------


async def _clock_of(engine: AsyncEngine, machine: MachineClocks | None) -> SteadyClock:
    """The clock of the database, taken up where its last server left it."""
    async with engine.begin() as connection:
        query = sa.select(about.c.value).where(about.c.key == _CLOCK)
        kept = (await connection.execute(query)).scalar()
        clock = SteadyClock(machine, None if kept is None else Reading(*json.loads(kept)))
        if kept is None:
            await connection.execute(sa.insert(about).values(key=_CLOCK, value=""))
        await connection.execute(_keep(clock.reading()))
    return clock


def _keep(reading: Reading) -> sa.Executable:
    return sa.update(about).where(about.c.key == _CLOCK).values(value=json.dumps(reading))


# -- locks ----------------------------------------------------------------------------------


async def _lock_file(path: Path, stack: AsyncExitStack) -> None:
    """Lock a file beside the database; the lock goes when this process does."""
    for _ in range(_LOCK_TRIES):
        try:
            stack.enter_context(lock_beside(path))
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
