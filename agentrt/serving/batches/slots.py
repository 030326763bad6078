"""Limits the number of batch requests in flight, so that interactive calls go first.

The policies inside the engine treat batch calls and interactive calls alike. The limit is therefore
enforced here, before the engine: a request to the model begins only while the engine has a slot
that no other call uses. One request may always run, so that batches finish under any load.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter, deque

from agentrt.serving.batches.lines import ANSWER_ID_PREFIX
from agentrt.serving.server import Server

_DEFAULT_ENGINE_SLOTS = 16
"""The assumed number of calls that an engine runs at once, for engines that do not report this
number.
"""
_MAX_PROGRAMS = 256
"""Maximum number of programs of all batches that are live at once. The engine's memory decides
which of their calls run.
"""
_POLL_S = 0.2
"""Seconds until a waiting request checks again for a free slot. The end of a call that is not made
for a batch frees an engine slot, but does not notify this module.
"""


class Slots(ABC):
    """A limited number of requests in flight, shared by all batches of the server.

    `used` counts the used slots of each tenant. A released slot wakes all waiting requests, and
    each of them checks again whether it may begin.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.used: Counter[str] = Counter()
        self._waiting: deque[asyncio.Future[None]] = deque()

    @abstractmethod
    def has_free(self, tenant: str) -> bool:
        """Return whether a request of the tenant may begin now."""

    async def acquire(self, tenant: str) -> None:
        """Wait for a free slot and use it."""
        while not self.has_free(tenant):
            wakeup: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(wakeup)
            try:
                await asyncio.wait([wakeup], timeout=_POLL_S)
            finally:
                if not wakeup.done():
                    self._waiting.remove(wakeup)
        self.used[tenant] += 1

    def release(self, tenant: str) -> None:
        """Free a used slot of the tenant."""
        self.used -= Counter((tenant,))  # drops tenants at zero
        while self._waiting:
            self._waiting.popleft().set_result(None)


class Slot:
    """The slot of one request. The request releases its slot while the request waits for a retry,
    and then acquires the slot again.
    """

    def __init__(self, slots: Slots, tenant: str) -> None:
        self._slots, self._tenant = slots, tenant
        self._is_acquired = False

    async def acquire(self) -> None:
        """Wait for a free slot and use it."""
        await self._slots.acquire(self._tenant)
        self._is_acquired = True

    def release(self) -> None:
        """Free the slot. Idempotent."""
        if self._is_acquired:
            self._is_acquired = False
            self._slots.release(self._tenant)


class CallSlots(Slots):
    """Slots for model calls: the slots of the engines that other calls leave free.

    The batches of a tenant use at most half of its limit ``calls``, so that the other half is left
    for its interactive calls. If the limit is 1, batches may use the whole limit.
    """

    def has_free(self, tenant: str) -> bool:
        server = self.server
        info = server.runtime.executor.info
        # `used` also counts requests that are still being prepared and have no call yet, so the
        # number of other calls is not "all calls minus `used`". It is counted directly: the calls
        # of programs that do not have the name of a batch's answer.
        other_calls = sum(
            len(row.calls)
            for row in server.runtime.table
            if not (row.session or "").startswith(ANSWER_ID_PREFIX)
        )
        free = info.all_slots(_DEFAULT_ENGINE_SLOTS) - other_calls
        tenant_limit = max(1, server.tenants.limits(tenant).calls // 2)
        return self.used.total() < max(1, free) and self.used[tenant] < tenant_limit


class ProgramSlots(Slots):
    """Slots for runs of served programs. The batches of a tenant use at most half of its limit
    ``programs``. If the limit is 1, batches may use the whole limit.
    """

    def has_free(self, tenant: str) -> bool:
        tenant_limit = max(1, self.server.tenants.limits(tenant).programs // 2)
        return self.used.total() < _MAX_PROGRAMS and self.used[tenant] < tenant_limit
