"""A journal in PostgreSQL, in the same database as the other tables of a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import psycopg

from agentrt.errors import JournalError, JournalWriteError
from agentrt.journal.schema import ADDED, TABLES, VERSION, VIEW, Change
from agentrt.journal.store import Store, check_version, in_groups

T = TypeVar("T")
_TRIES = 6
"""Maximum number of attempts at a query or a write while the database restarts."""
_FIRST_REST_S = 0.2
"""Pause before the second attempt, in seconds. It is doubled before each further attempt."""


class PostgresConnection:
    """A connection to the database at ``url``. A broken connection is opened again when it is
    needed. It may be used in one thread at a time. ``timeouts`` are options of libpq.
    """

    def __init__(self, url: str, timeouts: Mapping[str, Any]) -> None:
        self._url, self._timeouts = url, timeouts
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Return the open connection. Raises `psycopg.Error` if it cannot be opened."""
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._url, autocommit=True, **self._timeouts)
        return self._connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Execute a statement, and return its rows. Raises `psycopg.Error` if this fails."""
        made = self.connect().execute(statement.replace("?", "%s").encode(), list(values))
        return [] if made.description is None else made.fetchall()

    def again(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``. If ``work`` raises `psycopg.OperationalError`, for example
        because the database restarts, call it again, at most `_TRIES` times in all. ``work`` may
        have succeeded although it raised an error, so a second call must change nothing.
        """
        for rest in range(_TRIES - 1):
            try:
                return work()
            except psycopg.OperationalError:
                self.close()
                time.sleep(_FIRST_REST_S * 2**rest)
        return work()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class PostgresStore(Store):
    """A journal in the tables named ``agentrt_…`` of the database at ``url``. ``name`` is the URL
    without its password. With ``makes``, missing tables are created.

    A broken connection is opened again. If a write had succeeded before the connection broke,
    repeating it changes nothing. Reads have a connection of their own: on the connection of the
    writes, they would be part of the transaction of another thread, see its rows too early, and end
    it if they fail.
    """

    def __init__(
        self, url: str, name: str, timeouts: Mapping[str, Any], *, makes: bool = True
    ) -> None:
        self.name = name
        self._connection = PostgresConnection(url, timeouts)
        self._reads = PostgresConnection(url, timeouts)
        self._reading = threading.Lock()
        try:
            with self._connection.connect().transaction():
                if makes:
                    self._make()
                self._check()
        except psycopg.errors.UndefinedTable as error:
            self.close()
            raise JournalError(
                f"database {name} has no journal; name the --database of a server that records its "
                "programs there, or the file of a journal"
            ) from error
        except psycopg.Error as error:
            self.close()
            is_unreachable = isinstance(error, psycopg.OperationalError)
            advice = "; check the address and the user, and that PostgreSQL runs there"
            raise JournalError(
                f"journal {name}: {first_line(error)}{advice if is_unreachable else ''}"
            ) from error
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        for statement in TABLES:
            self._connection.execute(statement)
        for table, columns in ADDED.items():
            for column, kind in columns.items():
                self._connection.execute(
                    f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column} {kind}"
                )
        self._connection.execute(VIEW.replace("CREATE VIEW", "CREATE OR REPLACE VIEW"))
        self._connection.execute(
            "INSERT INTO agentrt_journal VALUES ('version', ?) ON CONFLICT DO NOTHING", [VERSION]
        )

    def _check(self) -> None:
        rows = self._connection.execute("SELECT value FROM agentrt_journal WHERE key = 'version'")
        check_version(self.name, int(rows[0][0]))

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            with self._reading:
                return self._reads.again(lambda: self._reads.execute(statement, values))
        except psycopg.Error as error:
            raise JournalError(f"journal {self.name}: {first_line(error)}") from error

    def write(self, changes: Iterable[Change]) -> None:
        rows = list(changes)
        try:
            self._connection.again(lambda: self._write(rows))
        except psycopg.Error as error:
            raise JournalWriteError(
                f"journal {self.name}: {first_line(error)}; all earlier records are safe, and the "
                "next server resumes from them"
            ) from error

    def _write(self, changes: Sequence[Change]) -> None:
        with self._connection.connect().transaction():
            for statement, rows in in_groups(changes):
                for row in rows:
                    self._connection.execute(statement, row)

    def close(self) -> None:
        self._connection.close()
        with self._reading:
            self._reads.close()


def first_line(error: psycopg.Error) -> str:
    """Return the first line of an error's message."""
    return str(error).strip().partition("\n")[0]
