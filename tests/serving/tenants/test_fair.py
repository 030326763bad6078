"""The fair queue: shares by weight, no saved-up service, nobody passed for ever, nothing left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.serving.tenants.fair import PATIENCE_S, FairQueue, Ticket
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


def test_what_calls_really_use_counts() -> None:
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


def test_who_was_idle_has_saved_nothing_up() -> None:
    one = queue(1)
    one.push("b", 0.0, 10.0, 0.0)
    serve(one, 1)
    for _ in range(300):
        one.push("a", 0.0, 10.0, 0.0)
    serve(one, 100)
    for _ in range(100):
        one.push("b", 0.0, 10.0, 0.0)
    assert serve(one, 20) == {"a": 10, "b": 10}


def test_who_goes_and_comes_again_has_lost_no_debt() -> None:
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


def test_a_tenants_concurrency_leaves_the_room_to_others() -> None:
    one = queue(4, {"a": Limits(concurrency=1)})
    for tenant in ("a", "a", "b", "b"):
        one.push(tenant, 0.0, 10.0, 0.0)
    inside = []
    while (ticket := one.pop(0.0)) is not None:
        inside.append(ticket.tenant)
    assert sorted(inside) == ["a", "b", "b"]


def test_inside_a_tenant_the_rank_decides_until_patience_ends() -> None:
    one = queue(1)
    long = one.push("a", 9.0, 1.0, 0.0)
    for at in range(3):
        one.push("a", 0.0, 1.0, float(at))
    first = one.pop(5.0)
    assert first is not None
    assert first.rank == 0.0
    one.settle(first, 1.0)
    assert one.pop(PATIENCE_S) == long


steps = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["push", "pop", "drop", "settle"])),
    max_size=120,
)


@settings(deadline=None, derandomize=True)
@given(steps, st.integers(1, 4))
def test_nothing_is_lost_and_nothing_is_left(story: list[tuple[str, str]], slots: int) -> None:
    """Never more inside than there is room for; room is never left while somebody waits."""
    one = queue(slots)
    waiting: list[Ticket] = []
    inside: list[Ticket] = []
    for tenant, what in story:
        if what == "push":
            waiting.append(one.push(tenant, float(len(waiting) % 3), 10.0, 0.0))
        elif what == "drop" and waiting:
            one.drop(waiting.pop(0))
        elif what == "settle" and inside:
            one.settle(inside.pop(0), 7.0)
        elif what == "pop":
            ticket = one.pop(0.0)
            assert (ticket is None) == (not waiting or len(inside) == slots)
            if ticket is not None:
                waiting.remove(ticket)
                inside.append(ticket)
        counts = one.counts().values()
        assert sum(count["inside"] for count in counts) == len(inside) <= slots
        assert sum(count["waiting"] for count in counts) == len(waiting)
    for ticket in waiting:
        one.drop(ticket)
    for ticket in inside:
        one.settle(ticket, 10.0)
    assert one.counts() == {}
