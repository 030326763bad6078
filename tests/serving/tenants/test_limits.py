"""Rates and counts, on a clock of the test's own."""

from __future__ import annotations

import pytest

from agentrt.serving.tenants import BusyError, Limits, Tenants
from agentrt.serving.tenants.limits import MOST_IDLE


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_first_request_of_all_is_there_at_once() -> None:
    """Also where the clock moves on between two looks at it."""
    times = iter(range(100))
    tenants = Tenants(lambda: next(times) / 1e6, Limits(requests_per_minute=1))
    tenants.enter("a")
    assert tenants.calls("a") == 1


def test_requests_per_minute() -> None:
    clock = Clock()
    tenants = Tenants(clock, Limits(requests_per_minute=60))
    for _ in range(60):
        tenants.enter("a")
        tenants.leave("a")
    with pytest.raises(BusyError, match="requests per minute") as busy:
        tenants.enter("a")
    assert busy.value.retry_after == 1
    tenants.enter("b")
    clock.now += 1.0
    tenants.enter("a")


def test_tokens_are_charged_at_the_end_and_waited_for() -> None:
    clock = Clock()
    tenants = Tenants(clock, Limits(tokens_per_minute=600))
    tenants.enter("a")
    tenants.charge("a", 1200)
    with pytest.raises(BusyError, match="tokens per minute") as busy:
        tenants.enter("a")
    assert busy.value.retry_after == 61
    clock.now += busy.value.retry_after
    tenants.enter("a")


def test_a_refused_request_costs_nothing() -> None:
    tenants = Tenants(Clock(), Limits(calls=3, requests_per_minute=2))
    tenants.enter("a", 3)
    for _ in range(5):
        with pytest.raises(BusyError, match="3 calls in flight"):
            tenants.enter("a")
    tenants.leave("a", 3)
    tenants.enter("a")
    assert tenants.calls("a") == 1


def test_a_refusal_names_the_setting_of_the_limit() -> None:
    tenants = Tenants(Clock(), Limits(calls=3), lambda: {"small": Limits(calls=2)})
    for tenant, setting in (("a", "--max-calls"), ("small", "calls in the file of keys")):
        with pytest.raises(BusyError, match=rf"calls in flight \({setting}\)"):
            tenants.enter(tenant, 4)


def test_requests_without_calls_are_counted_one_by_one() -> None:
    """More of them than a minute has go at once, and are waited for after."""
    clock = Clock()
    tenants = Tenants(clock, Limits(requests_per_minute=60, tokens_per_minute=60))
    tenants.ask("a", 120)
    with pytest.raises(BusyError, match="requests per minute") as busy:
        tenants.ask("a", 60)
    assert (busy.value.retry_after, tenants.calls("a")) == (120, 0)
    clock.now += 120
    tenants.charge("a", 61)
    with pytest.raises(BusyError, match="tokens per minute"):
        tenants.ask("a")
    clock.now += 2
    tenants.ask("a", 60)


def test_changed_limits_are_applied() -> None:
    own = {"a": Limits(calls=1)}
    tenants = Tenants(Clock(), Limits(), lambda: own)
    tenants.enter("a")
    with pytest.raises(BusyError):
        tenants.enter("a")
    own["a"] = Limits(calls=2)
    tenants.enter("a")
    assert tenants.calls("a") == 2


@pytest.mark.parametrize("base", [Limits(), Limits(requests_per_minute=60)])
def test_invented_names_of_tenants_are_forgotten(base: Limits) -> None:
    clock = Clock()
    tenants = Tenants(clock, base)
    tenants.enter("busy")
    for number in range(3 * MOST_IDLE):
        clock.now = 2.0 * number
        tenants.enter(str(number))
        tenants.leave(str(number))
    assert tenants.calls("busy") == 1
    assert len(tenants) <= MOST_IDLE


def test_a_tenant_that_has_used_its_rate_is_not_forgotten() -> None:
    tenants = Tenants(Clock(), Limits(requests_per_minute=1))
    for number in range(2 * MOST_IDLE):
        tenants.enter(str(number))
        tenants.leave(str(number))
    with pytest.raises(BusyError):
        tenants.enter("0")
