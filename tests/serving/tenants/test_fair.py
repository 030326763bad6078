"""The fair queue: shares by weight, no saved-up service, nobody passed for ever, nothing left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.serving.tenants.fair import RECENT_S, STARVATION_S, FairQueue, Ticket
from agentrt.serving.tenants.limits import Limits


def queue(slots: int | None, own: Mapping[str, Limits] | None = None) -> FairQueue:
    return FairQueue(slots, lambda tenant: (own or {}).get(tenant, Limits()))


def serve(one: FairQueue, rounds: int, used: float = 10.0) -> Counter[str]:
    """Let calls in one at a time; who was served how often."""
    served: Counter[str] = Counter()
    for _ in range(rounds):
        ticket = one.pop(0.0)
        assert ticket is not None
        served[ticket.tenant] += 1
        one.settle(ticket, used)
    return served


def test_a_crowd_does_not_crowd_others_out() -> None:
    """A has 1,000 calls there when B brings its first ones: they take turns."""
    one = queue(1)
    for _ in range(1000):
        one.push("a", 0.0, 10.0, 0.0)
    serve(one, 100)
    for _ in range(50):
        one.push("b", 0.0, 10.0, 0.0)
    assert serve(one, 100) == {"a": 50, "b": 50}


def test_weights_are_shares() -> None:
    one = queue(1, {"gold": Limits(weight=3.0)})
    for tenant in ("gold", "tin"):
        for _ in range(400):
            one.push(tenant, 0.0, 10.0, 0.0)
    assert serve(one, 400) == {"gold": 300, "tin": 100}


def test_the_actual_use_of_calls_counts() -> None:
    """Both expect as much, and A's calls use three times as much: it gets a third of the calls."""
    one = queue(1)
    for tenant in ("a", "b"):
        for _ in range(400):
            one.push(tenant, 0.0, 10.0, 0.0)
    served: Counter[str] = Counter()
    for _ in range(400):
        ticket = one.pop(0.0)
        assert ticket is not None
        served[ticket.tenant] += 1
        one.settle(ticket, 30.0 if ticket.tenant == "a" else 10.0)
    assert abs(served["a"] - 100) <= 1


def test_an_idle_tenant_accumulates_no_credit() -> None:
    one = queue(1)
    one.push("b", 0.0, 10.0, 0.0)
    serve(one, 1)
    for _ in range(300):
        one.push("a", 0.0, 10.0, 0.0)
    serve(one, 100)
    for _ in range(100):
        one.push("b", 0.0, 10.0, 0.0)
    assert serve(one, 20) == {"a": 10, "b": 10}


def test_a_returning_tenant_keeps_its_debt() -> None:
    one = queue(1)
    one.push("b", 0.0, 10.0, 0.0)
    one.push("a", 0.0, 10.0, 0.0)
    first = one.pop(0.0)
    assert first is not None
    assert first.tenant == "a"
    one.settle(first, 1000.0)  # and A is idle now, far above B
    for _ in range(50):
        one.push("a", 0.0, 10.0, 0.0)
        one.push("b", 0.0, 10.0, 0.0)
    assert serve(one, 40) == {"b": 40}


def filled(one: FairQueue, tenant: str, now: float = 0.0) -> int:
    """How many of a tenant's thousand calls get in."""
    for _ in range(1000):
        one.push(tenant, 0.0, 1000.0, now)
    count = 0
    while one.pop(now) is not None:
        count += 1
    return count


def test_a_tenant_without_calls_is_admitted_at_once_despite_anothers_load() -> None:
    """A greedy tenant's long calls fill an engine, and never end.

    1. It gets 28 of 32 places.
    2. Four other tenants' first calls get in when they come: they wait for nobody's end.
    3. Their second calls wait, as all of the greedy one's do.
    4. As soon as one of them is over, its next gets in at once, again and again.
    """
    one = queue(32)
    assert filled(one, "greedy") == 28
    inside: dict[str, Ticket] = {}
    for tenant in "abcd":
        pushed = one.push(tenant, 0.0, 10.0, 1.0)
        ticket = one.pop(1.0)
        assert ticket == pushed
        inside[tenant] = ticket
        one.push(tenant, 0.0, 10.0, 1.0)
        assert one.pop(1.0) is None
    for now in range(2, 50):
        one.settle(inside["a"], 10.0)
        ticket = one.pop(float(now))
        assert ticket is not None
        assert ticket.tenant == "a"
        inside["a"] = ticket
        one.push("a", 0.0, 10.0, float(now))
        assert one.pop(float(now)) is None


