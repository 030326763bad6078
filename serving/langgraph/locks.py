"""Locks that keep a second server from the database of the LangGraph API."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
from contextlib import AsyncExitStack
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from agentrt.errors import ConfigError
from agentrt.files import check_plain
from agentrt.serving.langgraph.connections import Address

LOCK_WAIT_S = 5.0
"""How long a server that was killed may still have its database locked."""
_LOCK_KEY = 0x6167656E  # of PostgreSQL's advisory locks; any number that is always the same
_LOCK_TRIES = 20


async def lock_file(path: Path, stack: AsyncExitStack) -> None:
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
