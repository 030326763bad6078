"""Limits on what reading the database takes: of its time, and of its connections.

A tenant waits for its own reads before it waits for others': it has at most half of the
connections at once. What takes too long is broken off, in the database and in our function for
containment alike, and answered 503.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from weakref import WeakValueDictionary

from fastapi import HTTPException
from sqlalchemy.exc import OperationalError

from agentrt.errors import AgentrtError

READ_S = 5.0
"""So long may a client's read take, and so long does it wait for other reads of its tenant."""
_SILENCES = 4
"""Its share, its connection and its statement may each take so long."""
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


class Shares:
    """Who reads at once: each tenant with at most ``most`` connections."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tenants = WeakValueDictionary[str, asyncio.Semaphore]()

    @asynccontextmanager
    async def taken(self, tenant: str | None) -> AsyncIterator[None]:
        """A connection's share while the block runs. Raises 503 if none comes free in time."""
        if tenant is None:
            yield
            return
        share = self._tenants.setdefault(tenant, asyncio.Semaphore(self._most))
        try:
            async with asyncio.timeout(READ_S):
                await share.acquire()
        except TimeoutError:
            raise _busy(f"tenant {tenant!r} reads too much at once") from None
        try:
            yield
        finally:
            share.release()


@asynccontextmanager
async def in_time(tenant: str | None) -> AsyncIterator[None]:
    """Raise 503 when a tenant's read gets no answer at all: what breaks reads off is in the
    database, and may be out of reach.
    """
    try:
        async with asyncio.timeout(None if tenant is None else _SILENCES * READ_S) as time_:
            yield
    except TimeoutError:
        if not time_.expired():
            raise
        raise _busy("the database does not answer") from None


@contextmanager
def refused() -> Iterator[None]:
    """Turn what was broken off into 503. `outages` does so for an outage."""
    try:
        yield
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
