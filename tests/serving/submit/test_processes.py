"""The processes of submitted programs: whose they are, and what is left in them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pydantic_monty")

from tests.serving.local import open_server
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
