"""A tenant's large requests are read one after the other, and its long calls run beside them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pytest

from agentrt.serving.frontend.large import LARGE, LargeRequests
from tests.serving.local import Held, open_server


async def turns_over() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_tenants_large_requests_take_turns() -> None:
    """Small ones and others' do not wait; one that gives up or fails leaves its turn."""
    large, inside, go = LargeRequests(), dict[str, Callable[[], None]](), asyncio.Event()

    async def read(tenant: str, name: str, size: int = LARGE + 1) -> None:
        async with large.turn(tenant, size) as over:
            inside[name] = over
            await go.wait()

    tasks = [asyncio.create_task(read("a", f"a{n}")) for n in range(4)]
    tasks += [asyncio.create_task(read("b", "b0")), asyncio.create_task(read("a", "small", LARGE))]
    await turns_over()
    assert list(inside) == ["a0", "b0", "small"]
    inside["a0"]()
    inside["a0"]()  # each of its calls says so, and its answer
    await turns_over()
    assert list(inside)[3:] == ["a1"]
    tasks[2].cancel()
    tasks[1].cancel()
    await turns_over()
    assert list(inside)[4:] == ["a3"]
    go.set()
    await asyncio.wait(tasks)
    tasks.clear()
    inside.clear()
    gc.collect()
    assert not large._turns._tenants  # forgotten


@pytest.mark.engine
async def test_the_calls_of_large_requests_run_beside_each_other() -> None:
    async with open_server(kind=Held) as local:
        more = {"metadata": {"a": "x" * (LARGE + 1)}}
        asking = [asyncio.create_task(local.chat("hello", **more)) for _ in range(3)]
        await local.until(lambda: len(local.engine.open) == 3)
        local.engine.go.set()
        await asyncio.gather(*asking)
