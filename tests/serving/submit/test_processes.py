"""The processes of submitted programs: whose they are, and what is left in them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("pydantic_monty")

from agentrt.request import CallReport
from tests.serving.local import Held, open_server
from tests.serving.submit.sources import CALLS, SPINS, processes, send
from tests.serving.tenants.plain_keys import PlainKeys


async def test_a_program_without_an_end_is_stopped_and_leaves_no_process() -> None:
    async with open_server(submit=True) as local:
        run = await send(local, SPINS)
        assert (await send(local, CALLS))["state"] == "done"
    assert run["error"]["message"] == "the program computed for 0.5 s without a call, its maximum"
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


class SlowToAbort(Held):
    """An engine that says what an aborted call used only once it is released."""

    async def aborted(self, call_id: str) -> CallReport:
        self.aborting.set()
        await self.go.wait()
        return CallReport()

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.aborting = asyncio.Event()


async def test_a_program_that_is_cancelled_again_while_its_calls_end_frees_its_process() -> None:
    """Otherwise a tenant could leave as many processes as it starts and cancels programs."""
    async with open_server(submit=True, kind=SlowToAbort) as local:
        started = await local.client.post("/v1/programs", json={"source": CALLS, "wait": False})
        path = f"/v1/programs/submitted/runs/{started.json()['id']}/cancel"
        await local.until(local.engine.began.is_set)
        cancelling = [asyncio.create_task(local.client.post(path))]
        await local.until(local.engine.aborting.is_set)
        [own] = processes()
        [run] = local.runtime.runs.values()
        task = run.task
        assert task is not None
        cancelling.append(asyncio.create_task(local.client.post(path)))
        await local.until(lambda: task.cancelling() == 2)
        local.engine.go.set()
        await asyncio.gather(*cancelling)
        assert (await send(local, CALLS))["state"] == "done"
        assert processes() == [own]
    assert not processes()
