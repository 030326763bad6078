"""The admission controller: tenants share an engine, and its own calls stay the policy's."""

from __future__ import annotations

import asyncio

import pytest

from agentrt.scheduler.policies import policy_class, policy_names
from agentrt.serving.tenants import Limits, admission, fair
from tests.serving.local import Held, open_server


async def test_tenants_take_turns_where_the_engine_is_full() -> None:
    """A's ten calls came first and take three of four places: B's two are not last."""
    async with open_server(kind=Held, slots=2, is_shared=True) as local:
        asking = []
        for tenant, number in (("a", 10), ("b", 2)):
            said = {"x-agentrt-tenant": tenant}
            asking += [asyncio.create_task(local.chat("x", headers=said)) for _ in range(number)]

            def all_came(total: int = len(asking)) -> bool:
                return sum(len(row.calls) for row in local.runtime.table) == total

            await local.until(all_came)
        assert [call.identity.tenant for call in local.engine.calls] == ["a", "a", "a", "b"]
        local.engine.go.set()
        await asyncio.gather(*asking)
        order = [call.identity.tenant for call in local.engine.calls]
        assert order.count("b") == 2
        assert max(at for at, tenant in enumerate(order) if tenant == "b") <= 7


async def test_calls_enter_when_another_tenant_is_silent_although_no_call_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B has made a call, so A gets seven of eight places; after a while, it gets more."""
    for module in (fair, admission):
        monkeypatch.setattr(module, "RECENT_S", 0.5)
    async with open_server(kind=Held, slots=8, is_shared=True) as local:
        local.engine.go.set()
        await local.chat("x", headers={"x-agentrt-tenant": "b"})
        local.engine.go.clear()
        said = {"x-agentrt-tenant": "a"}
        asking = [asyncio.create_task(local.chat("x", headers=said)) for _ in range(10)]
        await local.until(lambda: len(local.engine.open) == 10)
        local.engine.go.set()
        await asyncio.gather(*asking)


async def test_without_keys_all_are_admitted() -> None:
    async with open_server(kind=Held, slots=1) as local:
        asking = [asyncio.create_task(local.chat("x")) for _ in range(20)]
        await local.until(lambda: len(local.engine.open) == 20)
        local.engine.go.set()
        await asyncio.gather(*asking)


async def test_waiting_for_admission_is_waiting() -> None:
    limits = Limits(concurrency=1)
    async with open_server(kind=Held, limits=limits, is_shared=True) as local:
        asking = [asyncio.create_task(local.chat("x")) for _ in range(2)]
        await local.engine.began.wait()
        await local.until(lambda: sum(len(row.calls) for row in local.runtime.table) == 2)
        local.engine.go.set()
        await asyncio.gather(*asking)
        first, second = sorted(row.waiting_s for row in local.runtime.table)
        assert first < second


@pytest.mark.parametrize("name", policy_names())
def test_a_policy_says_which_of_a_tenants_calls_enters_first(name: str) -> None:
    """By the path that leads to the call, unless the policy looks at whole programs, or at none."""
    rank = policy_class(name).tenant_queue_rank
    by_program = name in ("plas", "program-fcfs", "round-robin")
    expected = 0.0 if name == "fcfs" else 5.0 if by_program else 2.0
    assert rank(2.0, 5.0) == expected
    assert rank(None, 5.0) == (0.0 if name == "fcfs" else 5.0)
