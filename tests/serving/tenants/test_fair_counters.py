"""The fair queue's counters, one rule at a time: what is reserved, kept, shared and forgotten."""

from __future__ import annotations

from agentrt.serving.tenants.fair import MOST_IDLE, FairQueue, Ticket
from agentrt.serving.tenants.limits import Limits


def queue(slots: int | None, **weights: float) -> FairQueue:
    return FairQueue(slots, lambda tenant: Limits(weight=weights.get(tenant, 1.0)))


def inside(one: FairQueue, now: float = 0.0) -> list[Ticket]:
    """All that may go in at once."""
    tickets = []
    while (ticket := one.pop(now)) is not None:
        tickets.append(ticket)
    return tickets


def test_the_expected_use_of_admitted_calls_counts_by_weight() -> None:
    """Gold has 20 + 4 under way for its weight of 4, tin has 5."""
    one = queue(None, gold=4.0)
    for tenant, cost in (("gold", 20.0), ("gold", 4.0), ("tin", 5.0)):
        one.push(tenant, 0.0, cost, 0.0)
    first, second, third = inside(one)
    assert [ticket.tenant for ticket in (first, second, third)] == ["gold", "tin", "gold"]
    for tenant in ("gold", "tin"):
        one.push(tenant, 0.0, 1.0, 0.0)
    assert [ticket.tenant for ticket in inside(one)] == ["tin", "gold"]


def test_the_expected_use_is_replaced_by_the_actual_use() -> None:
    one = queue(None)
    for tenant, cost in (("a", 100.0), ("a", 7.0), ("b", 9.0)):
        one.push(tenant, 0.0, cost, 0.0)
    first, _, _ = inside(one)
    assert first.cost == 100.0
    one.settle(first, 1.0)
    for tenant in ("b", "a"):
        one.push(tenant, 0.0, 1.0, 0.0)
    assert [ticket.tenant for ticket in inside(one)] == ["a", "b"], "7 + 1 before 9"


def test_a_full_queue_admits_no_call() -> None:
    one = queue(1)
    assert one.pop(0.0) is None, "nobody wants in"
    for tenant in ("a", "b"):
        one.push(tenant, 0.0, 1.0, 0.0)
    (first,) = inside(one)
    assert one.counts() == {"a": {"waiting": 0, "inside": 1}, "b": {"waiting": 1, "inside": 0}}
    one.settle(first, 1.0)
    assert [ticket.tenant for ticket in inside(one)] == ["b"]


def test_a_recent_tenant_leaves_another_whole_places_of_the_batch() -> None:
    """Half of 19 places are 9, of which two are kept."""
    one = queue(19)
    one.push("b", 0.0, 1.0, 0.0)
    one.settle(inside(one)[0], 1.0)
    for _ in range(20):
        one.push("a", 0.0, 1.0, 1.0)
    assert len(inside(one, 1.0)) == 7


def test_a_rank_counts_at_any_hour() -> None:
    one = queue(None)
    for rank in (2.0, 1.0):
        one.push("a", rank, 1.0, 100.0)
    assert [ticket.rank for ticket in inside(one, 101.0)] == [1.0, 2.0]


def test_a_tenant_without_calls_and_debt_is_forgotten() -> None:
    one = queue(None)
    one.drop(one.push("a", 0.0, 1.0, 0.0))
    assert len(one) == 0
    lately = queue(4)
    lately.push("a", 0.0, 1.0, 0.0)
    lately.settle(inside(lately)[0], 0.0)
    lately.drop(lately.push("b", 0.0, 1.0, 30.0))
    assert list(lately._tenants) == ["b"], "which may call again"


def test_the_debts_of_the_latest_tenants_are_remembered_and_no_others() -> None:
    calls = queue(4)
    for number in range(MOST_IDLE + 500):
        calls.push(f"t{number}", 0.0, 1.0, 20.0 * number)
        calls.settle(inside(calls, 20.0 * number)[0], 10.0)
    assert len(calls) <= MOST_IDLE + 1
    now = 20.0 * (MOST_IDLE + 500)
    for tenant in (f"t{MOST_IDLE + 400}", "new", "t0"):
        calls.push(tenant, 0.0, 1.0, now)
    assert [ticket.tenant for ticket in inside(calls, now)][-1] == f"t{MOST_IDLE + 400}"
