"""The database of the LangGraph API: SQLite in a file, or PostgreSQL.

One server at a time: two would run each other's runs again.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import orjson
from sqlalchemy import ColumnElement, event, insert, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction
from sqlalchemy.types import Boolean

from agentrt.errors import ConfigError
from agentrt.serving.langgraph import schema

_FORMS = "--database takes sqlite:FILE, and postgresql://USER@HOST/NAME"
_LOCK_KEY = 0x6167656E  # of PostgreSQL's advisory locks; any number that is always the same
PATIENCE_S = 5.0
"""How long a server that was killed may still hold its database."""
_BUSY_S = 30.0
"""How long SQLite waits for another connection's write."""
_CONTAINS = "agentrt_contains"


@dataclass(frozen=True, slots=True)
class Address:
    """What ``--database`` names: a file of SQLite, or else a URL of PostgreSQL."""

    file: Path | None
    url: str

    @classmethod
    def parse(cls, given: str) -> Address:
        """Raises `ConfigError` for what is neither."""
        if given.startswith(("postgresql://", "postgres://")):
            return cls(None, "postgresql://" + given.partition("://")[2])
        kind, _, name = given.partition(":")
        if kind != "sqlite" or name in ("", ":memory:") or name.startswith("//"):
            raise ConfigError(f"--database {given!r}: {_FORMS}")
        path = Path(name)
        if not path.absolute().parent.is_dir():
            raise ConfigError(
                f"--database {given}: there is no folder {str(path.parent)!r}; make it"
            )
        if path.is_dir():
            raise ConfigError(f"--database {given}: that is a folder; name a file")
        return cls(path, f"sqlite+aiosqlite:///{path}")

    def __str__(self) -> str:
        """Without the password."""
        if self.file is not None:
            return f"sqlite:{self.file}"
        head, at, tail = self.url.rpartition("@")
        user = head.removeprefix("postgresql://").partition(":")[0]
        return f"postgresql://{user}{at}{tail}" if at else self.url


class Database:
    """Our tables. SQLite has one connection that writes, and others that read meanwhile."""

    def __init__(self, address: Address, reads: AsyncEngine, writes: AsyncEngine) -> None:
        self.address = address
        self._reads = reads
        self._writes = writes

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection for questions only."""
        async with self._reads.connect() as connection:
            yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """A transaction: committed at the block's end, or undone if it raises."""
        async with self._writes.begin() as connection:
            yield connection


@asynccontextmanager
async def open_database(address: Address) -> AsyncIterator[Database]:
    """Our tables, made if they are not there.

    Raises `ConfigError` if they cannot be opened, or are in use by another server.
    """
    async with AsyncExitStack() as stack:
        try:
            if address.file is not None:
                await _lock_file(address.file, stack)
            reads, writes = _engines(address)
            stack.push_async_callback(reads.dispose)
            stack.push_async_callback(writes.dispose)
            if address.file is None:
                await stack.enter_async_context(_advisory_lock(writes, address))
            await _make_tables(writes, address)
        except (SQLAlchemyError, OSError, sqlite3.Error, ImportError) as error:
            raise ConfigError(f"--database {address}: {_first_line(error)}") from error
        yield Database(address, reads, writes)


def _first_line(error: BaseException) -> str:
    cause = getattr(error, "orig", None) or error
    return str(cause).strip().partition("\n")[0]


def _engines(address: Address) -> tuple[AsyncEngine, AsyncEngine]:
    if address.file is None:
        url = address.url.replace("postgresql://", "postgresql+psycopg://", 1)
        engine = create_async_engine(
            url, json_serializer=_dumps, json_deserializer=json.loads, pool_size=8, max_overflow=8
        )
        return engine, engine
    return _sqlite(address.url, "BEGIN", 4), _sqlite(address.url, "BEGIN IMMEDIATE", 1)


def _sqlite(url: str, begin: str, connections: int) -> AsyncEngine:
    """An engine whose transactions start with ``begin``.

    One that starts as a reader and writes later fails at once when another has written
    meanwhile; one that starts as a writer waits for its turn.
    """
    engine = create_async_engine(
        url,
        json_serializer=_dumps,
        json_deserializer=json.loads,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=_BUSY_S,
        connect_args={"timeout": _BUSY_S},
    )

    @event.listens_for(engine.sync_engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        connection.isolation_level = None
        connection.create_function(_CONTAINS, 2, _json_contains, deterministic=True)
        connection.execute("PRAGMA journal_mode=WAL").close()

    @event.listens_for(engine.sync_engine, "begin")
    def began(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    return engine


async def _lock_file(path: Path, stack: AsyncExitStack) -> None:
    """Hold the file beside the database, which goes when this process does."""
    file: IO[str] = stack.enter_context(path.with_name(path.name + ".lock").open("w"))
    for _ in _tries():
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            await asyncio.sleep(PATIENCE_S / 20)
    raise ConfigError(_in_use(f"sqlite:{path}"))


@asynccontextmanager
async def _advisory_lock(engine: AsyncEngine, address: Address) -> AsyncIterator[None]:
    """Hold PostgreSQL's lock on a connection of its own, which ends with this process."""
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        ask = text("SELECT pg_try_advisory_lock(:key)")
        for _ in _tries():
            if (await connection.execute(ask, {"key": _LOCK_KEY})).scalar():
                break
            await asyncio.sleep(PATIENCE_S / 20)
        else:
            raise ConfigError(_in_use(str(address)))
        yield
        await connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _LOCK_KEY})


def _tries() -> range:
    return range(20)


def _in_use(name: str) -> str:
    return f"--database {name}: another server uses it; stop that one, or name another database"


async def _make_tables(engine: AsyncEngine, address: Address) -> None:
    about = schema.about
    async with engine.begin() as connection:
        await connection.run_sync(schema.metadata.create_all)
        is_version = about.c.key == "version"
        found = (await connection.execute(select(about.c.value).where(is_version))).scalar()
        if found is None:
            await connection.execute(insert(about).values(key="version", value=str(schema.VERSION)))
        elif found != str(schema.VERSION):
            raise ConfigError(
                f"--database {address}: its tables are of version {found}, and this agentrt has "
                f"version {schema.VERSION}; name another database"
            )


# -- containment, as PostgreSQL's JSONB defines it ----------------------------------------


class contains(GenericFunction[bool]):  # noqa: N801  # read as an SQL function
    """Whether a JSON column contains a value: PostgreSQL's ``column @> value``."""

    type = Boolean()
    inherit_cache = True
    name = _CONTAINS


@compiles(contains, "postgresql")
def _as_operator(element: Any, compiler: Any, **options: Any) -> str:
    column, value = element.clauses
    return (
        f"{compiler.process(column, **options)} @> "
        f"CAST({compiler.process(value, **options)} AS JSONB)"
    )


def has(column: Any, value: Any) -> ColumnElement[bool]:
    """Whether the JSON in ``column`` contains ``value``, as JSONB's ``@>`` does."""
    return contains(column, _dumps(value))


def _dumps(value: Any) -> str:
    return orjson.dumps(value).decode()


def _json_contains(column: str | None, value: str) -> bool:
    return column is not None and is_within(json.loads(value), json.loads(column))


def is_within(part: Any, whole: Any) -> bool:
    """Whether JSON ``whole`` contains ``part``: objects key by key, lists as sets."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            key in whole and is_within(value, whole[key]) for key, value in part.items()
        )
    if isinstance(part, list):
        return isinstance(whole, list) and all(
            any(is_within(one, other) for other in whole) for one in part
        )
    if isinstance(part, bool) or isinstance(whole, bool):
        return part is whole
    return bool(part == whole)
