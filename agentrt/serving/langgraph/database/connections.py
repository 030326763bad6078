"""The database of the LangGraph API: an SQLite file, or PostgreSQL.

Only one server at a time may use a database, because two servers would run each other's runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import math
import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from agentrt.errors import ConfigError, shown_url
from agentrt.extras import install_command
from agentrt.files import file_named, lock_beside
from agentrt.serving.langgraph.database import filters, tables
from agentrt.serving.langgraph.database._compat_sqlite import (
    CommitGroups,
    SqliteConnection,
    WritingConnection,
)
from agentrt.serving.langgraph.database.tables import CONTAINS, about, dumps, json_contains
from agentrt.serving.langgraph.outages import READ_S, READER, Deadline, first_line, limited
from agentrt.steady import KEEP_S, ClockReading, MachineClocks, SteadyClock

READS, _WRITES = 4, 8
"""Number of connections for reads, and for writes to PostgreSQL. In SQLite, all writes to our
tables and to checkpoints share one connection (`CommitGroups`).
"""
_PASSWORD = re.compile(r"([?&](?:ssl)?password=)[^&]*", re.IGNORECASE)
_FORMS = "use sqlite:FILE or postgresql://USER@HOST/NAME"
_DEADLINE = "agentrt_deadline"
_CLOCK = "clock"
_STEPS = 10_000
"""Number of steps of SQLite's virtual machine between two checks of a read's deadline."""
_CACHE_KIB = 16 * 1024
"""Size of a connection's cache for reads of SQLite. Searches read whole tables: with SQLite's
default of 2 MiB, a search of 3,000 threads would spend half of its time reading pages from the file
again.
"""
_BUSY_S = 30.0
"""Seconds that SQLite waits for another connection's write."""
_TURNS = 256
"""Maximum number of transactions that wait for their turn to write to SQLite."""

TIMEOUTS = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""How long connections to PostgreSQL wait for a silent host: options of libpq. ``keepalives_count``
is a number, ``tcp_user_timeout`` is in milliseconds, and the others are in seconds.
"""


@dataclass(frozen=True, slots=True)
class Address:
    """The database that ``--database`` names: an SQLite ``file``, or a PostgreSQL ``url`` if
    ``file`` is None.
    """

    file: Path | None
    url: str = field(repr=False)
    writer: CommitGroups | None = field(default=None, compare=False, repr=False)
    """The connection for writes to our tables and to checkpoints in SQLite; None for PostgreSQL."""

    @classmethod
    def parse(cls, option: str) -> Address:
        """Parse the value of ``--database``. Raises `ConfigError` for an invalid value."""
        if option.startswith(("postgresql://", "postgres://")):
            _check_authority(option)
            return cls(None, "postgresql://" + option.partition("://")[2])
        kind, _, name = option.partition(":")
        if kind != "sqlite" or name in ("", ":memory:") or name.startswith("//"):
            raise ConfigError(f"invalid --database {shown_url(option)!r}; {_FORMS}")
        path = file_named(name, f"--database {option}")
        writer = CommitGroups(str(path), _add_functions, timeout=_BUSY_S)
        return cls(path, f"sqlite+aiosqlite:///{path}", writer)

    def __str__(self) -> str:
        """Return the value of ``--database`` without passwords."""
        if self.file is not None:
            return f"sqlite:{self.file}"
        head, at, tail = self.url.rpartition("@")
        user = head.removeprefix("postgresql://").partition(":")[0]
        shown = f"postgresql://{user}{at}{tail}" if at else self.url
        return _PASSWORD.sub(r"\1...", shown)


_HOST = re.compile(r"(?:\[[^\]@]*\]|[^:@\s]*)(?::\d*)?")


def _check_authority(url: str) -> None:
    """Raise `ConfigError` if PostgreSQL's client would read a part of the password as the host or
    the port. The errors of PostgreSQL's client would show this part of the password.
    """
    before_path = url.partition("://")[2].partition("/")[0]
    user, _, hosts = before_path.rpartition("@")
    hosts = hosts.partition("?")[0]
    is_valid = all(map(_HOST.fullmatch, hosts.split(",")))
    if not is_valid or re.search(r"[@\s]|%(?![0-9a-fA-F]{2})", user):
        raise ConfigError(
            f"invalid --database {shown_url(url)!r}: its port is not a number, or a character of "
            "its user, its password or its host must be written as %XX, such as %2F for /; "
            f"{_FORMS}"
        )


def engines(address: Address) -> tuple[AsyncEngine, AsyncEngine]:
    """Create the SQLAlchemy engines for reads and for writes."""
    if address.writer is None:
        url = address.url.replace("postgresql://", "postgresql+psycopg://", 1)
        reads, writes = (_engine(url, n, 2 * READ_S, TIMEOUTS) for n in (READS, _WRITES))
        _limit_statements(reads)
        return reads, writes
    return _sqlite_reads(address), _sqlite_writes(address, address.writer)


def _engine(
    url: str, connections: int, wait_s: float, connect_args: Mapping[str, Any], **options: Any
) -> AsyncEngine:
    """Create an engine with at most ``connections`` connections. A task waits at most ``wait_s``
    seconds for a free connection.
    """
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
    """Make PostgreSQL stop statements of clients after `READ_S` seconds."""

    @sa.event.listens_for(reads.sync_engine, "begin")
    def began(connection: Any) -> None:
        if READER.get() is not None:
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {round(READ_S * 1000)}")


def _sqlite_reads(address: Address) -> AsyncEngine:
    """Create the engine for reads of SQLite. A progress handler stops reads of clients after
    `READ_S` seconds.
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
        connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}").close()

    @sa.event.listens_for(engine.sync_engine, "begin")
    def began(connection: Any) -> None:
        is_limited = READER.get() is not None
        connection.info[_DEADLINE].start(READ_S if is_limited else math.inf)
        connection.exec_driver_sql("BEGIN")

    return engine


