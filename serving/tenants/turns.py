"""Turns by tenant: of each tenant, so many at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from weakref import WeakValueDictionary


class TenantTurns:
    """At most ``at_once`` turns of each tenant; a tenant without one is forgotten."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._tenants: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[Callable[[], None]]:
        """Wait for a turn of the tenant's. Call what is given when it is over; it is at the
        block's end at the latest.
        """
        turns = self._tenants.get(tenant)
        if turns is None:
            turns = self._tenants[tenant] = asyncio.Semaphore(self._at_once)
        await turns.acquire()
        is_held = True

        def over() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                turns.release()

        try:
            yield over
        finally:
            over()
