"""What is wrong when the database does not answer, or not in time, and whether its disk has room
left.
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

from fastapi import HTTPException, Request
from sqlalchemy.exc import OperationalError

from agentrt.errors import AgentrtError
from agentrt.serving.langgraph.responses import later

RESERVE_BYTES = 64 * 2**20
"""What stays free on the database's disk, for the ends of the runs that have begun."""
RESERVE_SHARE = 0.02
"""On a small disk, this part of it."""
_AWAY_STATUS, _FULL_STATUS = 503, 507
_FULL = ("disk is full", "No space left", "disk I/O error")
_READ_ONLY = "25006"
"""PostgreSQL's code for a write to a standby, or to a database that was set so."""
_WRITES = ("POST", "PUT", "PATCH")
_READING = ("search", "count", "history", "namespaces", "checkpoint", "versions")
_ENDING = ("cancel", "prune")


def is_outage(error: BaseException) -> bool:
    """Whether the database, and nothing that was asked of it, is at fault: it is locked or full,
    cannot be reached, takes no writes, or gives no connection. Each driver has its own classes, of
    these names.
    """
    if isinstance(error, HTTPException):  # it was made into an answer already
        return error.status_code in (_FULL_STATUS, _AWAY_STATUS)
    names = {kind.__name__ for kind in type(error).__mro__}
    if getattr(getattr(error, "orig", error), "sqlstate", None) == _READ_ONLY:
        return True
    return bool(names & {"OperationalError", "InterfaceError", "TimeoutError", "OSError"})


def refusal(error: Exception) -> HTTPException | None:
    """The answer to a client in an outage of the database; None for any other error."""
    if isinstance(error, OSError | HTTPException) or not is_outage(error):
        return None
    if any(words in str(error) for words in _FULL):
        return HTTPException(
            _FULL_STATUS, "the database's disk is full: free some space, and try again"
        )
    return later(_AWAY_STATUS, f"the database does not answer: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """The driver's own words."""
    cause = getattr(error, "orig", None) or error
    return str(cause).strip().partition("\n")[0]


class DiskRoom:
    """The disk of the SQLite ``file``; there is none to look at for PostgreSQL."""

    def __init__(self, file: Path | None) -> None:
        self._folder = None if file is None else file.absolute().parent

    def shortage(self) -> str | None:
        """What is wrong where the disk is nearly full."""
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

    async def guard(self, request: Request) -> None:
        """A dependency of routes, which raises 507 for what would take room that is not there."""
        last = request.url.path.rpartition("/")[2]
        if request.method in _WRITES and last not in (*_READING, *_ENDING):
            why = self.shortage()
            if why is not None:
                raise HTTPException(_FULL_STATUS, f"{why}; free some space, and try again")


# -- reads that take too long are broken off -----------------------------------------------


READ_S = 5.0
"""So long may a client's read take."""
_SILENCES = 4
"""Its connection, its transaction and its statement may each take so long."""
_CANCELED = "57014"
"""PostgreSQL's code for a statement over its ``statement_timeout``."""

READER: ContextVar[str | None] = ContextVar("agentrt_reader", default=None)
"""The tenant that reads; None for the server itself."""


class TooSlowError(AgentrtError):
    """A read took too long."""


@dataclass(slots=True)
class Deadline:
    """When the reads of an SQLite connection are broken off: a progress handler that is called
    every now and then, and a function's `check`.
    """

    _at: float = math.inf

    def start(self, seconds: float) -> None:
        """A transaction begins, which may take so long."""
        self._at = time.monotonic() + seconds

    def __call__(self) -> bool:
        """Whether the time is over, by which SQLite breaks off what it does."""
        return time.monotonic() > self._at

    def check(self) -> None:
        """Raise `TooSlowError` when the time is over."""
        if self():
            raise TooSlowError("the time is over")


@asynccontextmanager
async def limited() -> AsyncIterator[None]:
    """Raise 503 where a client's read was broken off, and where it gets no answer at all: what
    breaks reads off is in the database, and may be out of reach. `outages` knows outages.
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
        raise _busy(
            f"the database needs more than {READ_S:g} s for this; ask for less, or by another field"
        ) from error


def _is_late(error: OperationalError) -> bool:
    broken_off = ("interrupted", "user-defined function raised exception")
    return getattr(error.orig, "sqlstate", None) == _CANCELED or str(error.orig) in broken_off


def _busy(why: str) -> HTTPException:
    return later(_AWAY_STATUS, f"{why}; try again later")
