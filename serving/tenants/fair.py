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

KEPT_OF = 8
"""One place in so many is kept for tenants with no call inside."""
STARVATION_S = 20.0
"""A call that has waited so long is not overtaken by calls of its own tenant any more."""


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
    """What its calls have used, for its weight."""
    reserved: float = 0.0
    """What its calls inside are expected to use. It orders tenants, but does not raise the count
    that others start from: it may not come true."""
    inside: int = 0
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
    """Tickets in front of ``slots`` places; ``limits`` says each tenant's weight and concurrency.

    ``slots`` None is room for all. The last of them, one in `KEPT_OF`, are kept for tenants with
    no call inside, so that none has to wait until calls of others end. Take a ticket with `push`,
    let in with `pop`, give back with `settle`; one that gives up waiting leaves by `drop`.
    """

    def __init__(self, slots: int | None, limits: Callable[[str], Limits]) -> None:
        self.slots = slots
        self._limits = limits
        self._tenants: dict[str, _Tenant] = {}
        self._numbers = itertools.count()
        self._inside = 0
        self._floor = 0.0

    def push(self, tenant: str, rank: float, cost: float, now: float) -> Ticket:
        """A call of ``tenant`` wants in."""
        one = self._tenants.get(tenant)
        if one is None:
            one = self._tenants[tenant] = _Tenant(self._least_counter())
        elif one.is_idle:
            one.served = max(one.served, self._least_counter())
        ticket = Ticket(next(self._numbers), tenant, rank, cost, now)
        one.waiting[ticket.number] = ticket
        heapq.heappush(one.ranked, (rank, ticket.number))
        return ticket

    def pop(self, now: float) -> Ticket | None:
        """The ticket that goes in now, if there is room for any that waits."""
        room = self._room()
        if room is not None and room <= 0:
            return None
        ready = [name for name, one in self._tenants.items() if self._may_enter(name, one, room)]
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

    def _room(self) -> int | None:
        """The places that are free; None for any number."""
        return None if self.slots is None else self.slots - self._inside

    def _may_enter(self, name: str, one: _Tenant, room: int | None) -> bool:
        most = self._limits(name).concurrency
        if not one.waiting or (most is not None and one.inside >= most):
            return False
        return room is None or not one.inside or room > self._kept

    @property
    def _kept(self) -> int:
        """How many places are kept; a queue of one place keeps none."""
        return 0 if not self.slots else min(self.slots - 1, -(-self.slots // KEPT_OF))

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
        """Forget idle tenants whose counter is no higher than a new tenant's."""
        floor = self._least_counter()
        for name in [n for n, t in self._tenants.items() if t.is_idle and t.served <= floor]:
            del self._tenants[name]
