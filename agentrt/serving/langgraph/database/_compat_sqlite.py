"""Where we reach into aiosqlite, for connections that use their threads only where it pays.

``tests/serving/langgraph/database/test_sqlite_connections.py`` fails when what is overridden is
gone.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any

import aiosqlite

_WRITES = re.compile(r"\s*(BEGIN IMMEDIATE|INSERT|UPDATE|DELETE|REPLACE)\b", re.IGNORECASE)


class SqliteConnection(aiosqlite.Connection):
    """A connection that passes to its thread what may wait for the disk or for a lock, and does
    the rest at once: each way to the thread and back takes a turn of the event loop.

    While it is ``direct``, it does all but commits at once: in a transaction that has begun to
    write, whose statements are about single rows. Connections that write have the same ``lock``,
    which passes from one to the next at once; for SQLite's own they would look again and again,
    after longer and longer pauses. Without a lock it only reads.
    """

    def __init__(self, path: str, lock: Lock | None = None, *, timeout: float) -> None:
        connect = partial(sqlite3.connect, path, timeout, check_same_thread=False)
        super().__init__(connect, 64)
        self._thread.daemon = True
        self._lock, self._timeout = lock, timeout
        self._has_lock = False
        self.direct = False

    def stop(self) -> asyncio.Future[Any] | None:
        self._tx.put_nowait((None, self._give_up))
        return super().stop()

    async def _execute(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        call = fn if self._lock is None else partial(self._locked, fn)
        if self._running and self._connection and self._is_quick(fn, args):
            return call(*args, **kwargs)
        inner: Any = super()._execute
        return await inner(call, *args, **kwargs)

    def _is_quick(self, function: Any, args: tuple[Any, ...]) -> bool:
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if name == "rollback":
            return self._lock is None or not self._conn.in_transaction
        if name in ("cursor", "commit"):
            return name == "cursor"
        if isinstance(owner, sqlite3.Cursor):
            return self.direct or name == "close" or args[:1] == ("BEGIN",)
        return False

    def _locked(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call ``function``, with the lock from where a transaction begins to write to its end."""
        if not self._has_lock and args and isinstance(args[0], str) and _WRITES.match(args[0]):
            assert self._lock is not None
            if not self._lock.acquire(timeout=self._timeout):
                raise sqlite3.OperationalError("database is locked")
            self._has_lock = True
        closes = getattr(function, "__name__", "") == "close" and function.__self__ is self._conn
        try:
            return function(*args, **kwargs)
        finally:
            if self._has_lock and (closes or not self._conn.in_transaction):
                self._give_back()

    def _give_up(self) -> None:
        if self._has_lock and self._connection is not None:
            self._connection.rollback()
            self._give_back()

    def _give_back(self) -> None:
        assert self._lock is not None
        self._has_lock = False
        self._lock.release()
