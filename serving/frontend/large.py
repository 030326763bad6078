"""Large requests are read and rendered one at a time for each tenant.

Both take the event loop, which is everybody's, for some ten milliseconds each. Once a call is made
of it, or it is answered, the tenant's next one begins.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from agentrt.serving.tenants.turns import TenantTurns

LARGE = 256 * 1024
"""Bytes of a body."""


class LargeRequests:
    """Whose large request is read now."""

    def __init__(self) -> None:
        self._turns = TenantTurns(1)

    @contextlib.asynccontextmanager
    async def turn(self, tenant: str, size: int) -> AsyncIterator[Callable[[], None]]:
        """Wait for the turn of a request of so many bytes. Call what is given when it is over; it
        is at the block's end at the latest.
        """
        if size <= LARGE:
            yield lambda: None
            return
        async with self._turns.turn(tenant) as over:
            yield over
