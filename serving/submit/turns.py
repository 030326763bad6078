"""Whose program computes next: a tenant's programs share a small part of the machine.

Priorities of the operating system do not do it: on some machines they change nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agentrt.serving.tenants.limits import Bucket

T = TypeVar("T")
Apart = Callable[[Callable[[], T]], Awaitable[T]]
"""Calls something in a thread."""

_SHARE = 0.05
"""Of each core, for the programs of one tenant."""
_BURST_S = 1.0


class TenantTurns:
    """One tenant's turns: one after the other, within its share, which one may overdraw."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self.share = Bucket(_BURST_S, _SHARE * (os.cpu_count() or 1), clock())

    async def take(self, apart: Apart[T], function: Callable[[], T]) -> T:
        """Call ``function`` by ``apart`` when it is this tenant's turn."""
        async with self._lock:
            await asyncio.sleep(self.share.wait_s(0.0, self._clock()))
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
                self.share.take(took, self._clock())
