"""Whose program computes next: a tenant's programs share a small part of the machine.

Priorities of the operating system do not do it: on some machines they change nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
Apart = Callable[[Callable[[], T]], Awaitable[T]]
"""Calls something in a thread."""

_SHARE = 0.05
"""Of each core, for the programs of one tenant."""
_BURST_S = 1.0


class ComputeShare:
    """What a tenant's programs may compute: ``rate`` seconds a second, and ``burst_s`` at once.

    It may be overdrawn by one turn, and is then owed.
    """

    def __init__(self, rate: float, burst_s: float, now: float) -> None:
        self._rate, self._burst_s = rate, burst_s
        self._left_s, self._at = burst_s, now

    def wait_s(self, now: float) -> float:
        """Seconds until the next turn may begin."""
        self._fill(now)
        return max(0.0, -self._left_s / self._rate)

    def spend(self, seconds: float, now: float) -> None:
        """A turn has taken so long."""
        self._fill(now)
        self._left_s -= seconds

    def _fill(self, now: float) -> None:
        gained = max(0.0, now - self._at) * self._rate
        self._left_s, self._at = min(self._burst_s, self._left_s + gained), now


class TenantTurns:
    """One tenant's turns: one after the other, within its share."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self.share = ComputeShare(_SHARE * (os.cpu_count() or 1), _BURST_S, clock())

    async def take(self, apart: Apart[T], function: Callable[[], T]) -> T:
        """Call ``function`` by ``apart`` when it is this tenant's turn."""
        async with self._lock:
            await asyncio.sleep(self.share.wait_s(self._clock()))
            took = 0.0

            def timed() -> T:
                nonlocal took
                began = self._clock()
                try:
                    return function()
                finally:
                    took = self._clock() - began

            try:
                return await apart(timed)  # what the event loop is late by is nobody's computing
            finally:
                self.share.spend(took, self._clock())
