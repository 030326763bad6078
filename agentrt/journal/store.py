"""Where a journal is: an SQLite file, the thread that writes it, and its clock.

One process at a time writes the file; any may read it. All methods of a store but those that open
it are called in the thread of its `Writer`, which makes one transaction of what came together.

The rows have the times of a `SteadyClock`, people see times of day. The last reading of the clock
is in the table ``agentrt_journal``: under ``clock`` for whoever opens the journal next, and under
``shift`` in seconds for SQL.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
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
    EndRow,
    StartRow,
    Statement,
)
from agentrt.steady import MachineClocks, Reading, SteadyClock

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


def raw_rows(store: Store, program_id: str) -> tuple[list[StartRow], list[EndRow]]:
    """All attempts at a program's nodes, itself with them, with the times of the journal's clock,
    as they are in the tables. Raises `JournalError`.
    """
    # All columns: older journals do not have the last of them.
    starts, ends = (
        store.query(f"SELECT * FROM {table} WHERE program = ?", (program_id,))
        for table in ("agentrt_starts", "agentrt_ends")
    )
    return [StartRow(*row) for row in starts], [EndRow(*row) for row in ends]


# -- the thread that writes ------------------------------------------------------------------------

Waiting = list[asyncio.Future[None]]


class Writer:
    """Writes rows in the order in which they came. All methods belong to one event loop.

    The thread has one batch at a time: all that was put until the loop had done what was ready.
    Once a write has failed (``error``), so does every later one: a journal has no gaps. All who
    wait for a ``batch`` go on in one turn of the loop.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._rows: list[Change] = []
        self._waiting: Waiting = []
        self._busy = False
        self.batch = 0
        self.error: Exception | None = None
        self._batches: SimpleQueue[tuple[list[Change], Waiting] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="agentrt/journal", daemon=True)
        self._thread.start()

    def put(self, *rows: Change) -> None:
        """Write them, in one transaction, with the next that is waited for."""
        self._rows.extend(rows)

    async def written(self) -> None:
        """Wait until all that was put is on the disk. Raises `JournalWriteError`."""
        if self.error is not None:
            raise self.error
        done = self._loop.create_future()
        self._waiting.append(done)
        if not self._busy:
            self._busy = True
            self._loop.call_soon(self.send)
        await done

    async def close(self) -> None:
        """Write what is left, end the thread, and close the store. Idempotent."""
        self.send()
        self._batches.put(None)
        await asyncio.to_thread(self._thread.join)
        self._store.close()

    def send(self) -> None:
        """Write what was put, though nobody waits for it."""
        rows, self._rows = self._rows, []
        waiting, self._waiting = self._waiting, []
        self.batch += 1
        self._batches.put((rows, waiting))

    def _wrote(self, waiting: Waiting, error: Exception | None) -> None:
        self.error = error
        for one in waiting:
            if one.done():  # who waited was cancelled
                continue
            if error is None:
                one.set_result(None)
            else:
                one.set_exception(error)
        self._busy = bool(self._waiting)
        if self._busy:
            self._loop.call_soon(self.send)

    # -- in the thread -----------------------------------------------------------------

    def _work(self) -> None:
        error: Exception | None = None
        while (batch := self._batches.get()) is not None:
            rows, waiting = batch
            if error is None and rows:
                error = self._write(rows)
            if waiting:
                self._loop.call_soon_threadsafe(self._wrote, waiting, error)

    def _write(self, rows: list[Change]) -> Exception | None:
        try:
            self._store.write(rows)
        except JournalWriteError as error:
            return error
        except Exception as error:
            return JournalWriteError(f"journal {self._store.name}: {error!r}")
        return None


# -- the clock of a journal ------------------------------------------------------------------------

_KEEP = """INSERT INTO agentrt_journal VALUES (?, ?)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value"""


def clock_of(store: Store, machine: MachineClocks | None = None) -> SteadyClock:
    """The clock of a journal, taken up where its last process left it."""
    return SteadyClock(machine, _last_reading(store))


def shift_of(store: Store) -> float:
    """How far the time of day is ahead of the times in a journal's rows, in seconds."""
    last = _last_reading(store)
    return 0.0 if last is None else last.shift


def kept(reading: Reading) -> tuple[Statement, Statement]:
    """What keeps a reading in a journal."""
    return (
        Statement(_KEEP, ("clock", json.dumps(reading))),
        Statement(_KEEP, ("shift", repr(reading.shift))),
    )


def _last_reading(store: Store) -> Reading | None:
    rows = store.query("SELECT value FROM agentrt_journal WHERE key = 'clock'")
    return Reading(*json.loads(rows[0][0])) if rows else None
