"""The order in which calls are dispatched: fair shares between tenants, and the scheduler's policy
among the calls of one tenant.

This is the algorithm of virtual token counters (VTC, Sheng et al., OSDI 2024) with weights. The
next call comes from the waiting tenant that was served least in relation to its weight. When a
tenant becomes active again, its counter is raised to the counter of the least served active tenant,
so that idle time does not earn service. The code reads no clock; the caller passes the time
(seconds).
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from agentrt.serving.tenants.limits import Limits

BATCHES = 2
"""Number of batches of calls that are dispatched: a running batch, and calls to choose from."""
KEPT_OF = 8
"""Every eighth slot is reserved for tenants that have no dispatched call."""
RECENT_S = 10.0
"""Seconds after its last call for which a tenant is expected to make another call."""
STARVATION_S = 20.0
"""Seconds of waiting after which a call is no longer overtaken by calls of the same tenant."""
MOST_IDLE = 1024
"""Maximum number of idle tenants whose service is remembered. On a server without keys, clients may
invent any number of names.
"""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A call in the queue.

    The calls of one tenant are ordered by ``rank``, lowest first, but a call that has waited for
    `STARVATION_S` is next. ``cost`` is the expected use, in the units of `FairQueue.settle`: prompt
    tokens that are not cached, and weighted output tokens. ``since`` is the time at which the call
    was queued.
    """

    number: int
    tenant: str
    rank: float
    cost: float
    since: float


@dataclass(slots=True)
class _TenantQueue:
    served: float
    """The use of the tenant's ended calls, divided by the tenant's weight."""
    reserved: float = 0.0
    """The expected use of the tenant's dispatched calls. This use counts in the order of tenants,
    but not in the counter from which other tenants start, because it is an estimate.
    """
    inside: int = 0
    called_at: float = 0.0
    waiting: OrderedDict[int, Ticket] = field(default_factory=OrderedDict)
    ranked: list[tuple[float, int]] = field(default_factory=list)

    @property
    def is_idle(self) -> bool:
        return not (self.inside or self.waiting)

    def next(self, now: float) -> Ticket:
        """Return the tenant's next ticket; at least one ticket must be waiting."""
        oldest = next(iter(self.waiting.values()))
        if now - oldest.since >= STARVATION_S:
            return oldest
        while self.ranked[0][1] not in self.waiting:
            heapq.heappop(self.ranked)
        return self.waiting[self.ranked[0][1]]


