"""Limits on the time that reading the database takes: what takes too long is broken off, in the
database and in our function for containment alike, and answered 503.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from fastapi import HTTPException
from sqlalchemy.exc import OperationalError

from agentrt.errors import AgentrtError

READ_S = 5.0
"""So long may a client's read take."""
_SILENCES = 4
"""Its connection, its transaction and its statement may each take so long."""
_RETRY_S = "2"
_CANCELED = "57014"
"""PostgreSQL's code for a statement over its ``statement_timeout``."""

READER: ContextVar[str | None] = ContextVar("agentrt_reader", default=None)
"""The tenant that reads; None for the server itself."""


class TooSlowError(AgentrtError):
    """A read took too long."""


@dataclass(slots=True)
class Deadline:
    """When the reads of an SQLite connection are broken off: a progress handler that is called
    every now and then, and a function's `check`. ``clock`` gives seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _at: float = math.inf

    def start(self, seconds: float) -> None:
        """A transaction begins, which may take so long."""
        self._at = self.clock() + seconds

    def __call__(self) -> bool:
        """Whether the time is over, by which SQLite breaks off what it does."""
        return self.clock() > self._at

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
    return HTTPException(503, f"{why}; try again later", {"Retry-After": _RETRY_S})
