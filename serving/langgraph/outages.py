"""What is wrong when the database does not answer, and whether its disk has room left."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import HTTPException, Request

RESERVE_BYTES = 64 * 2**20
"""What stays free on the database's disk, for the ends of the runs that have begun."""
RESERVE_SHARE = 0.02
"""On a small disk, this part of it."""
_AWAY_STATUS, _FULL_STATUS = 503, 507
_RETRY_S = "5"
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
    retry = {"Retry-After": _RETRY_S}
    return HTTPException(_AWAY_STATUS, f"the database does not answer: {first_line(error)}", retry)


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

    def guard(self) -> Callable[[Request], Awaitable[None]]:
        """A dependency of routes, which raises 507 for what would take room that is not there."""

        async def check(request: Request) -> None:
            last = request.url.path.rpartition("/")[2]
            if request.method in _WRITES and last not in (*_READING, *_ENDING):
                why = self.shortage()
                if why is not None:
                    raise HTTPException(_FULL_STATUS, f"{why}; free some space, and try again")

        return check