class FairQueue:
    """A queue of calls that dispatches at most ``slots`` calls at a time (None: all calls).
    ``slots`` is `BATCHES` times the number of batch slots.

    ``limits`` returns a tenant's weight and concurrency. Some slots (one in `KEPT_OF`) are reserved
    for tenants without a dispatched call, so that a new tenant need not wait until calls of other
    tenants end. While a tenant has more dispatched calls than another recently active tenant, the
    next call of the first tenant is dispatched only while the number of all dispatched calls is
    below the number of batch slots, without one slot in `KEPT_OF`. So the other tenant's next call
    can run at once.

    `push` queues a call, `pop` dispatches a call, `settle` ends a dispatched call, and `drop`
    removes a call that was cancelled while it waited.
    """

    def __init__(self, slots: int | None, limits: Callable[[str], Limits]) -> None:
        self.slots = slots
        self._limits = limits
        self._tenants: dict[str, _TenantQueue] = {}
        self._numbers = itertools.count()
        self._inside = 0
        self._floor = 0.0
        self._now = 0.0

    def push(self, tenant: str, rank: float, cost: float, now: float) -> Ticket:
        """Queue a call of ``tenant``, and return its ticket."""
        self._now = now
        state = self._tenants.get(tenant)
        if state is None:
            state = self._tenants[tenant] = _TenantQueue(self._least_counter())
        elif state.is_idle:
            state.served = max(state.served, self._least_counter())
        ticket = Ticket(next(self._numbers), tenant, rank, cost, now)
        state.called_at = now
        state.waiting[ticket.number] = ticket
        heapq.heappush(state.ranked, (rank, ticket.number))
        return ticket

    def pop(self, now: float) -> Ticket | None:
        """Dispatch the next call and return its ticket; None if no call may be dispatched."""
        self._now = now
        if self.slots is not None and self._inside >= self.slots:
            return None
        recent = filter(self._is_recent, self._tenants.values())
        least = min((state.inside for state in recent), default=0)
        ready = [
            name for name, state in self._tenants.items() if self._may_dispatch(name, state, least)
        ]
        if not ready:
            return None
        name = min(ready, key=self._counter)
        state = self._tenants[name]
        ticket = state.next(now)
        self._forget(state, ticket)
        state.inside += 1
        self._inside += 1
        state.reserved += ticket.cost
        return ticket

    def drop(self, ticket: Ticket) -> None:
        """Remove a waiting call that was cancelled."""
        state = self._tenants[ticket.tenant]
        self._forget(state, ticket)
        self._forget_idle()

    def settle(self, ticket: Ticket, used: float) -> None:
        """End a dispatched call.

        ``used`` is its actual use: prompt tokens that were not cached, plus weighted output tokens.
        """
        state = self._tenants[ticket.tenant]
        state.inside -= 1
        self._inside -= 1
        state.reserved -= ticket.cost
        state.served += used / self._limits(ticket.tenant).weight
        self._forget_idle()

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many calls of each active tenant wait, and how many are dispatched."""
        return {
            name: {"waiting": len(state.waiting), "inside": state.inside}
            for name, state in self._tenants.items()
            if not state.is_idle
        }

    def __len__(self) -> int:
        return len(self._tenants)

    def _may_dispatch(self, name: str, state: _TenantQueue, least: int) -> bool:
        """Return whether a tenant's next call may be dispatched.

        ``least`` is the smallest number of dispatched calls of any recently active tenant.
        """
        most = self._limits(name).concurrency
        if not state.waiting or (most is not None and state.inside >= most):
            return False
        if self.slots is None or not state.inside:
            return True
        return self._inside < _unreserved(
            self.slots // BATCHES if state.inside > least else self.slots
        )

    def _is_recent(self, state: _TenantQueue) -> bool:
        """Return whether a tenant is active, or is expected to call soon (only if slots are
        limited).
        """
        return not state.is_idle or (
            self.slots is not None and self._now - state.called_at < RECENT_S
        )

    def _counter(self, name: str) -> tuple[float, str]:
        """Return a tenant's virtual counter, and the tenant's name for the order of tenants with
        equal counters. The tenant with the lowest counter is next.
        """
        state = self._tenants[name]
        return state.served + state.reserved / self._limits(name).weight, name

    def _forget(self, state: _TenantQueue, ticket: Ticket) -> None:
        del state.waiting[ticket.number]
        # Tickets that left from the middle stay in the heap. Rebuild the heap if it has many of
        # them.
        if len(state.ranked) > 2 * len(state.waiting) + 16:
            state.ranked = [(t.rank, t.number) for t in state.waiting.values()]
            heapq.heapify(state.ranked)

    def _least_counter(self) -> float:
        """Return the counter of the least served active tenant. This value never decreases."""
        busy = [state.served for state in self._tenants.values() if not state.is_idle]
        self._floor = max(self._floor, min(busy, default=self._floor))
        return self._floor

    def _forget_idle(self) -> None:
        """Forget idle tenants whose counter is no higher than the counter of a new tenant, and the
        tenants that have been idle for the longest time beyond `MOST_IDLE`. Tenants that are
        expected to call soon are not forgotten.
        """
        floor = self._least_counter()
        idle = [name for name, state in self._tenants.items() if not self._is_recent(state)]
        if len(idle) > MOST_IDLE:
            idle.sort(key=lambda name: self._tenants[name].called_at)
        surplus = set(idle[: max(0, len(idle) - MOST_IDLE)])
        for name in idle:
            if self._tenants[name].served <= floor or name in surplus:
                del self._tenants[name]


def _unreserved(slots: int) -> int:
    """Return how many of ``slots`` are open to every tenant: at least 1."""
    return max(1, slots - -(-slots // KEPT_OF))
