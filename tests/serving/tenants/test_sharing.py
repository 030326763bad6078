"""Fair sharing: tenants share an engine, and its own calls stay the policy's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from agentrt import Context, Runtime, program
from agentrt.engines import ReplicaSet
from agentrt.executors.base import Chunk
from agentrt.request import Call, Reply
from agentrt.router import make_router
from agentrt.scheduler.policies import policy_class, policy_names
from agentrt.serving.tenants import Limits, Tenants, fair, sharing
from agentrt.serving.tenants.sharing import FairSharing
from tests.doubles.scripted import ScriptedExecutor
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
    for module in (fair, sharing):
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


async def test_the_slots_of_engines_that_differ_add_up() -> None:
    """One slot and five are twelve places, and not two times two: the first engine is small."""
    held = asyncio.Event()

    class Holds(ScriptedExecutor):
        async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
            self.calls.append(call)
            await held.wait()
            yield Chunk("", Reply(""))

    engines = [Holds(model="large", slots=1), Holds(model="small", slots=5)]
    replicas = ReplicaSet(engines.__getitem__, 2, make_router("least-used"))
    tenants = Tenants(asyncio.get_running_loop().time, Limits(), dict)
    async with Runtime(FairSharing(replicas, tenants, is_shared=True)) as runtime:

        @program
        async def asks(ctx: Context) -> None:
            await asyncio.gather(*(ctx.llm("x", model="small") for _ in range(20)))

        run = runtime.start(asks)
        table = runtime.registry.table
        while sum(len(row.calls) for row in table) < 20:
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(engines[1].calls) == 10  # of 2 * (1 + 5), two are kept for other tenants
        held.set()
        await run.wait()


async def test_without_keys_all_are_admitted() -> None:
    async with open_server(kind=Held, slots=1) as local:
        asking = [asyncio.create_task(local.chat("x")) for _ in range(20)]
        await local.until(lambda: len(local.engine.open) == 20)
        local.engine.go.set()
        await asyncio.gather(*asking)


async def test_waiting_for_a_tenants_turn_is_waiting() -> None:
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
