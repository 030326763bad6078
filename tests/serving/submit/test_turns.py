"""The computing time of a tenant's programs, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentrt.serving.submit.sandbox import TenantTurns
from agentrt.serving.tenants.limits import Bucket


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 5)), max_size=30))
def test_no_tenant_computes_more_than_its_share(turns: list[tuple[float, float]]) -> None:
    """Whatever its turns take, and however long it pauses: rate, burst, and one turn over it."""
    now, spent = 0.0, 0.0
    share = Bucket(1.0, 0.1, now)
    for takes, pause in turns:
        now += pause
        now += share.wait_s(0.0, now)
        assert spent <= 1.0 + 0.1 * now + 1e-6
        now += takes
        share.take(takes, now)
        spent += takes


def test_short_turns_never_wait() -> None:
    share = Bucket(1.0, 0.1, 0.0)
    for now in range(1000):
        assert share.wait_s(0.0, float(now)) == 0
        share.take(0.09, float(now))


async def test_a_tenants_turns_are_one_after_the_other() -> None:
    running = list[str]()
    go = asyncio.Event()

    async def apart(function: Callable[[], Any]) -> Any:
        running.append(function())
        await go.wait()

    turns = TenantTurns(asyncio.get_running_loop().time)
    tasks = [
        asyncio.create_task(turns.take(apart, lambda name=name: name))  # type: ignore[misc]  # no type fits
        for name in ("one", "two")
    ]
    for _ in range(10):
        await asyncio.sleep(0)
    assert running == ["one"]
    go.set()
    await asyncio.gather(*tasks)
    assert running == ["one", "two"]


async def test_a_late_event_loop_uses_no_budget() -> None:
    """A turn costs what its function takes, however late its thread and the loop come to it."""
    now = 0.0

    async def late(function: Callable[[], Any]) -> None:
        nonlocal now
        now += 50.0
        function()
        now += 50.0

    def works() -> None:
        nonlocal now
        now += 0.5

    turns = TenantTurns(lambda: now)
    for _ in range(3):
        await turns.take(late, works)
    assert turns.share.wait_s(0.0, now) == 0
