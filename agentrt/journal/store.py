"""The database of a journal (an SQLite file), the thread that writes it, and the journal's clock.

Only one process at a time may write the file, but any process may read it. A `WriterThread` calls
`Store.write` in its thread, and writes the rows that arrive together in one transaction.

The times in rows are times of a `SteadyClock`; people see times of day. The table
``agentrt_journal`` has two rows for the clock: the key ``clock`` has the clock's last reading, for
the next process that opens the journal; the key ``shift`` has the seconds that must be added to a
time to get the time of day, for queries in SQL.
"""

from __future__ import annotations

import asyncio
import errno
import json
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, TypeVar, get_args, get_type_hints

from agentrt.errors import JournalError, JournalWriteError
from agentrt.files import lock_beside, unlock
from agentrt.journal.schema import (
    ADDED,
    APPLICATION,
    INSERTS,
    TABLES,
    VERSION,
    VIEW,
    Change,
    EndRow,
    RecordedProgram,
    StartRow,
    Statement,
)
from agentrt.steady import ClockReading, MachineClocks, SteadyClock

_BUSY_S = 10.0
_BUSY = ("locked", "busy")


class Store(ABC):
    """The database of one journal. ``name`` is its name in messages."""

    name: str

    @abstractmethod
    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a ``SELECT``. Raises `JournalError` if the rows cannot be read."""

    @abstractmethod
    def write(self, changes: Iterable[Change]) -> None:
        """Write all changes in one transaction. Raises `JournalWriteError` if this fails; then no
        change is written.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the database. Idempotent."""


class SQLiteStore(Store):
    """A journal in an SQLite file. `write` returns when the changes are on the disk, so that they
    survive a power failure.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._lock: IO[str] | None = None
        self._connection: sqlite3.Connection | None = None
        self._reading = threading.Lock()
        try:
            self._open()
        except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
            self._abandon()
            raise self._fault(error) from error
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Close the file, and remove its lock file, because the file cannot be used."""
        if self._lock is not None:
            unlock(self._lock)
        self.close()

    def _open(self) -> None:
        try:
            self._lock = lock_beside(self._path)
        except BlockingIOError as error:
            raise JournalError(
                f"journal {self.name} is being written by another process, or is already open in "
                "this process; wait until it is closed there, or name another file"
            ) from error
        is_new = not self._path.exists() or not self._path.stat().st_size
        self._connection = sqlite3.connect(
            self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        if not is_new and not self._is_blank():
            self._check()
            problems = self._execute("PRAGMA quick_check(1)")
            if problems != [("ok",)]:
                raise _corrupt(self.name, str(problems[0][0]))
        self._execute("PRAGMA journal_mode=WAL")
        self._execute("PRAGMA synchronous=FULL")
        self._make(is_new=is_new or self._is_blank())

    def _is_blank(self) -> bool:
        """Return whether the file is a database with nothing in it, as after a process was killed,
        or the disk was full, just after the file was created.
        """
        numbers = [self._execute(f"PRAGMA {name}") for name in ("application_id", "user_version")]
        return numbers == [[(0,)], [(0,)]] and not self._execute("SELECT 1 FROM sqlite_master")

    def _check(self) -> None:
        """Raise `JournalError` if the file is not a journal of this version."""
        application = self._execute("PRAGMA application_id")[0][0]
        version = self._execute("PRAGMA user_version")[0][0]
        if application != APPLICATION:
            # A server keeps its journal next to its database.
            beside = self._path.with_name(f"{self._path.stem}.journal{self._path.suffix}")
            if beside.exists():
                raise JournalError(f"{self.name} is not a journal; the journal is {beside}")
            if self._is_blank():
                raise JournalError(
                    f"journal {self.name} is empty: the command that created it was stopped before "
                    "it recorded a run"
                )
            raise JournalError(
                f"journal {self.name} is a database of another program; name another file"
            )
        check_version(self.name, version)

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
        # Fail now if the file cannot be written, and not at the first node.
        self._execute("INSERT OR REPLACE INTO agentrt_journal VALUES ('opened', datetime('now'))")
        self._execute("COMMIT")

    def _execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        assert self._connection is not None
        return self._connection.execute(statement, values).fetchall()

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        # A read continues in its thread even if its task is cancelled. The connection must not be
        # closed during the read.
        with self._reading:
            if self._connection is None:
                raise JournalError(f"journal {self.name} is closed")
            try:
                return self._execute(statement, values)
            except (sqlite3.Error, UnicodeDecodeError) as error:
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
            advice = "all earlier records are safe, and the same command resumes from them"
            if _is_damaged(error):
                advice = "the file is damaged; restore an undamaged copy, or name another file"
            raise JournalWriteError(f"journal {self.name}: {error}; {advice}") from error

    def close(self) -> None:
        with self._reading:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
        if self._lock is not None:
            self._lock.close()

    def _fault(self, error: Exception) -> JournalError:
        text = getattr(error, "strerror", None) or str(error)
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
            return JournalError(f"{self.name} is not a journal; name another file")
        if _is_damaged(error):
            return _corrupt(self.name, text)
        # Python's module raises one or the other.
        if isinstance(error, UnicodeDecodeError) or text.startswith("Could not decode to UTF-8"):
            return _corrupt(self.name, "a text is not UTF-8")
        if any(word in text for word in _BUSY):
            return JournalError(
                f"journal {self.name} is locked by another program; wait until that program ends"
            )
        advice = "name a file that this user may open, in an existing folder"
        if _is_full(error):
            advice = "free some space or raise the limit, or name a file on another disk"
        return JournalError(f"journal {self.name}: {text}; {advice}")


def in_groups(changes: Iterable[Change]) -> Iterator[tuple[str, list[Sequence[Any]]]]:
    """Yield SQL statements, each with the rows for which it must be executed.

    Rows of one table are grouped, which is possible because the tables do not refer to each other.
    No row is moved across a statement such as a ``DELETE``.
    """
    groups: dict[str, list[Sequence[Any]]] = {}
    for change in changes:
        if isinstance(change, Statement):
            yield from groups.items()
            groups.clear()
            yield change.statement, [change.values]
        else:
            groups.setdefault(INSERTS[type(change)], []).append(change)
    yield from groups.items()


def check_version(name: str, version: int) -> None:
    """Raise `JournalError` if a journal has the tables of another version."""
    if version != VERSION:
        writer = "a newer agentrt" if version > VERSION else "another version of agentrt"
        raise JournalError(
            f"journal {name} was written by {writer} (format {version}, but this agentrt "
            f"reads format {VERSION}); install the agentrt that wrote it, or name another file"
        )


def _is_damaged(error: Exception) -> bool:
    """Return whether SQLite could not read the file because its content is damaged."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _is_full(error: Exception) -> bool:
    """Return whether a file could not be written because the disk, a quota or a limit on the size
    of files is exhausted. For the latter two, SQLite reports a failed write.
    """
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return getattr(error, "sqlite_errorcode", None) in (
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_SHMSIZE,
    )


