"""Outages of the database: which errors count as outages, and how they are answered.

This module also checks the free space on the database's disk, and limits the time of reads.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from fastapi import HTTPException
from sqlalchemy.exc import OperationalError

from agentrt.errors import AgentrtError
from agentrt.serving.langgraph.responses import later

RESERVE_BYTES = 64 * 2**20
"""Bytes of the database's disk that stay free, so that runs that have begun can store their ends.
"""
RESERVE_SHARE = 0.02
"""The share of a small disk that stays free, in place of `RESERVE_BYTES`."""
_AWAY_STATUS, _FULL_STATUS = 503, 507
_FULL = ("disk is full", "No space left")
_IO_ERROR = "disk I/O error"
"""The words of SQLite's error for a disk that is broken, or full while SQLite cannot tell so."""
_READ_ONLY = "25006"
"""PostgreSQL's error code for a write to a standby, or to a database that is set to read-only."""


def is_outage(error: BaseException) -> bool:
    """Return whether the database is at fault, and not the statement: the database is locked, full,
    unreachable or read-only, or has no free connection. The drivers have different error classes
    with the same names, so the names are compared.
    """
    if isinstance(error, HTTPException):  # the error has been turned into a response already
        return error.status_code in (_FULL_STATUS, _AWAY_STATUS)
    names = {kind.__name__ for kind in type(error).__mro__}
    if getattr(getattr(error, "orig", error), "sqlstate", None) == _READ_ONLY:
        return True
    return bool(names & {"OperationalError", "InterfaceError", "TimeoutError", "OSError"})


def refusal(error: Exception) -> HTTPException | None:
    """Return the response to a client for an ``error`` of a database that has an outage. Return
    None for any other error, and for an `OSError` or `HTTPException`.
    """
    if isinstance(error, OSError | HTTPException) or not is_outage(error):
        return None
    if any(words in str(error) for words in _FULL):
        return HTTPException(
            _FULL_STATUS, "the database's disk is full; free some space, and try again"
        )
    if _IO_ERROR in str(error):
        return HTTPException(
            _FULL_STATUS,
            f"the database's disk is full or has failed ({_IO_ERROR}); free some space or repair "
            "the disk, and try again",
        )
    return _busy(f"the database cannot be used now: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """Return the first line of the driver's own error message."""
    cause = getattr(error, "orig", None) or error
    return str(cause).strip().partition("\n")[0]


class DiskRoom:
    """The free space on the disk of the SQLite database ``file``. ``file`` is None for PostgreSQL,
    whose disk is not checked.
    """

    def __init__(self, file: Path | None) -> None:
        self._folder = None if file is None else file.absolute().parent

    def shortage(self) -> str | None:
        """Return a sentence that says that the disk is nearly full, or None."""
        if self._folder is None:
            return None
        disk = shutil.disk_usage(self._folder)
        reserve = min(RESERVE_BYTES, int(disk.total * RESERVE_SHARE))
        if disk.free >= reserve:
            return None
        return (
            f"the database's disk is nearly full: {disk.free >> 20} MiB are free at "
            f"{self._folder}, and {reserve >> 20} MiB are kept for runs that have begun"
        )

    async def check(self) -> None:
        """Raise 507 if the disk is nearly full. Routes that write have this method as a
        dependency, which is async, because FastAPI would run a plain function in another thread.
        """
        if (why := self.shortage()) is not None:
            raise HTTPException(_FULL_STATUS, f"{why}; free some space, and try again")


# -- the time limit for reads --------------------------------------------------------------


READ_S = 5.0
"""Seconds that a client's read may take."""
_SILENCES = 4
"""How many times `READ_S` to wait for a database that does not answer at all: the connection may
take two times `READ_S`, and the transaction and the statement may each take `READ_S`.
"""
_CANCELED = "57014"
"""PostgreSQL's error code for a statement that exceeded its ``statement_timeout``."""

READER: ContextVar[str | None] = ContextVar("agentrt_reader", default=None)
"""The tenant for which the current task reads; None means the server itself, whose reads have no
time limit.
"""


class TooSlowError(AgentrtError):
    """A read took too long."""


@dataclass(slots=True)
class Deadline:
    """The deadline of an SQLite connection's reads.

    It is the connection's progress handler, which SQLite calls regularly while a statement runs.
    Our SQL functions call `check`.
    """

    _at: float = math.inf

    def start(self, seconds: float) -> None:
        """Set the deadline ``seconds`` from now, at the start of a transaction."""
        self._at = time.monotonic() + seconds

    def __call__(self) -> bool:
        """Return whether the deadline has passed. SQLite then interrupts the statement."""
        return time.monotonic() > self._at

    def check(self) -> None:
        """Raise `TooSlowError` if the deadline has passed."""
        if self():
            raise TooSlowError("the read took too long")


@asynccontextmanager
async def limited() -> AsyncIterator[None]:
    """Raise 503 if a client's read in the block was interrupted by the time limit, or if the
    database does not answer the client's read at all. The database enforces the time limit, so this
    function needs a limit of its own for a database that is unreachable.
    """
    most_s = None if READER.get() is None else _SILENCES * READ_S
    try:
        async with asyncio.timeout(most_s) as bound:
            yield
    except TimeoutError:
        if not bound.expired():
            raise
        raise _busy("the database does not answer") from None
    except OperationalError as error:
        if not _is_late(error):
            raise
        raise later(
            _AWAY_STATUS,
            f"the database needs more than {READ_S:g} s for this request; request less, filter by "
            "another field, or try again later",
        ) from error


def _is_late(error: OperationalError) -> bool:
    interrupted = ("interrupted", "user-defined function raised exception")
    return getattr(error.orig, "sqlstate", None) == _CANCELED or str(error.orig) in interrupted


def _busy(why: str) -> HTTPException:
    return later(_AWAY_STATUS, f"{why}; try again later")
