"""Tasks that a foreign framework starts: its machinery, parts of its caller, threads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentrt.tracking import TrackedTask, current_scope, enter, frameworks, is_alone_in
from tests.tracking.toy import Program, run

# A framework's module: it awaits what it starts at once, as LangGraph's runnables do.
SOURCE = """
import asyncio

async def call(coro):
    return await asyncio.create_task(coro)

async def in_thread(function):
    return await asyncio.to_thread(function)

async def machine(coro):
    return await coro
"""


@pytest.fixture
def framework(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("_INTERNAL", "_INTERNAL_CODES", "_AWAITING", "_THREADS"):
        monkeypatch.setattr(frameworks, name, set(getattr(frameworks, name)))
    space: dict[str, Any] = {"__name__": "toy_framework"}
    exec(SOURCE, space)
    return type("Framework", (), {k: staticmethod(v) for k, v in space.items() if callable(v)})


@pytest.mark.parametrize("named", [True, False])
async def test_a_part_is_in_the_scope_of_who_calls_it(framework: Any, named: bool) -> None:
    if named:
        frameworks.add_awaiting("toy_framework")
    p, seen = Program(), []

    async def inside(outer: Any) -> None:
        seen.append(current_scope() is outer)
        seen.append(isinstance(asyncio.current_task(), TrackedTask))
        await p.emit("b")

    async def main() -> None:
        await p.emit("a")
        await framework.call(inside(current_scope()))
        await p.emit("c")

    assert await run(p, main()) == {"a": "", "b": "a", "c": "b"}
    assert seen == [named, not named]


async def test_calls_side_by_side_are_branches(framework: Any) -> None:
    """Each call of the framework is in a task of the program; what that calls is a part of it."""
    frameworks.add_awaiting("toy_framework")
    p = Program()

    async def two(first: str, second: str) -> None:
        await p.emit(first)
        await framework.call(p.emit(second, ticks=3))

    async def main() -> None:
        await asyncio.gather(framework.call(two("a", "b")), framework.call(two("x", "y")))
        await p.emit("end")

    assert await run(p, main()) == {"a": "", "b": "a", "x": "", "y": "x", "end": "b y"}


async def test_a_group_in_a_part_waits_for_what_others_add(framework: Any) -> None:
    frameworks.add_awaiting("toy_framework")
    p = Program()

    async def grows(group: asyncio.TaskGroup) -> None:
        await p.emit("a")
        group.create_task(p.emit("b", ticks=3))

    async def inside() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(grows(group))
        await p.emit("c")

    async def main() -> None:
        await framework.call(inside())

    assert await run(p, main()) == {"a": "", "b": "a", "c": "b"}


async def test_a_thread_is_in_its_program_when_its_caller_is_over(framework: Any) -> None:
    frameworks.add_awaiting("toy_framework", framework.in_thread)
    p, seen = Program(), []

    async def main() -> None:
        outer = current_scope()
        assert outer is not None
        inner = outer.fork()

        def look() -> None:
            inner.leave(outer)
            scope = current_scope()
            assert scope is not None
            seen.append((scope.owner is p, scope.frontier is inner.frontier))

        enter(inner)
        await framework.call(framework.in_thread(look))

    await run(p, main())
    assert seen == [(True, True)]


async def test_machinery_runs_in_the_scope_of_who_starts_it(framework: Any) -> None:
    frameworks.add_internal("toy_framework")
    p, seen = Program(), []

    async def look() -> None:
        seen.append(current_scope())

    async def main() -> None:
        await asyncio.create_task(framework.machine(look()))
        await asyncio.create_task(framework.machine(look()))
        assert seen == [current_scope()] * 2

    await run(p, main())
    assert len(seen) == 2


async def test_who_is_alone_in_a_scope(framework: Any) -> None:
    """A tracked task is, and so is a part. Machinery may have others beside it, but for the
    scope that it was put into itself."""
    frameworks.add_awaiting("toy_framework")
    p, seen = Program(), []

    async def look() -> None:
        scope = current_scope()
        assert scope is not None
        seen.append(is_alone_in(scope))

    async def main() -> None:
        await look()
        await asyncio.create_task(look())
        await framework.call(look())
        frameworks.add_internal("toy_framework")
        await asyncio.create_task(framework.machine(look()))
        await asyncio.create_task(framework.machine(enter_and_look()))

    async def enter_and_look() -> None:
        scope = current_scope()
        assert scope is not None
        enter(scope.fork())
        await look()
        await asyncio.create_task(framework.machine(look()))

    await run(p, main())
    assert seen == [True, True, True, False, True, False]