def _add_functions(connection: Any, check: Callable[[], None] = lambda: None) -> None:
    """Add the SQL functions of our queries to a connection of SQLite. The functions call ``check``,
    which raises an error to stop a slow query.
    """
    functions = (
        (CONTAINS, 2, json_contains),
        (filters.EQUALS, 3, filters.equals_in_sqlite),
        (filters.HAS_ALL, 3, filters.has_all_in_sqlite),
    )
    for name, count, function in functions:
        bound = functools.partial(function, check=check)
        connection.create_function(name, count, bound, deterministic=True)


def _sqlite_writes(address: Address, writer: CommitGroups) -> AsyncEngine:
    """Create the engine for writes to SQLite, whose transactions take turns on the connection of
    ``writer``.

    Each transaction begins as a writer. A transaction that begins with a read would fail at its
    first write if another transaction has written in between.
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
    """Yield the driver's connection. If ``wanted``, execute SQLite's statements in the event loop's
    thread until the ``with`` block ends.
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
"""Seconds to wait for a lock, because a killed server may keep its lock for a moment."""
_LOCK_KEY = 0x6167656E  # the number of PostgreSQL's advisory lock; arbitrary, but never changed
_LOCK_TRIES = 20


class Database:
    """The database of the LangGraph API: its connections, its clock and its lock.

    SQLite has a single connection for writes, and several for reads. For PostgreSQL, ``lock``
    excludes other servers. Deadlines and start times are times of ``clock``, whose last reading is
    stored in the database.
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
        """Open a connection for queries only. ``rows`` is as in `writing`.

        Raises 503 if a query of a client takes longer than `READ_S` seconds, or if the database
        does not answer a client's query at all.
        """
        async with (
            limited(),
            self._reads.connect() as connection,
            _direct(connection, rows),
        ):
            yield connection

    @asynccontextmanager
    async def writing(self, *, rows: bool = False) -> AsyncIterator[AsyncConnection]:
        """Open a transaction. It is stored when the ``with`` block ends, or rolled back if the
        block raises.

        ``rows`` says that all statements are about single rows. SQLite executes such statements so
        quickly that they run in the event loop's thread.
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
        """Return all rows of a query. Raises 503 as `reading` does."""
        async with self.reading() as connection:
            rows: Sequence[sa.Row[Any]] = (await connection.execute(query)).all()
            return rows

    async def first(
        self,
        query: sa.Select[Any],
        parameters: Mapping[str, Any] | None = None,
        *,
        quick: bool = False,
    ) -> sa.Row[Any] | None:
        """Return the first row of a query, or None. ``quick`` says that the row is small and is
        found by its key.
        """
        async with self.reading(rows=quick) as connection:
            row: sa.Row[Any] | None = (await connection.execute(query, parameters)).first()
            return row

    async def count(self, table: sa.Table, conditions: Sequence[sa.ColumnElement[bool]]) -> int:
        """Return the number of rows that meet all ``conditions``."""
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
        """Return a page of rows, and headers for the response.

        ``page`` is the body of a search. Rows that are equal in the search's order are ordered by
        the column ``key``. The rows have these ``columns``; None means all columns. The header
        ``X-Pagination-Next`` is the offset of the next page, if there is one.
        ``X-Pagination-Total`` is the page's offset plus the number of its rows, plus 1 if there is
        a next page.
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
        """Store the clock's reading if the system clock was set, or if the stored reading is older
        than ``after_s`` seconds.
        """
        reading, last = self.clock.reading(), self._kept
        if reading.shift != last.shift or reading.now > last.now + after_s:
            await self.write(_keep(reading))
            self._kept = reading


@asynccontextmanager
async def open_database(
    address: Address, machine: MachineClocks | None = None
) -> AsyncIterator[Database]:
    """Open the database, and create missing tables. ``machine`` has the clocks of the machine.

    Raises `ConfigError` if the database cannot be opened, is in use by another server, or has
    tables of another version.
    """
    async with AsyncExitStack() as stack:
        try:
            if address.file is not None:
                await _lock_file(address.file, stack, again=True)  # after `reserved`
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
            raise _unusable(address, error) from error
        database = Database(address, reads, writes, clock, lock)
        yield database
        with contextlib.suppress(
            SQLAlchemyError, OSError
        ):  # without this last reading, the clock continues as after a kill
            await database.keep_clock(0.0)


async def _make_tables(engine: AsyncEngine, address: Address) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(tables.metadata.create_all)
        is_version = about.c.key == "version"
        stored = (await connection.execute(sa.select(about.c.value).where(is_version))).scalar()
        if stored is None:
            await connection.execute(
                sa.insert(about).values(key="version", value=str(tables.VERSION))
            )
        elif stored != str(tables.VERSION):
            raise ConfigError(
                f"--database {address}: its tables have version {stored}, and this agentrt needs "
                f"version {tables.VERSION}; use another database"
            )
        # A write now shows whether the database is read-only, before the first run needs it.
        await connection.execute(sa.update(about).where(is_version).values(value=about.c.value))


# -- the clock -----------------------------------------------------------------------------


async def _clock_of(engine: AsyncEngine, machine: MachineClocks | None) -> SteadyClock:
    """Return the clock of the database, which continues from the reading that the last server
    stored.
    """
    async with engine.begin() as connection:
        query = sa.select(about.c.value).where(about.c.key == _CLOCK)
        kept = (await connection.execute(query)).scalar()
        clock = SteadyClock(machine, None if kept is None else ClockReading(*json.loads(kept)))
        if kept is None:
            await connection.execute(sa.insert(about).values(key=_CLOCK, value=""))
        await connection.execute(_keep(clock.reading()))
    return clock


def _keep(reading: ClockReading) -> sa.Executable:
    return sa.update(about).where(about.c.key == _CLOCK).values(value=json.dumps(reading))


# -- locks ----------------------------------------------------------------------------------


@asynccontextmanager
async def reserved(address: Address) -> AsyncIterator[None]:
    """Keep other servers from using a database that is opened later in the ``with`` block.

    An SQLite file stays locked; `open_database` in the block locks it again for this process. A
    PostgreSQL database is only checked, and is locked when it is opened. Raises `ConfigError` if
    another server uses the database, or if the database cannot be reached.
    """
    async with AsyncExitStack() as stack:
        try:
            if address.file is not None:
                await _lock_file(address.file, stack)
            else:
                _, writes = engines(address)
                lock = AdvisoryLock(writes, address)
                try:
                    await lock.take()
                finally:
                    await lock.release()
                    await writes.dispose()
        except (SQLAlchemyError, OSError, ImportError) as error:
            raise _unusable(address, error) from error
        yield


async def _lock_file(path: Path, stack: AsyncExitStack, *, again: bool = False) -> None:
    """Lock a file next to the database. The lock is released when ``stack`` closes or this process
    ends. Raises `ConfigError` if another process holds the lock. Also raises it if this process
    already holds the lock, unless ``again`` is True.
    """
    for _ in range(_LOCK_TRIES):
        try:
            stack.enter_context(lock_beside(path, again=again))
            return
        except BlockingIOError:
            await asyncio.sleep(LOCK_WAIT_S / _LOCK_TRIES)
    raise _in_use(f"sqlite:{path}")


class AdvisoryLock:
    """An advisory lock of PostgreSQL on our tables. It has its own connection, which ends with this
    process.
    """

    def __init__(self, engine: AsyncEngine, address: Address) -> None:
        self._engine = engine
        self._address = address
        self._connection: AsyncConnection | None = None

    async def take(self) -> None:
        """Take the lock. Raises `ConfigError` if another server holds it."""
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
        """Take the lock again if its connection has broken, because the lock is lost with the
        connection.
        """
        try:
            assert self._connection is not None
            await self._connection.execute(sa.select(1))
        except (SQLAlchemyError, AssertionError):
            await self.release()
            await self.take()

    async def release(self) -> None:
        """Release the lock, and close its connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(SQLAlchemyError):
                await connection.invalidate()  # a broken connection must not go back to the pool
                await connection.close()


