"""Files and batches in the PostgreSQL database of a server.

A content consists of parts: blocks of an uploaded file, or lines of a batch that were added in one
step. A part is added in one transaction, so that no line is ever incomplete.
"""

from __future__ import annotations

import errno
import io
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeVar

import psycopg
from starlette.responses import Response, StreamingResponse

from agentrt.batch.lines import LineWriter
from agentrt.errors import ConfigError
from agentrt.journal.postgres import PostgresConnection, first_line
from agentrt.serving.langgraph.database.connections import LOCK_WAIT_S, TIMEOUTS, Address

_TABLES = """
CREATE TABLE IF NOT EXISTS agentrt_batch_records (id text PRIMARY KEY, fields text NOT NULL);
CREATE TABLE IF NOT EXISTS agentrt_batch_contents (
    file_id text, part bigint, data bytea NOT NULL, PRIMARY KEY (file_id, part)
)
"""
_PART_BYTES = 1024 * 1024
"""Maximum number of bytes in a part of an uploaded file. A query reads parts until it has read at
least this many bytes, or `_READ_PARTS` parts.
"""
_READ_PARTS = 1000
_READ = """
SELECT part, data FROM (
    SELECT part, data, sum(octet_length(data)) OVER (ORDER BY part) - octet_length(data) AS before
    FROM (
        SELECT part, data FROM agentrt_batch_contents WHERE file_id = ? AND part > ?
        ORDER BY part LIMIT ?
    ) AS next
) AS sized WHERE before < ? ORDER BY part
"""
_ADD = "INSERT INTO agentrt_batch_contents VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_LOCK_KEY = 0x61677262
"""The key of the advisory lock on these tables, which no other lock may have."""
_LOCK_S = 0.1

T = TypeVar("T")


class PostgresAnswers(LineWriter):
    """An output or error file that is being written. After an error, it must be opened again."""

    def __init__(self, storage: PostgresStorage, file_id: str, part: int) -> None:
        super().__init__()
        self._storage, self._file_id, self._part = storage, file_id, part
        self._is_broken = False

    def append(self, data: bytes) -> None:
        if not data:
            return
        if self._is_broken:
            raise OSError(errno.EIO, "an earlier line could not be stored; open the file again")
        # The number of the part is fixed, so that a repetition after a lost connection adds nothing
        # if the part is already there.
        self._is_broken = True
        self._storage.execute(_ADD, self._file_id, self._part, data)
        self._is_broken = False
        self._part += 1


class PostgresContent:
    """The content of a file."""

    def __init__(self, storage: PostgresStorage, file_id: str) -> None:
        self._storage, self._file_id = storage, file_id

    def size(self) -> int:
        query = "SELECT count(*), coalesce(sum(octet_length(data)), 0)"
        query += " FROM agentrt_batch_contents WHERE file_id = ?"
        [(parts, size)] = self._storage.execute(query, self._file_id)
        if not parts:
            raise FileNotFoundError(errno.ENOENT, "no such content", self._file_id)
        return int(size)

    def _blocks(self) -> Iterator[bytes]:
        part = -1
        while parts := self._storage.execute(_READ, self._file_id, part, _READ_PARTS, _PART_BYTES):
            yield b"".join(data for _, data in parts)
            part = parts[-1][0]

    def lines(self) -> Iterator[bytes]:
        pieces: list[bytes] = []
        for block in self._blocks():
            head, end, tail = block.rpartition(b"\n")
            if end:
                yield from io.BytesIO(b"".join((*pieces, head, end)))
                pieces = []
            pieces.append(tail)
        if rest := b"".join(pieces):
            yield rest

    def store(self, source: BinaryIO) -> None:
        with self._storage.transaction() as execute:
            part, data = 0, source.read(_PART_BYTES)
            while data or not part:  # an empty file has one empty part
                execute(_ADD, self._file_id, part, data)
                part, data = part + 1, source.read(_PART_BYTES)

    def open_answers(self) -> PostgresAnswers:
        query = "SELECT coalesce(max(part), -1) + 1 FROM agentrt_batch_contents WHERE file_id = ?"
        [(part,)] = self._storage.execute(query, self._file_id)
        return PostgresAnswers(self._storage, self._file_id, part)

    def remove(self) -> None:
        self._storage.execute("DELETE FROM agentrt_batch_contents WHERE file_id = ?", self._file_id)

    def response(self) -> Response:
        headers = {"content-length": str(self.size())}
        return StreamingResponse(
            self._blocks(), media_type="application/octet-stream", headers=headers
        )