def _corrupt(name: str, text: str) -> JournalError:
    return JournalError(
        f"journal {name} is damaged or cut off ({text}) and was not read; restore an undamaged "
        "copy, or name another file"
    )


def raw_rows(store: Store, program_id: str) -> tuple[list[StartRow], list[EndRow]]:
    """Return the starts and ends of all attempts at the nodes of a program, including the root.

    The times are times of the journal's clock. Raises `JournalError` if the journal cannot be read.
    """
    # Select all columns, because older journals do not have the last columns.
    starts, ends = (
        store.query(f"SELECT * FROM {table} WHERE program = ?", (program_id,))
        for table in ("agentrt_starts", "agentrt_ends")
    )
    return rows_of(store, StartRow, starts), rows_of(store, EndRow, ends)


Row = TypeVar("Row", bound=tuple[Any, ...])
_AS_JSON: Mapping[type[Any], Sequence[str]] = {
    RecordedProgram: ("input", "options"),
    StartRow: ("request",),
    EndRow: ("account",),
}
"""For each kind of row, the fields with JSON that no checksum protects. They may be empty."""
_FAR = 1e12
"""A time after the year 33,000, in seconds since 1970."""


def rows_of(store: Store, kind: type[Row], rows: Iterable[Sequence[Any]]) -> list[Row]:
    """Return the rows of a query as rows of ``kind``, a named tuple.

    Raises `JournalError` for a damaged row: a value of a wrong type, a time that is too far away,
    or JSON that cannot be read.
    """
    checks, as_json = _checks_of(kind), _AS_JSON.get(kind, ())
    for row in rows:
        for (name, types), value in zip(checks, row, strict=False):
            fault = None
            if not isinstance(value, types):
                fault = "has a wrong type"
            elif isinstance(value, float) and not abs(value) < _FAR:
                fault = f"is not a time: {value}"
            elif name in as_json and value:
                fault = _json_fault(str(value))
            if fault is not None:
                raise _corrupt(store.name, f"the field {name} of run {row[0]!r} {fault}")
    return [kind(*row) for row in rows]


