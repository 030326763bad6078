"""The processes of submitted programs: whose they are, and what is left in them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("pydantic_monty")

from agentrt.serving.tenants import Limits
from tests.serving.local import SAYS, Held, open_server
from tests.serving.submit.sources import CALLS, ENDLESS, SPINS, processes, send
from tests.serving.tenants.plain_keys import PlainKeys


async def test_a_program_without_an_end_is_stopped_and_leaves_no_process() -> None:
    async with open_server(submit=True) as local:
        run = await send(local, SPINS)
        assert (await send(local, CALLS))["state"] == "done"
    assert run["error"]["message"] == "the program computed for 0.5 s without a call"
    assert not processes()


async def test_a_tenants_programs_use_a_process_again_and_find_nothing_in_it() -> None:
    """Another tenant's have another process."""
    leave = """
import json, math, random

async def main(ctx):
    global left
    left = "a secret"
    random.seed(7)
    try:
        json.left = math.left = left
    except (AttributeError, TypeError):
        pass
    return left
"""
    find = """
import json, math, random

async def main(ctx):
    found = [hasattr(json, "left"), hasattr(math, "left")]
    try:
        found.append(left)
    except NameError:
        found.append(None)
    return found, random.random()
"""
    async with open_server(submit=True, keys=PlainKeys()) as local:

        async def sent(key: str, source: str) -> Any:
            said = {"authorization": f"Bearer {key}"}
            return (await local.post("/v1/programs", {"source": source}, said))["result"]

        assert await sent("acme", leave) == "a secret"
        [own] = processes()
        found = [await sent("acme", find) for _ in range(2)]
        assert processes() == [own]
        await sent("best", find)
        assert len(processes()) == 2
    assert [one[0] for one in found] == [[False, False, None]] * 2
    assert found[0][1] != found[1][1]
    assert not processes()


async def test_programs_that_wait_give_up_their_process_where_they_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They go on in another, with what they had; their limits are counted on."""
    monkeypatch.setattr("agentrt.serving.submit.workers._RESIDENT", 2)
    source = """
import asyncio

async def main(ctx, number):
    kept = [number] * 3
    said = await asyncio.gather(*[ctx.llm(f"part {i} of {number}") for i in range(3)])
    last = await ctx.llm("the end")
    return kept, [one.text for one in [*said, last]]
"""
    limits = Limits(submitted=100, submitted_calls=20)
    async with open_server(submit=True, kind=Held, limits=limits) as local:
        bodies = [{"source": source, "input": number} for number in range(8)]
        running = [asyncio.create_task(local.post("/v1/programs", body)) for body in bodies]
        await local.until(lambda: len(local.engine.open) == 3 * 8)
        assert len(processes()) < 6
        local.engine.go.set()
        results = [(await one)["result"] for one in running]
        monkeypatch.setattr("agentrt.serving.submit.workers._RESIDENT", 0)
        endless = await send(local, ENDLESS)
    assert results == [[[number] * 3, [SAYS] * 4] for number in range(8)]
    assert endless["error"]["message"] == "line 4: the program made more than 20 calls"
