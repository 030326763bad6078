"""Large requests are read and rendered one at a time for each tenant.

Both take the event loop, which is everybody's, for some ten milliseconds each. Once a call is made
of it, or it is answered, the tenant's next one begins.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

LARGE = 256 * 1024
"""Bytes of a body."""


class LargeRequests:
    """Whose large request is read now."""

    def __init__(self) -> None:
        self._turns: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    @contextlib.asynccontextmanager
    async def turn(self, tenant: str, size: int) -> AsyncIterator[Callable[[], None]]:
        """Wait for the turn of a request of so many bytes. Call what is given when it is over; it
        is at the block's end at the latest.
        """
        if size <= LARGE:
            yield lambda: None
            return
        turns = self._turns.setdefault(tenant, asyncio.Lock())
        self._users[tenant] = self._users.get(tenant, 0) + 1
        is_held = False

        def over() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                turns.release()

        try:
            await turns.acquire()
            is_held = True
            yield over
        finally:
            over()
            self._users[tenant] -= 1
            if not self._users[tenant]:
                del self._users[tenant], self._turns[tenant]
