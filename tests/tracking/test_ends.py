"""Failures and cancellation, and gathers that are not awaited at once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from tests.tracking.toy import Boom, Program, leads_to, run, ticks


@leads_to(a="", b="a")
async def test_failure_is_an_end_like_another(p: Program) -> None:
    with suppress(Boom):
        await p.emit("a", fails=True)
    await p.emit("b")


@leads_to(a="", b="", c="", d="a b c")
async def test_gather_that_returns_exceptions_waits_for_all(p: Program) -> None:
    async def quits() -> None:
        await p.emit("c", 2)
        raise asyncio.CancelledError

    await asyncio.gather(p.emit("a", fails=True), p.emit("b", 5), quits(), return_exceptions=True)
    await p.emit("d")


@leads_to(quick="", fails="", slow="", a="fails", b="a")
async def test_gather_that_raises_waited_for_the_failed_one_only(p: Program) -> None:
    """1. quick ends 2. fails fails 3. slow continues, and nobody waits for it."""

    async def slow() -> None:
        await p.emit("slow", 5)

    with suppress(Boom):
        await asyncio.gather(p.emit("quick", 1), p.emit("fails", 3, fails=True), slow())
    await p.emit("a", 9)
    await p.emit("b")


@leads_to(branch="", a="", b="a", c="b branch")
async def test_cancelled_branch(p: Program) -> None:
    task = asyncio.create_task(p.emit("branch", 99))
    await p.emit("a")
    task.cancel()
    await p.emit("b")
    with suppress(asyncio.CancelledError):
        await task
    await p.emit("c")


@leads_to(inner="", cleanup="inner", a="cleanup")
async def test_cancelling_the_waiter_cancels_and_joins_the_awaited(p: Program) -> None:
    async def waiter() -> None:
        task = asyncio.create_task(p.emit("inner", 99))
        try:
            await task
        finally:
            await p.emit("cleanup")

    task = asyncio.create_task(waiter())
    await ticks(3)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await p.emit("a")


@leads_to(a="", b="a")
async def test_cancelled_before_it_began(p: Program) -> None:
    await p.emit("a")
    task = asyncio.create_task(p.emit("never"))
    task.cancel()
    await asyncio.wait([task])
    await p.emit("b")


@leads_to(quick="", slow="", a="", b="a", c="b quick slow")
async def test_gather_still_going_is_no_parent(p: Program) -> None:
    """Some of its tasks have ended, but the gather has not."""
    both = asyncio.gather(p.emit("quick", 1), p.emit("slow", 30))
    await p.emit("a", 5)
    await p.emit("b")
    await both
    await p.emit("c")


async def test_gather_over_but_not_awaited_counts_already() -> None:
    """The known edge too many: asyncio does not tell when a finished gather is awaited."""
    p = Program()

    async def main() -> None:
        both = asyncio.gather(p.emit("x"), p.emit("y"))
        await p.emit("a", 9)
        await p.emit("b")
        await both

    assert (await run(p, main()))["b"] == "a x y"


async def test_result_read_in_a_callback_counts_from_then_on() -> None:
    p = Program()
    seen = []

    async def main() -> None:
        task = asyncio.create_task(p.emit("x"))
        task.add_done_callback(lambda done: seen.append(done.result().name))
        await p.emit("a", 9)
        await p.emit("b")

    assert await run(p, main()) == {"x": "", "a": "", "b": "a x"}
    assert seen == ["x"]


@leads_to(xFalse="", aFalse="", xTrue="aFalse", aTrue="aFalse", b="aTrue xTrue")
async def test_exception_read_in_a_callback_counts_only_if_there_is_one(p: Program) -> None:
    """A callback that looks for failures, as logging does, waits for nothing."""
    for fails in (False, True):
        task = asyncio.create_task(p.emit(f"x{fails}", fails=fails))
        task.add_done_callback(lambda done: done.exception())
        await p.emit(f"a{fails}", 9)
    await p.emit("b")


@pytest.mark.parametrize("way", ["gather", "group", "callback"])
async def test_task_that_ended_before_its_own_gather(way: str) -> None:
    """1. t leaves a gather behind 2. t ends 3. the gather ends 4. main hears of t only."""
    p = Program()
    read: list[Any] = []

    async def leaves() -> None:
        await p.emit("t")
        read.append(asyncio.gather(p.emit("quick", 0), p.emit("left", 9)))

    async def main() -> None:
        if way == "gather":
            await asyncio.gather(leaves(), ticks(30))
        elif way == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(leaves())
                await ticks(30)
        else:
            task = asyncio.create_task(leaves())
            task.add_done_callback(lambda done: read.append(done.result()))
            await ticks(30)
        assert read[0].done()
        await p.emit("b")

    assert await run(p, main()) == {"t": "", "quick": "t", "left": "t", "b": "t"}