class _LockedConnection(PostgresConnection):
    """A connection that has the lock on the tables of files and batches. `connect` raises
    `BlockingIOError` if another server still has the lock after `LOCK_WAIT_S` seconds.
    """

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        is_new = self._connection is None or self._connection.closed
        connection = super().connect()
        end = time.monotonic() + LOCK_WAIT_S
        while is_new:
            row = connection.execute("SELECT pg_try_advisory_lock(%s)", [_LOCK_KEY]).fetchone()
            if row is not None and row[0]:
                break
            if time.monotonic() > end:
                self.close()
                raise BlockingIOError(errno.EAGAIN, "another server uses this database")
            time.sleep(_LOCK_S)
        return connection


class PostgresStorage:
    """The tables ``agentrt_batch_…`` of the database at an address. Only one thread at a time reads
    and writes these tables.

    Raises `ConfigError` if the database cannot be used, or if another server uses it.
    """

    def __init__(self, address: Address) -> None:
        self._address, self._name = address, str(address)
        self._connection = _LockedConnection(address.url, TIMEOUTS)
        self._lock = threading.RLock()
        self._is_closed = False
        try:
            self.execute(_TABLES)
        except OSError as error:
            self.close()
            raise ConfigError(
                f"--database {address}: this database cannot store files and batches: "
                f"{error.strerror}; correct this, or name another database"
            ) from error

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Execute an idempotent statement, which may be repeated after a failure, and return its
        rows.
        """
        return self._work(
            lambda: self._connection.again(lambda: self._connection.execute(statement, values))
        )

    def _work(self, work: Callable[[], T]) -> T:
        with self._lock:
            # The thread of a request that was cut off may come after the storage was closed. A new
            # connection would then stay open, and keep the lock.
            if self._is_closed:
                raise OSError(errno.EBADF, "the storage is closed", self._name)
            try:
                return work()
            except psycopg.Error as error:
                raise OSError(errno.EIO, first_line(error), self._name) from error

    @contextmanager
    def transaction(self) -> Iterator[Callable[..., Any]]:
        """Open a transaction, and yield a function that executes a statement in it."""
        with self._lock:
            self.execute("SELECT 1")  # opens a broken connection again
            try:
                with self._connection.connect().transaction():
                    yield lambda statement, *values: self._connection.execute(statement, values)
            except psycopg.Error as error:
                raise OSError(errno.EIO, first_line(error), self._name) from error

    def records(self, prefix: str) -> Iterator[tuple[str, str]]:
        query = "SELECT id, fields FROM agentrt_batch_records WHERE starts_with(id, ?)"
        for record_id, fields in self.execute(query, prefix):
            yield f"{self._name}, {record_id}", fields

    def put_record(self, tenant: str, record_id: str, text: str) -> None:
        statement = "INSERT INTO agentrt_batch_records VALUES (?, ?)"
        statement += " ON CONFLICT (id) DO UPDATE SET fields = excluded.fields"
        self.execute(statement, record_id, text)

    def remove_record(self, tenant: str, record_id: str) -> None:
        self.execute("DELETE FROM agentrt_batch_records WHERE id = ?", record_id)

    def content(self, tenant: str, file_id: str) -> PostgresContent:
        return PostgresContent(self, file_id)

    def remove_orphans(self, needed: Collection[tuple[str, str]]) -> None:
        ids = [file_id for _, file_id in needed]
        self.execute("DELETE FROM agentrt_batch_contents WHERE NOT file_id = ANY(?)", ids)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._connection.close()
