"""Connections of aiosqlite that use a thread only for slow statements, and a writing connection
whose transactions share commits.

This module uses private parts of aiosqlite.
``tests/serving/langgraph/database/test_sqlite_connections.py`` fails when these parts disappear.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, cast

import aiosqlite
from aiosqlite.context import contextmanager

_CHUNK = 64
"""Number of rows that a cursor fetches at once."""
_SAVEPOINT = "agentrt_turn"
_LARGEST_DIRECT = 64 * 2**10
"""Maximum size of a statement's values (`_size`) for execution in the event loop's thread."""
_UNDONE = "the transaction was undone because another transaction of its group failed"


class SqliteConnection(aiosqlite.Connection):
    """A connection for reads, or the connection by which `CommitGroups` writes. It passes calls to
    its thread only if they may wait for the disk, because each way to the thread and back costs an
    iteration of the event loop.

    While ``direct`` is True, it executes statements in the event loop's thread. This is meant for
    statements about single rows.
    """

    def __init__(self, path: str, *, timeout: float) -> None:
        connect = partial(sqlite3.connect, path, timeout, check_same_thread=False)
        super().__init__(connect, _CHUNK)
        self._thread.daemon = True
        self.direct = False

    async def _execute(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._running and self._connection and self._is_quick(fn, args):
            return fn(*args, **kwargs)
        inner: Any = super()._execute
        return await inner(fn, *args, **kwargs)

    def _is_quick(self, function: Any, args: tuple[Any, ...]) -> bool:
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if name in ("cursor", "rollback"):  # on this connection, a rollback has nothing to undo
            return True
        if isinstance(owner, sqlite3.Cursor):
            return self.direct or name == "close" or args[:1] == ("BEGIN",)
        return False


class CommitGroup:
    """A group of transactions that are committed together."""

    def __init__(self) -> None:
        self.is_ending = False
        self._over = asyncio.Event()
        self._error: Exception | None = None

    def end(self, error: Exception | None) -> None:
        """Record that the group is on the disk, or the error because of which the whole group was
        rolled back.
        """
        self._error = error
        self._over.set()

    async def stored(self) -> None:
        """Wait until the transactions of this group are on the disk. Raises the error because of
        which the whole group was rolled back.
        """
        await self._over.wait()
        if self._error is not None:
            raise type(self._error)(*self._error.args) from self._error


class CommitGroups:
    """The connection for all writes to our tables and to checkpoints in an SQLite file.

    Transactions take turns, each in a savepoint. Transactions that arrive while others are being
    committed form the next group, which has a single commit and so waits for the disk once. A
    transaction is stored when its group is stored (`CommitGroup.stored`); other connections do not
    see it earlier. A transaction that fails is undone without the others. But if SQLite undoes
    everything that is not committed, for example because the disk is full, all transactions of the
    group get the error.

    ``prepare`` is called with each new connection. ``timeout`` is how many seconds to wait for the
    write of another connection, such as the connection of LangGraph's store.
    """

    def __init__(
        self, path: str, prepare: Callable[[sqlite3.Connection], None], *, timeout: float
    ) -> None:
        self._path, self._prepare, self._timeout = path, prepare, timeout
        self._connection: SqliteConnection | None = None
        self._opening = asyncio.Lock()
        self._turns = asyncio.Lock()
        self._group: CommitGroup | None = None
        self._error: Exception | None = None
        self._commits: set[asyncio.Task[None]] = set()

    async def open(self) -> SqliteConnection:
        """Return the connection. The first call opens it."""
        async with self._opening:
            if self._connection is None:
                connection = SqliteConnection(self._path, timeout=self._timeout)
                await connection
                connection._conn.isolation_level = None
                self._prepare(connection._conn)
                async with connection.execute("PRAGMA journal_mode=WAL"):
                    pass
                self._connection = connection
        return self._connection

    async def close(self) -> None:
        """Commit all transactions that have ended, and close the connection. `open` opens
        it again.
        """
        while self._commits:
            await asyncio.wait(list(self._commits))
        async with self._turns:
            connection, self._connection = self._connection, None
            if connection is not None:
                await connection.close()

    async def begin(self) -> CommitGroup:
        """Wait for this transaction's turn, begin it, and return its group. Unless this method
        raises, the caller must call `end` or `abandon` later.
        """
        await self._turns.acquire()
        try:
            if self._group is None:
                self._group, self._error = CommitGroup(), None
                await self._in_thread(self._begin_group)
            else:
                self._do(f"SAVEPOINT {_SAVEPOINT}")
        except BaseException:
            self.abandon()
            raise
        return self._group

    def end(self) -> None:
        """End the transaction. It is committed with the other transactions of its group."""
        try:
            self._do(f"RELEASE {_SAVEPOINT}")
        except BaseException:
            self.abandon()
            raise
        self._pass_on()

    def abandon(self) -> asyncio.Future[None]:
        """Undo the transaction after its current statement, and return a future that completes when
        the transaction is undone.
        """
        loop = asyncio.get_running_loop()
        undone: asyncio.Future[None] = loop.create_future()

        def pass_on() -> None:
            self._pass_on()
            if not undone.done():
                undone.set_result(None)

        def undo() -> None:
            try:
                self._undo()
            finally:
                loop.call_soon_threadsafe(pass_on)

        assert self._connection is not None
        self._connection._tx.put_nowait((None, undo))
        return undone

    def note(self, error: Exception) -> None:
        """Remember ``error`` if it made SQLite undo the whole group of transactions, and not only
        the statement that failed.
        """
        if not self._raw.in_transaction:
            self._error = error

    # -- inside ------------------------------------------------------------------------

    @property
    def _raw(self) -> sqlite3.Connection:
        assert self._connection is not None
        return self._connection._conn

    def _do(self, statement: str) -> None:
        self._raw.execute(statement).close()

    async def _in_thread(self, function: Callable[[], Any]) -> None:
        assert self._connection is not None
        await self._connection._execute(partial(function))

    def _begin_group(self) -> None:
        self._do("BEGIN IMMEDIATE")
        self._do(f"SAVEPOINT {_SAVEPOINT}")

    def _undo(self) -> None:
        if self._raw.in_transaction:
            with suppress(sqlite3.OperationalError):  # if the savepoint was never made
                self._do(f"ROLLBACK TO {_SAVEPOINT}")
                self._do(f"RELEASE {_SAVEPOINT}")

    def _pass_on(self) -> None:
        """Let the next transaction begin. The transactions since the last commit form a group,
        which is committed after all transactions that wait now have had their turns.
        """
        group = self._group
        assert group is not None
        if not self._raw.in_transaction:
            self._group = None
            group.end(self._error or sqlite3.OperationalError(_UNDONE))
        elif not group.is_ending:
            group.is_ending = True
            task = asyncio.get_running_loop().create_task(self._commit(group))
            self._commits.add(task)
            task.add_done_callback(self._commits.discard)
        self._turns.release()

    async def _commit(self, group: CommitGroup) -> None:
        async with self._turns:
            if self._group is not group:  # an error has ended the group
                return
            self._group = None
            error: Exception | None = sqlite3.OperationalError(_UNDONE)
            try:
                await self._in_thread(self._raw.commit)
                error = None
            except Exception as failure:
                error = failure
                await self._in_thread(self._raw.rollback)
            finally:
                group.end(error)


class WritingConnection:
    """A connection that takes turns in `CommitGroups`. It has the methods of an aiosqlite
    connection that SQLAlchemy and LangGraph's checkpointer use.

    A transaction begins with ``BEGIN IMMEDIATE`` or `begin`. `commit` returns before the
    transaction is stored, so wait for ``group`` afterwards (`CommitGroup.stored`). While ``direct``
    is True, statements without large values are executed in the event loop's thread.
    """

    def __init__(self, groups: CommitGroups, connection: SqliteConnection) -> None:
        self._groups = groups
        self._connection = connection
        self._iter_chunk_size = _CHUNK
        self._is_open = False
        self.group: CommitGroup | None = None
        self.direct = False

    async def begin(self) -> None:
        """Wait for the transaction's turn, and begin it."""
        self.group = await self._groups.begin()
        self._is_open = True

    async def commit(self) -> None:
        """End the transaction, if one is open."""
        if self._is_open:
            self._is_open = False
            self._groups.end()

    async def rollback(self) -> None:
        """Undo the transaction, if one is open."""
        if self._is_open:
            self._is_open = False
            await asyncio.shield(self._groups.abandon())

    close = rollback

    def stop(self) -> None:
        """Undo the transaction, if one is open, without waiting."""
        if self._is_open:
            self._is_open = False
            self._groups.abandon()

    async def create_function(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing. SQLAlchemy adds functions to each connection, but our writes use none of
        them.
        """

    def cursor(self) -> aiosqlite.Cursor:
        """Return a new cursor."""
        return aiosqlite.Cursor(cast(Any, self), self._connection._conn.cursor())

    @contextmanager
    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> aiosqlite.Cursor:
        """Execute a statement, and return its cursor."""
        return await self.cursor().execute(sql, parameters)

    async def _execute(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if args[:1] == ("BEGIN IMMEDIATE",):
            return await self.begin()
        try:
            if fn.__name__ == "close" or (self.direct and _size(args[1:]) <= _LARGEST_DIRECT):
                return fn(*args, **kwargs)
            in_thread: Any = self._connection._execute
            return await in_thread(fn, *args, **kwargs)
        except sqlite3.Error as error:
            self._groups.note(error)
            raise


class TransactionTurns:
    """A replacement for the lock of LangGraph's checkpointer. Each ``with`` block is a transaction
    of ``connection``. The transaction is stored at the block's end, or undone if the block raises.
    """

    def __init__(self, connection: WritingConnection) -> None:
        self._connection = connection

    async def __aenter__(self) -> None:
        await self._connection.begin()
        self._connection.direct = True

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            await self._connection.rollback()
            return
        group = self._connection.group
        await self._connection.commit()
        assert group is not None
        await group.stored()


def _size(values: Any) -> int:
    """Return the total length of the texts and bytes among a statement's values."""
    if isinstance(values, str | bytes):
        return len(values)
    if isinstance(values, list | tuple):
        return sum(map(_size, values))
    return 0