def test_a_tenant_that_calls_in_sequence_finds_room_in_the_batch() -> None:
    """An engine with room for 16 calls in its batch, of 32 that it is given.

    1. A tenant has made a short call: another gets 14 of the places, however much it wants.
    2. So it is as long as the first continues, and for some seconds after.
    3. Then the other has all but the kept ones: nobody is there to wait for them.
    """
    one = queue(32)
    for now in range(3):
        one.push("light", 0.0, 10.0, float(now))
        ticket = one.pop(float(now))
        assert ticket is not None
        assert ticket.tenant == "light"
        assert (filled(one, "greedy", float(now)) == 13) is (now == 0)
        one.settle(ticket, 10.0)
        assert (one.pop(float(now)) is not None) is (now == 0)
        assert one.counts()["greedy"]["inside"] == 14
    late = 2.0 + RECENT_S
    assert one.pop(late - 0.1) is None
    while one.pop(late) is not None:
        pass
    assert one.counts()["greedy"]["inside"] == 28


def test_two_equal_tenants_use_all_unreserved_places() -> None:
    one = queue(32)
    for _ in range(100):
        one.push("a", 0.0, 10.0, 0.0)
        one.push("b", 0.0, 10.0, 0.0)
    while one.pop(0.0) is not None:
        pass
    assert {name: count["inside"] for name, count in one.counts().items()} == {"a": 14, "b": 14}


def test_two_greedy_tenants_leave_places_for_a_third() -> None:
    one = queue(32)
    filled(one, "greedy")
    assert filled(one, "glutton") == 1
    third = one.push("third", 0.0, 10.0, 0.0)
    assert one.pop(0.0) == third


def test_a_queue_of_one_place_keeps_none() -> None:
    assert filled(queue(1), "greedy") == 1
    assert filled(queue(2), "greedy") == 1


def test_a_tenants_concurrency_leaves_the_room_to_others() -> None:
    one = queue(5, {"a": Limits(concurrency=1)})
    for tenant in ("a", "a", "b", "b"):
        one.push(tenant, 0.0, 10.0, 0.0)
    inside = []
    while (ticket := one.pop(0.0)) is not None:
        inside.append(ticket.tenant)
    assert sorted(inside) == ["a", "b", "b"]


def test_inside_a_tenant_the_rank_decides_until_a_call_starves() -> None:
    one = queue(1)
    long = one.push("a", 9.0, 1.0, 0.0)
    for at in range(3):
        one.push("a", 0.0, 1.0, float(at))
    first = one.pop(5.0)
    assert first is not None
    assert first.rank == 0.0
    one.settle(first, 1.0)
    assert one.pop(STARVATION_S) == long