def _unusable(address: Address, error: BaseException) -> ConfigError:
    """Return the error for a database that cannot be opened."""
    reason = error.strerror if isinstance(error, OSError) else None
    if isinstance(error, ImportError):
        advice = f"run: {install_command('postgres')}"
    elif address.file is None:
        advice = "check the address and the user, and that PostgreSQL runs there"
    elif (code := _sqlite_code(error)) == sqlite3.SQLITE_CORRUPT:
        advice = "restore an undamaged copy, or name another file (--database sqlite:FILE)"
    elif code == sqlite3.SQLITE_NOTADB:
        advice = "name another file (--database sqlite:FILE)"
    else:
        advice = (
            "name a file that can be written (--database sqlite:FILE), or set AGENTRT_DATA to a "
            "writable folder with enough space"
        )
    return ConfigError(f"--database {address}: {reason or first_line(error)}; {advice}")


def _sqlite_code(error: BaseException) -> int | None:
    """Return the primary code of an error of SQLite, also if SQLAlchemy has wrapped the error; None
    for another error.
    """
    code = getattr(getattr(error, "orig", error), "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _in_use(name: str) -> ConfigError:
    return ConfigError(
        f"--database {name}: another server uses this database; stop that server, or choose "
        "another database, such as --database sqlite:other.db"
    )
