"""What tracking costs, counted and never timed, and what it lets go."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from agentrt import tracking
from agentrt.tracking import current_scope
from agentrt.tracking.scope import Scope
from tests.graph.integrity import check_integrity
from tests.graph.test_frontier import Counting
from tests.tracking.toy import Program, installed, run, ticks


async def test_ten_thousand_calls_cost_the_same_each() -> None:
    p = Program(dag=Counting)

    async def main() -> None:
        for _ in range(5_000):
            await p.emit("", 0)
            await asyncio.gather(p.emit("", 0))
            scope = current_scope()
            assert scope is not None
            assert len(scope.frontier.ids) <= 1

    await run(p, main())
    assert isinstance(p.dag, Counting)
    # One look at the parent and one at the end of each node; the rest is the final check.
    assert p.dag.looked <= 2 * 10_000 + 10_000
    assert len(p.dag.critical_path().nodes) == 1
    assert p.dag.node(9_999).depth == 9_999


@pytest.mark.parametrize("way", ["gather", "group"])
async def test_wide_fan_outs_cost_one_look_per_edge(way: str) -> None:
    p = Program(dag=Counting)

    async def main() -> None:
        for _ in range(3):
            await p.emit("root", 0)
            if way == "gather":
                await asyncio.gather(*(p.emit("leaf") for _ in range(1000)))
            else:
                async with asyncio.TaskGroup() as group:
                    for _ in range(1000):
                        group.create_task(p.emit("leaf"))

    with installed():
        await tracking.TrackedTask(main(), scope=Scope(p))
    assert isinstance(p.dag, Counting)
    assert p.dag.looked <= 3 * (1000 * 2 + 1000 + 2)
    check_integrity(p.dag)
    assert [len(p.dag.node(i).parents) for i in (1, 1001, 2002)] == [1, 1000, 1000]


async def let_go() -> list[weakref.ref[Any]]:
    p = Program()
    gone: list[weakref.ref[Any]] = []

    async def child(name: str) -> None:
        gone.append(weakref.ref(asyncio.current_task()))
        await p.emit(name)

    async def main() -> None:
        await asyncio.gather(child("a"), child("b"))
        async with asyncio.TaskGroup() as group:
            group.create_task(child("c"))
        await asyncio.wait([asyncio.create_task(child("d"))])
        gathered = asyncio.gather(child("e"), child("f"))
        await ticks(9)
        del gathered, group
        gc.collect()
        assert [ref() for ref in gone] == [None] * 6
        gone.append(weakref.ref(asyncio.current_task()))

    await run(p, main())
    return [*gone, weakref.ref(p)]


async def test_finished_tasks_and_programs_are_let_go() -> None:
    gone = await let_go()
    await ticks(1)  # the handle that ran until now held the task that it was woken by
    gc.collect()
    assert [ref() for ref in gone] == [None] * 8