class Reference:
    """Fair sharing as it is written: lists of tickets, and sums over them that are taken anew."""

    def __init__(self, slots: int | None, limits: Mapping[str, Limits]) -> None:
        self.slots, self.limits = slots, limits
        self.waiting: list[Ticket] = []
        self.inside: list[Ticket] = []
        self.served: dict[str, float] = {}
        self.heard: dict[str, float] = {}
        self.floor = 0.0

    def is_busy(self, tenant: str) -> bool:
        return any(ticket.tenant == tenant for ticket in self.waiting + self.inside)

    def raise_floor(self) -> None:
        """Raise the floor to the least served busy tenant. The floor never falls."""
        busy = [served for tenant, served in self.served.items() if self.is_busy(tenant)]
        self.floor = max([self.floor, min(busy)]) if busy else self.floor

    def push(self, ticket: Ticket) -> None:
        """A tenant that returns has gained no credit, and keeps its debt."""
        if not self.is_busy(ticket.tenant):
            self.raise_floor()
            self.served[ticket.tenant] = max(self.served.get(ticket.tenant, 0.0), self.floor)
        self.waiting.append(ticket)
        self.heard[ticket.tenant] = ticket.since

    def stands(self, tenant: str) -> float:
        """The tenant's service plus the expected use of its dispatched calls, over its weight."""
        expected = sum(ticket.cost for ticket in self.inside if ticket.tenant == tenant)
        return self.served[tenant] + expected / self.limits[tenant].weight

    def count(self, tenant: str) -> int:
        return sum(1 for ticket in self.inside if ticket.tenant == tenant)

    def is_recent(self, tenant: str, now: float) -> bool:
        return self.is_busy(tenant) or now - self.heard[tenant] < RECENT_S

    def may_enter(self, tenant: str, now: float) -> bool:
        inside = self.count(tenant)
        most = self.limits[tenant].concurrency
        if most is not None and inside >= most:
            return False
        if self.slots is None or inside == 0:
            return True
        others = [other for other in self.served if self.is_recent(other, now)]
        has_more = any(self.count(other) < inside for other in others)
        places = self.slots // 2 if has_more else self.slots
        # One of eight, rounded up, is kept; but not the only one.
        return len(self.inside) < max(1, places - (places + 7) // 8)

    def pop(self, now: float) -> Ticket | None:
        """The lowest tenant's oldest ticket if it was passed for long, else its best."""
        ready = {ticket.tenant for ticket in self.waiting if self.may_enter(ticket.tenant, now)}
        if not ready or len(self.inside) == self.slots:
            return None
        tenant = min(ready, key=lambda name: (self.stands(name), name))
        own = [ticket for ticket in self.waiting if ticket.tenant == tenant]
        best = min(own, key=lambda ticket: (ticket.rank, ticket.number))
        chosen = own[0] if now - own[0].since >= STARVATION_S else best
        self.waiting.remove(chosen)
        self.inside.append(chosen)
        return chosen

    def leave(self, ticket: Ticket, used: float | None) -> None:
        """A call is over, or (None used) gave up waiting."""
        if used is None:
            self.waiting.remove(ticket)
        else:
            self.inside.remove(ticket)
            self.served[ticket.tenant] += used / self.limits[ticket.tenant].weight
        self.raise_floor()


steps = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "push", "pop", "pop", "drop", "settle", "settle"]),
        st.sampled_from("abc"),
        st.integers(0, 6),
        st.sampled_from([0.0, 1.0, 4.0, 16.0]),
    ),
    min_size=20,
    max_size=120,
)


@settings(max_examples=50, deadline=None)
@given(steps, st.sampled_from([None, 1, 2, 3, 9]))
def test_the_queue_decides_as_the_reference(
    story: list[tuple[str, str, int, float]], slots: int | None
) -> None:
    """Compare the dispatched calls and both counts; at the end no state is left."""
    limits = {"a": Limits(weight=4.0), "b": Limits(concurrency=1), "c": Limits(weight=0.5)}
    one, reference, now = queue(slots, limits), Reference(slots, limits), 0.0
    for event, tenant, number, amount in story:
        now += amount
        if event == "push":
            reference.push(one.push(tenant, float(number % 3), 2.0**number, now))
        elif event == "pop":
            assert one.pop(now) == reference.pop(now)
        elif event == "drop" and reference.waiting:
            ticket = reference.waiting[number % len(reference.waiting)]
            one.drop(ticket)
            reference.leave(ticket, None)
        elif event == "settle" and reference.inside:
            ticket = reference.inside[number % len(reference.inside)]
            one.settle(ticket, amount)
            reference.leave(ticket, amount)
        assert one.counts() == {
            name: {
                "waiting": sum(1 for t in reference.waiting if t.tenant == name),
                "inside": sum(1 for t in reference.inside if t.tenant == name),
            }
            for name in "abc"
            if reference.is_busy(name)
        }
    reference.push(one.push("a", 0.0, 1.0, now))
    while reference.waiting or reference.inside:
        ticket = (reference.waiting + reference.inside)[0]
        used = None if ticket in reference.waiting else 8.0
        one.drop(ticket) if used is None else one.settle(ticket, used)
        reference.leave(ticket, used)
    assert one.counts() == {}
    assert len(one) == sum(
        served > reference.floor or (slots is not None and reference.is_recent(tenant, now))
        for tenant, served in reference.served.items()
    )


def test_cancelled_tickets_are_forgotten() -> None:
    """The heap of ranks holds at most twice as many as wait, and a few."""
    one = queue(0)
    tickets = [one.push("a", float(n % 7), 1.0, 0.0) for n in range(500)]
    for ticket in tickets[:-20]:
        one.drop(ticket)
    assert len(one._tenants["a"].ranked) <= 2 * 20 + 16
    one.slots = None
    left = [one.pop(0.0) for _ in range(20)]
    assert left == sorted(tickets[-20:], key=lambda ticket: (ticket.rank, ticket.number))
