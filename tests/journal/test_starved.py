"""A program that resumes while its machine is busy: its own timers are all due at once, and yet do
not come before answers that had come in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentrt import Context
from tests.journal import shapes
from tests.journal.killing import World, begins, killed, lived

TURNS = 400


@asynccontextmanager
async def starved() -> AsyncIterator[None]:
    """In each of the next turns of the loop an hour goes by for whoever has set a timer."""
    loop, late_s, turns = asyncio.get_running_loop(), 0.0, TURNS
    before = loop.time

    def turn() -> None:
        nonlocal late_s, turns
        late_s, turns = late_s + 3600.0, turns - 1
        if turns:
            loop.call_soon(turn)

    monkey = pytest.MonkeyPatch()
    monkey.setattr(loop, "time", lambda: before() + late_s)
    loop.call_soon(turn)
    try:
        yield
    finally:
        turns = 1
        monkey.undo()


async def quick(name: str) -> str:
    return name


async def never() -> None:
    await asyncio.Event().wait()


async def limit(ctx: Context) -> list[str]:
    """Answers in time."""
    async with asyncio.timeout(30):
        return [await ctx.tool(quick, str(number)) for number in range(5)]


async def limit_on_several(ctx: Context) -> list[str]:
    async with asyncio.timeout(30):
        return list(await asyncio.gather(*(ctx.tool(quick, name) for name in "abc")))


async def waited_for(ctx: Context) -> list[str]:
    return [await asyncio.wait_for(ctx.tool(quick, name), 30) for name in "abc"]


async def waits(ctx: Context) -> list[str]:
    tasks = [asyncio.create_task(ctx.tool(quick, name)) for name in "abc"]
    done, left = await asyncio.wait(tasks, timeout=30)
    assert not left
    return sorted(task.result() for task in done)


async def alarm(ctx: Context) -> list[str]:
    """A timer that is cancelled once the answers are there."""
    rang: list[str] = []
    timer = asyncio.get_running_loop().call_later(30, rang.append, "rang")
    found = [await ctx.tool(quick, name) for name in "abc"]
    timer.cancel()
    return found + rang


async def beside(ctx: Context) -> list[str]:
    """Another task continues by its own clock, after all answers."""
    found: list[str] = []

    async def sleeps() -> None:
        await asyncio.sleep(30)
        found.append("late")

    sleeping = asyncio.create_task(sleeps())
    found += [await ctx.tool(quick, name) for name in "abc"]
    sleeping.cancel()
    return found


async def too_late(ctx: Context) -> list[str]:
    """Its limits pass, in their order, and between answers."""
    found: list[str] = []

    async def limited(name: str, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await ctx.tool(never)
        except TimeoutError:
            found.append(await ctx.tool(quick, name))

    async with asyncio.TaskGroup() as group:
        for name, seconds in (("third", 0.09), ("first", 0.03), ("second", 0.06)):
            group.create_task(limited(name, seconds))
        group.create_task(limited("fourth", 0.12))
    return found


SHAPES: dict[str, Callable[[Context], Coroutine[Any, Any, list[str]]]] = {
    made.__name__: made
    for made in (limit, limit_on_several, waited_for, waits, alarm, beside, too_late)
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_timers_come_after_the_answers_that_came_in_time(shape: str, tmp_path: Path) -> None:
    """Killed when all has come, it goes the same way again, and runs no tool again."""
    path, ran = tmp_path / "j", World()

    async def code(ctx: Context) -> list[str]:
        found = await SHAPES[shape](ctx)
        await ctx.llm("that is all")
        return found

    async def hurried(ctx: Context) -> list[str]:
        async with starved():
            found = await SHAPES[shape](ctx)
        await ctx.llm("that is all")
        return found

    await killed(path, code, at=begins("call"), after=True, world=ran)
    again = await lived(path, hurried)
    assert again.error is None, again.error
    assert again.result == (await lived(tmp_path / "other", code)).result


@pytest.mark.parametrize("shape", shapes.SHAPES)
async def test_whatever_was_recorded_comes_again(shape: str, tmp_path: Path) -> None:
    """The usual shapes of asyncio give the result that they gave, and ask nobody again."""
    path, code, asked = tmp_path / "j", shapes.SHAPES[shape], World()

    async def hurried(ctx: Context) -> Any:
        async with starved():
            return await code(ctx)

    first = await lived(path, code)
    again = await lived(path, hurried, world=asked)
    assert again.error is None, again.error
    assert (again.result, asked.calls) == (first.result, {})
