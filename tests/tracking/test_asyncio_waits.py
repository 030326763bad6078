"""asyncio's other ways to wait: wait, as_completed, wait_for, shield, threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from agentrt.graph import Node
from tests.tracking.toy import Boom, Program, leads_to, run


@leads_to(t0="", t1="", t2="", s0="t0", s1="s0 t1", s2="s1 t2")
async def test_wait_first_completed_loop(p: Program) -> None:
    pending = {asyncio.create_task(p.emit(f"t{i}", 1 + 6 * i)) for i in range(3)}
    step = 0
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        await p.emit(f"s{step}")
        step += 1


@leads_to(quick="", a="quick")
async def test_wait_with_a_timeout_joins_what_is_done(p: Program) -> None:
    quick = asyncio.create_task(p.emit("quick"))
    slow = asyncio.create_task(asyncio.Event().wait())
    while not quick.done():
        await asyncio.sleep(0)
    await asyncio.wait([quick, slow], timeout=0.001)
    await p.emit("a")


async def test_as_completed() -> None:
    p = Program()

    async def main() -> None:
        for i, step in enumerate(asyncio.as_completed([p.emit("slow", 9), p.emit("quick", 1)])):
            await step
            await p.emit(f"s{i}")

    edges = await run(p, main())
    assert edges == {"slow": "", "quick": "", "s0": "quick", "s1": "s0 slow"}


@leads_to(a="", b="a", begun="b", cleanup="begun", c="cleanup")
async def test_wait_for_in_time_and_too_late(p: Program) -> None:
    async def never() -> None:
        await p.emit("begun")
        try:
            await asyncio.Event().wait()
        finally:
            await p.emit("cleanup")

    await asyncio.wait_for(p.emit("a"), 60)
    await p.emit("b")
    too_late = asyncio.create_task(never())
    while "begun" not in p.edges():  # a slow machine could be out of time before it begins
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(too_late, 0.001)
    await p.emit("c")


@leads_to(a="", b="a")
async def test_timeout_around_a_gather_joins_what_it_waits_for(p: Program) -> None:
    async def stuck(name: str) -> None:
        await p.emit(name)
        over.reschedule(asyncio.get_running_loop().time())
        await asyncio.Event().wait()

    over = asyncio.timeout(None)

    with pytest.raises(TimeoutError):
        async with over:
            await asyncio.gather(stuck("a"))
    await p.emit("b")


@leads_to(a="", b="a", slow="b", slow2="slow", c="b", d="c", e="d slow2")
async def test_shield(p: Program) -> None:
    """1. shielded and in time 2. shielded and given up 3. the task itself, later."""

    async def slow(gate: asyncio.Event) -> None:
        await p.emit("slow")
        await gate.wait()
        await p.emit("slow2")

    gate = asyncio.Event()
    await asyncio.shield(p.emit("a"))
    await p.emit("b")
    task = asyncio.create_task(slow(gate))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(task), 0.001)
    gate.set()
    await p.emit("c", 5)
    await p.emit("d")
    await task
    await p.emit("e")


@leads_to(fails="", a="fails", quits="a", b="quits")
async def test_shield_of_a_task_that_fails_or_is_cancelled(p: Program) -> None:
    async def quits() -> None:
        await p.emit("quits")
        raise asyncio.CancelledError

    with pytest.raises(Boom):
        await asyncio.shield(p.emit("fails", fails=True))
    await p.emit("a")
    with pytest.raises(asyncio.CancelledError):
        await asyncio.shield(quits())
    await p.emit("b")


@leads_to(a="", t1="a", t2="t1", b="t2")
async def test_thread_that_emits_and_waits(p: Program) -> None:
    """A tool in an OS thread calls back into the loop twice; main continues after it."""

    def tool(loop: asyncio.AbstractEventLoop) -> None:
        for name in ("t1", "t2"):
            asyncio.run_coroutine_threadsafe(p.emit(name), loop).result()

    await p.emit("a")
    await asyncio.to_thread(tool, asyncio.get_running_loop())
    await p.emit("b")


@leads_to(g1="", after_g1="g1", g2="after_g1", after_g2="g2")
async def test_async_generator(p: Program) -> None:
    async def stream() -> AsyncIterator[Node]:
        for name in ("g1", "g2"):
            yield await p.emit(name)

    async with aclosing(stream()) as nodes:  # type: ignore[type-var]
        async for node in nodes:
            await p.emit("after_" + node.name)
