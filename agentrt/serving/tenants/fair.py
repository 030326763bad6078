"""Who goes next into the engine: fair shares between tenants, the program policy inside each.

Virtual token counters (VTC, Sheng et al., OSDI 2024), with weights: of the tenants that wait,
the one that was served least for its weight goes first. A tenant that was idle comes back with
the count of the least served of the others, so that nobody saves up service. Pure; time is the
caller's (seconds).
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from agentrt.serving.tenants.limits import Limits

BATCHES = 2
"""How many batches of calls are admitted: one that runs, and others to choose from."""
KEPT_OF = 8
"""One slot in so many is kept for tenants with no call inside."""
RECENT_S = 10.0
"""Seconds after its last call in which a tenant is expected to make another."""
STARVATION_S = 20.0
"""Seconds after which calls of its own tenant no longer overtake a waiting call."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A call that waits. ``rank`` orders those of one tenant, the least first; ``cost`` is what
    it is expected to use, in the units of `FairQueue.settle`.
    """

    number: int
    tenant: str
    rank: float
    cost: float
    since: float


@dataclass(slots=True)
class _Tenant:
    served: float
    """What its calls have used, divided by its weight."""
    reserved: float = 0.0
    """What its calls inside are expected to use. It counts where tenants are ordered, and not in
    the counter that others start from, since it is an estimate."""
    inside: int = 0
    called_at: float = 0.0
    waiting: OrderedDict[int, Ticket] = field(default_factory=OrderedDict)
    ranked: list[tuple[float, int]] = field(default_factory=list)

    @property
    def is_idle(self) -> bool:
        return not (self.inside or self.waiting)

    def next(self, now: float) -> Ticket:
        """The ticket to go first; there must be one."""
        oldest = next(iter(self.waiting.values()))
        if now - oldest.since >= STARVATION_S:
            return oldest
        while self.ranked[0][1] not in self.waiting:
            heapq.heappop(self.ranked)
        return self.waiting[self.ranked[0][1]]


class FairQueue:
    """A queue for ``slots`` calls inside; ``limits`` has each tenant's weight and concurrency.

    With ``slots`` None there is room for all. One slot in `KEPT_OF` is kept for tenants with no
    call inside, so that a new tenant never waits until calls of others end. A tenant with more
    calls inside than another that called lately has at most one batch, less the same share: the
    other's next call then runs at once. `push` queues a call, `pop` admits one, `settle` ends it;
    a call that gives up waiting leaves by `drop`.
    """

    def __init__(self, slots: int | None, limits: Callable[[str], Limits]) -> None:
        self.slots = slots
        self._limits = limits
        self._tenants: dict[str, _Tenant] = {}
        self._numbers = itertools.count()
        self._inside = 0
        self._floor = 0.0
        self._now = 0.0

    def push(self, tenant: str, rank: float, cost: float, now: float) -> Ticket:
        """A call of ``tenant`` wants in."""
        self._now = now
        one = self._tenants.get(tenant)
        if one is None:
            one = self._tenants[tenant] = _Tenant(self._least_counter())
        elif one.is_idle:
            one.served = max(one.served, self._least_counter())
        ticket = Ticket(next(self._numbers), tenant, rank, cost, now)
        one.called_at = now
        one.waiting[ticket.number] = ticket
        heapq.heappush(one.ranked, (rank, ticket.number))
        return ticket

    def pop(self, now: float) -> Ticket | None:
        """The ticket that goes in now, if there is room for any that waits."""
        self._now = now
        if self.slots is not None and self._inside >= self.slots:
            return None
        recent = filter(self._is_recent, self._tenants.values())
        least = min((one.inside for one in recent), default=0)
        ready = [name for name, one in self._tenants.items() if self._may_enter(name, one, least)]
        if not ready:
            return None
        name = min(ready, key=self._counter)
        one = self._tenants[name]
        ticket = one.next(now)
        self._forget(one, ticket)
        one.inside += 1
        self._inside += 1
        one.reserved += ticket.cost
        return ticket

    def drop(self, ticket: Ticket) -> None:
        """A call that waited gave up."""
        one = self._tenants[ticket.tenant]
        self._forget(one, ticket)
        self._forget_idle()

    def settle(self, ticket: Ticket, used: float) -> None:
        """A call that was inside is over, and has used so much."""
        one = self._tenants[ticket.tenant]
        one.inside -= 1
        self._inside -= 1
        one.reserved -= ticket.cost
        one.served += used / self._limits(ticket.tenant).weight
        self._forget_idle()

    def counts(self) -> dict[str, dict[str, int]]:
        """How many calls of each tenant wait, and are inside."""
        return {
            name: {"waiting": len(one.waiting), "inside": one.inside}
            for name, one in self._tenants.items()
            if not one.is_idle
        }

    def __len__(self) -> int:
        return len(self._tenants)

    def _may_enter(self, name: str, one: _Tenant, least: int) -> bool:
        """Whether a tenant's next call may go in. ``least`` is the smallest number of calls inside
        of any tenant that called lately.
        """
        most = self._limits(name).concurrency
        if not one.waiting or (most is not None and one.inside >= most):
            return False
        if self.slots is None or not one.inside:
            return True
        return self._inside < _but_kept(self.slots // BATCHES if one.inside > least else self.slots)

    def _is_recent(self, one: _Tenant) -> bool:
        """Whether a tenant is expected to call. Where there is room for all, nobody asks."""
        return not one.is_idle or (self.slots is not None and self._now - one.called_at < RECENT_S)

    def _counter(self, name: str) -> tuple[float, str]:
        """The virtual counter of a tenant, by which the least goes first."""
        one = self._tenants[name]
        return one.served + one.reserved / self._limits(name).weight, name

    def _forget(self, one: _Tenant, ticket: Ticket) -> None:
        del one.waiting[ticket.number]
        # Tickets that did not leave from the top stay in the heap: bound how many.
        if len(one.ranked) > 2 * len(one.waiting) + 16:
            one.ranked = [(t.rank, t.number) for t in one.waiting.values()]
            heapq.heapify(one.ranked)

    def _least_counter(self) -> float:
        """The counter of the least served busy tenant; it never falls."""
        busy = [one.served for one in self._tenants.values() if not one.is_idle]
        self._floor = max(self._floor, min(busy, default=self._floor))
        return self._floor

    def _forget_idle(self) -> None:
        """Forget tenants that are idle for some time, and whose counter is no higher than a new
        tenant's.
        """
        floor = self._least_counter()
        every = self._tenants.items()
        for name in [n for n, t in every if t.served <= floor and not self._is_recent(t)]:
            del self._tenants[name]


def _but_kept(places: int) -> int:
    """How many of these slots are for every tenant: at least one."""
    return max(1, places - -(-places // KEPT_OF))