@cache
def _checks_of(kind: type[Any]) -> list[tuple[str, tuple[type, ...]]]:
    """Return the name and the types of each field of a named tuple."""
    hints = get_type_hints(kind)
    types = {name: get_args(hint) or (hint,) for name, hint in hints.items()}
    return [(name, (*each, int) if float in each else each) for name, each in types.items()]


def _json_fault(text: str) -> str | None:
    try:
        json.loads(text)
    except ValueError as error:
        return f"is not JSON: {error}"
    except RecursionError:  # a deep value, which its reader reports
        pass
    return None


# -- the thread that writes ------------------------------------------------------------------------

Waiting = list[asyncio.Future[None]]


class WriterThread:
    """A thread that writes rows in order. All methods must be called on one event loop.

    The thread gets one batch at a time: all rows that were put while the previous batch was being
    written. ``batch`` is the number of the next batch. All code that waits for a batch continues in
    the same turn of the event loop. After a write has failed with ``error``, all later writes fail,
    too, so that a journal has no gaps.
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
        """Add rows to the next batch. They are written together, when `written` or `send` is
        called.
        """
        self._rows.extend(rows)

    async def written(self) -> None:
        """Wait until all rows that were put are on the disk. Raises `JournalWriteError` if they
        cannot be written.
        """
        if self.error is not None:
            raise self.error
        done = self._loop.create_future()
        self._waiting.append(done)
        if not self._busy:
            self._busy = True
            self._loop.call_soon(self.send)
        await done

    async def close(self) -> None:
        """Write the remaining rows, end the thread, and close the store. Idempotent."""
        self.send()
        self._batches.put(None)
        await asyncio.to_thread(self._thread.join)
        self._store.close()

    def send(self) -> None:
        """Pass all rows that wait to the thread that writes, and do not wait for the write."""
        rows, self._rows = self._rows, []
        waiting, self._waiting = self._waiting, []
        self.batch += 1
        self._batches.put((rows, waiting))

    def _wrote(self, waiting: Waiting, error: Exception | None) -> None:
        self.error = error
        for future in waiting:
            if future.done():  # the waiter was cancelled
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
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
    """Return the clock of a journal, which continues from the last saved reading."""
    return SteadyClock(machine, _last_reading(store))


def shift_of(store: Store) -> float:
    """Return the seconds by which the time of day is ahead of the times in a journal's rows."""
    last = _last_reading(store)
    return 0.0 if last is None else last.shift


def clock_statements(reading: ClockReading) -> tuple[Statement, Statement]:
    """Return the statements that save a reading in a journal."""
    return (
        Statement(_KEEP, ("clock", json.dumps(reading))),
        Statement(_KEEP, ("shift", repr(reading.shift))),
    )


def _last_reading(store: Store) -> ClockReading | None:
    rows = store.query("SELECT value FROM agentrt_journal WHERE key = 'clock'")
    if not rows:
        return None
    try:
        boot, *times = json.loads(rows[0][0])
        since_boot, now, shift = map(float, times)
    except (ValueError, TypeError) as error:
        raise _corrupt(store.name, f"the reading of its clock is {rows[0][0]!r:.80}") from error
    return ClockReading(boot, since_boot, now, shift)
