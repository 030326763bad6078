"""Bounds how many requests of batches are under way, so that interactive calls go first.

The policies inside the engine know no urgency, so the bound is kept here: a request of a batch
begins while the engine has a slot that no other call uses. One may always run, so that batches end.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter, deque

from agentrt.serving.batches.lines import ANSWER
from agentrt.serving.server import Server

_SLOTS = 16
"""Calls that an engine which does not say takes at once."""
_PROGRAMS = 256
"""Programs of batches that are live at once; the engine decides by its memory whose calls run."""
_LOOK_S = 0.2
"""Seconds between two looks at calls that are not a batch's, whose ends nobody tells of."""


class Places(ABC):
    """Places for requests under way, which all batches share. When a place comes free, those that
    wait look again one after the other.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.inside: Counter[str] = Counter()
        self._waiting: deque[asyncio.Future[None]] = deque()

    @abstractmethod
    def has_room(self, tenant: str) -> bool:
        """Return whether a request of the tenant may begin now."""

    async def take(self, tenant: str) -> None:
        """Wait for a place and take it."""
        while not self.has_room(tenant):
            free: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(free)
            try:
                await asyncio.wait([free], timeout=_LOOK_S)
            finally:
                if not free.done():
                    self._waiting.remove(free)
        self.inside[tenant] += 1

    def release(self, tenant: str) -> None:
        """Give a place back."""
        self.inside[tenant] -= 1
        while self._waiting:
            self._waiting.popleft().set_result(None)


class Seat:
    """A place of one request, which may be taken and released again and again."""

    def __init__(self, places: Places, tenant: str) -> None:
        self._places, self._tenant = places, tenant
        self._is_taken = False

    async def take(self) -> None:
        """Wait for a place and take it."""
        await self._places.take(self._tenant)
        self._is_taken = True

    def release(self) -> None:
        """Give the place back. Idempotent."""
        if self._is_taken:
            self._is_taken = False
            self._places.release(self._tenant)


class CallPlaces(Places):
    """Places for requests of the model: the slots of the engines that other calls leave free.

    A tenant's batches have at most half as many requests as it may have calls under way, and leave
    the rest to its interactive requests.
    """

    def has_room(self, tenant: str) -> bool:
        server = self.server
        info = server.runtime.executor.info
        # A request of a batch that is still prepared has no call yet, so its calls cannot be
        # subtracted from those of all: they are told apart by their programs' names.
        others = sum(
            len(row.calls)
            for row in server.runtime.table
            if not (row.session or "").startswith(ANSWER)
        )
        room = (info.slots or _SLOTS) * info.engines - others
        most = max(1, server.tenants.limits(tenant).calls // 2)
        return self.inside.total() < max(1, room) and self.inside[tenant] < most


class ProgramPlaces(Places):
    """Places for runs of served programs. A tenant's batches have at most half of its live runs."""

    def has_room(self, tenant: str) -> bool:
        most = max(1, self.server.tenants.limits(tenant).programs // 2)
        return self.inside.total() < _PROGRAMS and self.inside[tenant] < most
