"""Where a journal is: an SQLite file. One process at a time writes it; any may read it.

All methods but those that open are called in the writer's thread.
"""

from __future__ import annotations

import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from agentrt.errors import JournalError, JournalWriteError
from agentrt.files import lock_beside
from agentrt.journal.schema import (
    ADDED,
    APPLICATION,
    INSERTS,
    TABLES,
    VERSION,
    VIEW,
    Change,
    Statement,
)

_BUSY_S = 10.0
_BUSY = ("locked", "busy")


class Store(ABC):
    """Rows of one journal, in transactions. ``name`` is how people know it."""

    name: str

    @abstractmethod
    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a ``SELECT``. Raises `JournalError` for what cannot be read."""

    @abstractmethod
    def write(self, changes: Iterable[Change]) -> None:
        """All of them in one transaction, or none. Raises `JournalWriteError`."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it. Idempotent."""


class SQLiteStore(Store):
    """A file. Each write is on the disk when it returns: it outlives a loss of power."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._lock: IO[str] | None = None
        self._connection: sqlite3.Connection | None = None
        self._reading = threading.Lock()
        try:
            self._open()
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise self._fault(error) from error
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        try:
            self._lock = lock_beside(self._path)
        except BlockingIOError as error:
            raise JournalError(
                f"journal {self.name}: another process writes it; wait for that one, or name "
                "another file"
            ) from error
        is_new = not self._path.exists() or not self._path.stat().st_size
        self._connection = sqlite3.connect(
            self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        if not is_new:
            self._check()
        self._execute("PRAGMA journal_mode=WAL")
        self._execute("PRAGMA synchronous=FULL")
        self._make(is_new=is_new)

    def _check(self) -> None:
        """Whether it is whole, and a journal that this version can read."""
        application = self._execute("PRAGMA application_id")[0][0]
        version = self._execute("PRAGMA user_version")[0][0]
        if application != APPLICATION:
            raise JournalError(
                f"journal {self.name}: that is a database of another program; name another file"
            )
        check_version(self.name, version)
        problems = self._execute("PRAGMA quick_check(1)")
        if problems != [("ok",)]:
            raise _corrupt(self.name, str(problems[0][0]))

    def _make(self, *, is_new: bool) -> None:
        self._execute("BEGIN IMMEDIATE")
        for statement in TABLES:
            self._execute(statement)
        for table, columns in ADDED.items():
            known = {row[1] for row in self._execute(f"PRAGMA table_info({table})")}
            for column in columns.keys() - known:
                self._execute(f"ALTER TABLE {table} ADD COLUMN {column} {columns[column]}")
        old = self._execute("SELECT sql FROM sqlite_master WHERE name = 'agentrt_nodes'")
        if old != [(VIEW,)]:
            self._execute("DROP VIEW IF EXISTS agentrt_nodes")
            self._execute(VIEW)
        if is_new:
            self._execute(f"PRAGMA application_id={APPLICATION}")
            self._execute(f"PRAGMA user_version={VERSION}")
        # Where nothing may be written, that is said now, and not by the first node.
        self._execute("INSERT OR REPLACE INTO agentrt_journal VALUES ('opened', datetime('now'))")
        self._execute("COMMIT")

    def _execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        assert self._connection is not None
        return self._connection.execute(statement, values).fetchall()

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        # A read whose task was cancelled goes on in its thread: SQLite must not be closed under it.
        with self._reading:
            if self._connection is None:
                raise JournalError(f"journal {self.name} is closed")
            try:
                return self._execute(statement, values)
            except sqlite3.Error as error:
                raise self._fault(error) from error

    def write(self, changes: Iterable[Change]) -> None:
        connection = self._connection
        if connection is None:
            raise JournalWriteError(f"journal {self.name} is closed")
        try:
            connection.execute("BEGIN IMMEDIATE")
            for statement, rows in in_groups(changes):
                connection.executemany(statement, rows)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise JournalWriteError(
                f"journal {self.name}: {error}: what has been recorded is kept, and the same "
                "command goes on from there"
            ) from error

    def close(self) -> None:
        with self._reading:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
        if self._lock is not None:
            self._lock.close()

    def _fault(self, error: Exception) -> JournalError:
        text = getattr(error, "strerror", None) or str(error)
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_NOTADB:
            return JournalError(f"journal {self.name}: that is no journal; name another file")
        if code is not None and code & 0xFF == sqlite3.SQLITE_CORRUPT:
            return _corrupt(self.name, text)
        if any(word in text for word in _BUSY):
            return JournalError(
                f"journal {self.name}: another program has it locked; wait for that one"
            )
        return JournalError(
            f"journal {self.name}: {text}; name a file that can be written (--journal FILE), in a "
            "folder that is there"
        )


def in_groups(changes: Iterable[Change]) -> Iterator[tuple[str, list[Sequence[Any]]]]:
    """The changes by their statements. Rows of one kind come together: their tables do not know
    of each other. What is deleted, and what comes after that, stays behind what came before.
    """
    groups: dict[str, list[Sequence[Any]]] = {}
    for one in changes:
        if isinstance(one, Statement):
            yield from groups.items()
            groups.clear()
            yield one.statement, [one.values]
        else:
            groups.setdefault(INSERTS[type(one)], []).append(one)
    yield from groups.items()


def check_version(name: str, version: int) -> None:
    """Raise `JournalError` for the tables of another version."""
    if version != VERSION:
        newer = "a newer agentrt wrote it" if version > VERSION else "it is of no known version"
        raise JournalError(
            f"journal {name}: {newer} (version {version}, and this one reads {VERSION}); install "
            "that agentrt, or name another file"
        )


def _corrupt(name: str, text: str) -> JournalError:
    return JournalError(
        f"journal {name}: it is damaged or cut off ({text}); nothing was read of it: bring back a "
        "whole copy, or name another file"
    )
