"""Sequences, fan-outs, joins, and tasks that are started early or awaited late."""

from __future__ import annotations

import asyncio

from agentrt.graph import Node
from tests.tracking.toy import Boom, Program, leads_to, ticks


@leads_to(a="", b="a", c="b", d="c")
async def test_sequence_and_loop(p: Program) -> None:
    for name in "abcd":
        await p.emit(name)


@leads_to(a="", b="a", c="a", d="b c")
async def test_gather(p: Program) -> None:
    await p.emit("a")
    await asyncio.gather(p.emit("b", 3), p.emit("c", 1), ticks(5))
    await p.emit("d")


@leads_to(x1="", x2="x1", x3="x1", x4="x2 x3", y1="", y2="y1", y3="y1", y4="y2 y3", end="x4 y4")
async def test_nested_gathers_of_chains(p: Program) -> None:
    async def branch(name: str) -> None:
        await p.emit(name + "1")
        await asyncio.gather(p.emit(name + "2"), p.emit(name + "3", 4))
        await p.emit(name + "4")

    await asyncio.gather(branch("x"), branch("y"))
    await p.emit("end")


@leads_to(a="", b="a", c="a", d="b c")
async def test_join_through_tasks_that_emit_nothing_themselves(p: Program) -> None:
    async def outer() -> None:
        await asyncio.gather(p.emit("b"), p.emit("c", 2))

    async def outer_idle() -> None:
        await asyncio.gather(ticks(1), ticks(2))

    await p.emit("a")
    await asyncio.gather(outer(), outer_idle())
    await p.emit("d")


@leads_to(a="", b="", c="a b", d="a b")
async def test_gather_of_layers_without_a_join_between(p: Program) -> None:
    await asyncio.gather(p.emit("a"), p.emit("b"))
    await asyncio.gather(p.emit("c"), p.emit("d"))


@leads_to(a="", b="", before="", after="a b before")
async def test_gather_of_tasks_that_are_done_already(p: Program) -> None:
    tasks = [asyncio.create_task(p.emit("a")), asyncio.create_task(p.emit("b"))]
    await ticks(9)
    await p.emit("before")
    await asyncio.gather(*tasks)
    await p.emit("after")


@leads_to(a="", early="a", b="a", c="b", d="c early", e="d")
async def test_task_awaited_late(p: Program) -> None:
    await p.emit("a")
    early = asyncio.create_task(p.emit("early"))
    await p.emit("b", 5)
    await p.emit("c")
    await early
    await p.emit("d")
    await early
    await p.emit("e")


@leads_to(background="", a="", b="a")
async def test_background_task_is_no_parent(p: Program) -> None:
    task = asyncio.create_task(p.emit("background"))
    task.add_done_callback(lambda _: None)
    await p.emit("a", 5)
    await p.emit("b")
    assert task.done()


@leads_to(a="", t1="a", t2="t1", b="t2")
async def test_one_task_awaits_another_and_main_awaits_both(p: Program) -> None:
    async def second(first: asyncio.Task[Node]) -> None:
        await first
        await p.emit("t2")

    await p.emit("a")
    t1 = asyncio.create_task(p.emit("t1"))
    t2 = asyncio.create_task(second(t1))
    await t1
    await t2
    await p.emit("b")


@leads_to(good="", bad="", a="", b="a good", c="b bad")
async def test_result_read_instead_of_awaited(p: Program) -> None:
    good = asyncio.create_task(p.emit("good"))
    bad = asyncio.create_task(p.emit("bad", fails=True))
    await ticks(9)
    await p.emit("a")
    assert good.result().name == "good"
    await p.emit("b")
    assert isinstance(bad.exception(), Boom)
    await p.emit("c")


@leads_to(x="", y="", x_inner="x", y_inner="y", a="x y", b="a x_inner")
async def test_tasks_handed_on_to_another_task(p: Program) -> None:
    async def make(name: str) -> asyncio.Task[Node]:
        await p.emit(name)
        return asyncio.create_task(p.emit(name + "_inner", 5))

    one, two = await asyncio.gather(make("x"), make("y"))
    await p.emit("a")
    await one
    await p.emit("b")
    await two
