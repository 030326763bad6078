"""TaskGroup: bodies that emit meanwhile, children done before, growth and failure."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.tracking.toy import Program, leads_to, ticks


@leads_to(a="", child="a", body="a", child2="body", body2="body", b="body2 child child2")
async def test_group_whose_body_emits_meanwhile(p: Program) -> None:
    await p.emit("a")
    async with asyncio.TaskGroup() as group:
        group.create_task(p.emit("child", 1))
        await p.emit("body", 5)
        group.create_task(p.emit("child2", 5))
        await p.emit("body2")
    await p.emit("b")


@leads_to(x="", y="", body="", b="body x y")
async def test_group_whose_children_were_all_done_at_its_end(p: Program) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(p.emit("x"))
        group.create_task(p.emit("y"))
        await ticks(9)
        await p.emit("body")
    await p.emit("b")


@leads_to(x="", y="", b="x y")
async def test_group_ends_a_task_without_another_emission(p: Program) -> None:
    async def branch() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(p.emit("x"))
            group.create_task(p.emit("y", 4))

    await asyncio.create_task(branch())
    await p.emit("b")


@leads_to(x="", b="x")
async def test_fork_after_a_group_starts_from_its_children(p: Program) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(p.emit("x"))
    await asyncio.create_task(p.emit("b"))


@leads_to(child="", grandchild="child", child2="child", child3="child2", b="child3 grandchild")
async def test_group_that_grows_from_inside(p: Program) -> None:
    async def child(group: asyncio.TaskGroup) -> None:
        await p.emit("child")
        group.create_task(p.emit("grandchild", 3))
        await p.emit("child2", 9)
        await p.emit("child3")

    async with asyncio.TaskGroup() as group:
        group.create_task(child(group))
    await p.emit("b")


@leads_to(x="", y="", body="x", b="body y")
async def test_group_child_awaited_inside_the_body(p: Program) -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(p.emit("x"))
        group.create_task(p.emit("y"))
        await task
        await p.emit("body")
    await p.emit("b")


@leads_to(fails="", cancelled="", b="cancelled fails")
async def test_group_with_a_failing_child(p: Program) -> None:
    """All children of a failed group were waited for, the cancelled ones too."""
    with suppress(BaseExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(p.emit("fails", fails=True))
            group.create_task(p.emit("cancelled", 99))
    await p.emit("b")


@leads_to(o="", i="", a="i", b="a o")
async def test_two_groups_one_in_the_other(p: Program) -> None:
    async with asyncio.TaskGroup() as outer:
        outer.create_task(p.emit("o", 1))
        async with asyncio.TaskGroup() as inner:
            inner.create_task(p.emit("i", 6))
        await p.emit("a")
    await p.emit("b")
