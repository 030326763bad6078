"""Connections to the database of the LangGraph API: its address, what reads and what writes."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from agentrt.errors import ConfigError
from agentrt.serving.langgraph.reading import READ_S, READER, Deadline
from agentrt.serving.langgraph.tables import CONTAINS, dumps, json_contains

READS, _WRITES = 4, 8
"""Connections that read; that write to PostgreSQL. SQLite has one writer."""
_FORMS = "give sqlite:FILE or postgresql://USER@HOST/NAME"
_DEADLINE = "agentrt_deadline"
_STEPS = 10_000
"""So many steps of SQLite's virtual machine pass until it is asked whether it may go on."""
_BUSY_S = 30.0
"""How long SQLite waits for another connection's write."""

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

    @classmethod
    def parse(cls, given: str) -> Address:
        """Parse the option. Raises `ConfigError` for anything else."""
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


def engines(address: Address) -> tuple[AsyncEngine, AsyncEngine]:
    """What reads, and what writes."""
    if address.file is None:
        url = address.url.replace("postgresql://", "postgresql+psycopg://", 1)
        reads, writes = (_engine(url, n, 2 * READ_S, TIMEOUTS) for n in (READS, _WRITES))
        _limit_statements(reads)
        return reads, writes
    return _sqlite(address.url, "BEGIN", READS), _sqlite(address.url, "BEGIN IMMEDIATE", 1)


def _engine(
    url: str, connections: int, wait_s: float, connect_args: Mapping[str, Any]
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
    )


def _limit_statements(reads: AsyncEngine) -> None:
    """PostgreSQL breaks a client's statement off by itself."""

    @sa.event.listens_for(reads.sync_engine, "begin")
    def began(connection: Any) -> None:
        if READER.get() is not None:
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {round(READ_S * 1000)}")


def _sqlite(url: str, begin: str, connections: int) -> AsyncEngine:
    """An engine whose transactions start with ``begin``. Of one that reads, SQLite asks a function
    of ours, while it works for a client, whether it may go on.

    A transaction that reads first and writes later fails at once if another has written in
    between; one that begins as a writer waits for its turn.
    """
    reads = begin == "BEGIN"
    engine = _engine(url, connections, 2 * READ_S if reads else _BUSY_S, {"timeout": _BUSY_S})

    @sa.event.listens_for(engine.sync_engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        deadline = record.info[_DEADLINE] = Deadline()
        within = functools.partial(json_contains, check=deadline.check)
        connection.isolation_level = None
        connection.create_function(CONTAINS, 2, within, deterministic=True)
        connection.run_async(lambda own: own.set_progress_handler(deadline, _STEPS))
        connection.execute("PRAGMA journal_mode=WAL").close()

    @sa.event.listens_for(engine.sync_engine, "begin")
    def began(connection: Any) -> None:
        is_limited = reads and READER.get() is not None
        connection.info[_DEADLINE].start(READ_S if is_limited else math.inf)
        connection.exec_driver_sql(begin)

    return engine
