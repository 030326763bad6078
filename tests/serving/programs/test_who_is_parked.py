"""Which programs leave memory, and which do more than wait."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentrt import Context, Event, tool
from agentrt.program import Program
from agentrt.serving.triggers import Trigger, api_with
from tests.interrupts.byhand import ByHand
from tests.serving.programs.parking import Code, of, served


async def in_gather(ctx: Context) -> Any:
    return await asyncio.gather(ctx.human("a"), ctx.sleep(3600))


async def in_a_group(ctx: Context) -> Any:
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.human("a"))
        group.create_task(ctx.human("b"))


async def in_wait(ctx: Context) -> Any:
    tasks = [asyncio.create_task(ctx.human(one)) for one in "ab"]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def in_a_spawned_one(ctx: Context) -> Any:
    async def inner(ctx: Context) -> Any:
        return await ctx.human("a")

    await ctx.spawn(inner)


async def beside_a_call(ctx: Context) -> Any:
    await asyncio.gather(ctx.human("a"), ctx.llm("never"))


async def beside_a_tool(ctx: Context) -> Any:
    @tool
    async def waits() -> None:
        await asyncio.Event().wait()

    await asyncio.gather(ctx.human("a"), ctx.tool(waits))


async def beside_an_event(ctx: Context) -> Any:
    await asyncio.gather(ctx.human("a"), ctx.event("topic"))


async def after_an_event(ctx: Context) -> Any:
    await asyncio.wait({asyncio.create_task(_first(ctx))}, return_when=asyncio.FIRST_COMPLETED)
    await ctx.human("a")


async def _first(ctx: Context) -> None:
    with pytest.raises(Exception, match="within"):
        await ctx.event("topic", timeout=0.001)


async def beside_its_own_sleep(ctx: Context) -> Any:
    await asyncio.gather(ctx.human("a"), asyncio.sleep(3600))


async def with_its_own_limit(ctx: Context) -> Any:
    await asyncio.wait_for(ctx.human("a"), 3600)


async def with_a_limit_of_wait(ctx: Context) -> Any:
    await asyncio.wait([asyncio.create_task(ctx.human("a"))], timeout=3600)


async def beside_a_thread(ctx: Context) -> Any:
    event = asyncio.Event()
    await asyncio.gather(ctx.human("a"), event.wait())


@pytest.mark.parametrize("code", [in_gather, in_a_group, in_wait, in_a_spawned_one])
async def test_parked(tmp_path: Path, code: Code) -> None:
    async with served(tmp_path / "j", of(code)) as local:
        run = await local.started("main")
        await local.parked(run)
        for question in await local.questions():
            await local.answer(question, "yes")
        if code is not in_gather:
            await local.done(run)


@pytest.mark.parametrize(
    "code",
    [
        beside_a_call,
        beside_a_tool,
        beside_an_event,
        after_an_event,
        beside_its_own_sleep,
        with_its_own_limit,
        with_a_limit_of_wait,
        beside_a_thread,
    ],
)
async def test_not_parked(tmp_path: Path, code: Code) -> None:
    """The program's other work exists only in memory."""
    async with served(tmp_path / "j", of(code), events=ByHand()) as local:
        if code is beside_a_call:
            local.engine.generate = never  # type: ignore[method-assign]  # it never answers
        run = await local.started("main")
        await local.until(run, lambda run: run["questions"])
        for _ in range(20):
            await local.park()
        assert not (await local.run(run))["parked"]


async def never(call: Any, *, stream: bool) -> Any:
    await asyncio.Event().wait()
    yield


async def test_a_program_whose_wait_ends_soon_is_not_parked(tmp_path: Path) -> None:
    async def code(ctx: Context) -> None:
        await asyncio.gather(ctx.human("a"), ctx.sleep(60))

    async with served(tmp_path / "j", of(code), park_s=61.0) as local:
        run = await local.started("main")
        await local.until(run, lambda run: run["questions"])
        for _ in range(20):
            await local.park()
        assert not (await local.run(run))["parked"]


async def test_a_parked_program_of_an_event_frees_its_place(tmp_path: Path) -> None:
    """And is no dead letter before it comes back, and fails."""

    async def main(ctx: Context, event: Any) -> None:
        raise ValueError(await ctx.human(str(event["payload"])))

    source = ByHand(Event("topic", 1))
    triggers = api_with([Trigger("topic", "main", most=1)], lambda said: None)
    async with served(tmp_path / "j", Program(main), events=source, apis=[triggers]) as local:
        for number in (1, 2):
            while await local.parking.describe("default", "main", f"main-{number}") is None:
                await local.park()
            while local.server.runtime.runs:
                await asyncio.sleep(0)
            if number == 1:
                source.live[0].put(Event("topic", 2))
        assert source.refused == []
        for question in await local.questions():
            await local.answer(question, "no")
        for number in (1, 2):
            await local.until(f"main-{number}", lambda run: run["state"] == "failed")
    assert sorted(event.payload for event, *_ in source.refused) == [1, 2]
