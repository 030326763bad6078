"""Whose node it is: node functions, several programs, outside, the task factory."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

import pytest

from agentrt import tracking
from agentrt.errors import InvariantError
from agentrt.graph import Node
from agentrt.tracking import TrackedTask, current_scope, enter_node
from agentrt.tracking.scope import Scope
from tests.graph.integrity import check_integrity
from tests.tracking.toy import Program, run, ticks


async def test_paths_of_nested_node_functions() -> None:
    p = Program()
    paths = {}

    async def leaf(name: str) -> None:
        with enter_node("leaf"):
            await p.emit(name)

    async def main() -> None:
        with enter_node("expand") as scope:
            assert scope is current_scope()
            await asyncio.gather(leaf("x"), leaf("y"))
            await p.emit("z")
        await p.emit("end")
        paths.update({node.name: node.scope for node in p.dag.nodes()})

    edges = await run(p, main())
    assert edges == {"x": "", "y": "", "z": "x y", "end": "z"}
    assert paths == {
        "x": "main/expand/leaf",
        "y": "main/expand/leaf",
        "z": "main/expand",
        "end": "main",
    }


async def test_node_function_outside_any_program() -> None:
    with enter_node("alone") as scope:
        assert scope is None
        assert current_scope() is None


async def test_two_programs_on_one_loop() -> None:
    """Each awaits tasks of the other; neither learns of the other's nodes."""
    p, q = Program("p"), Program("q")

    async def other() -> None:
        await asyncio.gather(q.emit("qx"), q.emit("qy", 3))
        await q.emit("qz")

    async def main() -> None:
        await p.emit("a")
        task = tracking.TrackedTask(other(), scope=Scope(q, "other"))
        await asyncio.gather(p.emit("b", 2), p.emit("c"))
        await task
        assert task.result() is None
        await p.emit("d")

    assert await run(p, main()) == {"a": "", "b": "a", "c": "a", "d": "b c"}
    assert q.edges() == {"qx": "", "qy": "", "qz": "qx qy"}
    check_integrity(q.dag)


async def test_programs_do_not_learn_of_each_other_through_one_task() -> None:
    """p gathers q's task, which a callback of q reads: q learns of it, p does not."""
    p, q = Program("p"), Program("q")

    async def second(tasks: list[asyncio.Task[Node]], started: asyncio.Event) -> None:
        task = asyncio.create_task(q.emit("x", 5))
        tasks.append(task)
        started.set()
        await ticks(2)
        task.add_done_callback(lambda done: done.result())
        await ticks(9)
        await q.emit("y")

    async def main() -> None:
        await p.emit("a")
        tasks: list[asyncio.Task[Node]] = []
        started = asyncio.Event()
        other = tracking.TrackedTask(second(tasks, started), scope=Scope(q, "second"))
        await started.wait()
        await asyncio.gather(*tasks)
        await other
        await p.emit("b")

    assert await run(p, main()) == {"a": "", "b": "a"}
    assert q.edges() == {"x": "", "y": "x"}
    scope = Scope(p)
    ended = Scope(q)
    ended.frontier.advance(0, ())
    scope.join(ended)
    assert scope.frontier.ids == ()


async def test_after_names_parents_by_hand() -> None:
    """What comes through a queue is not seen; ``after`` says it, and what it implies goes."""
    p = Program()
    queue: asyncio.Queue[Node] = asyncio.Queue()

    async def producer() -> None:
        await p.emit("first")
        await queue.put(await p.emit("item"))
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(producer())
        node = await queue.get()
        await p.emit("unsaid")
        await p.emit("said", after=(node.id, 0))
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await p.emit("last")

    assert await run(p, main()) == {
        "first": "",
        "item": "first",
        "unsaid": "",
        "said": "item unsaid",
        "last": "said",
    }


async def test_outside_makes_tasks_that_are_nobodys() -> None:
    p = Program()
    kept: list[asyncio.Task[Any]] = []

    async def main() -> None:
        with tracking.outside():
            kept.append(asyncio.create_task(asyncio.Event().wait()))
        mine = asyncio.create_task(asyncio.Event().wait())
        kept.append(mine)
        await p.emit("a")

    await run(p, main())
    theirs, mine = kept
    assert not isinstance(theirs, TrackedTask)
    assert not theirs.done()
    assert mine.cancelled()
    theirs.cancel()


async def test_cancel_tasks_waits_for_cleanup_that_starts_more() -> None:
    p = Program()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            asyncio.create_task(asyncio.Event().wait())  # noqa: RUF006
            await p.emit("cleanup")

    async def main() -> None:
        asyncio.create_task(stubborn())  # noqa: RUF006
        await ticks(2)
        await tracking.cancel_tasks(p)
        await p.emit("end")

    before = asyncio.all_tasks()
    await run(p, main())
    assert [node.state.value for node in p.dag.nodes()] == ["done", "done"]
    assert asyncio.all_tasks() == before


async def test_generators_that_a_program_drops_are_closed_from_outside_to_inside() -> None:
    p, closed = Program(), list[str]()

    async def inner() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            await ticks(3)
            closed.append("inner")

    async def outer() -> AsyncGenerator[int, None]:
        try:
            async with aclosing(inner()) as items:
                async for item in items:
                    yield item
        finally:
            closed.append("outer")

    async def main() -> None:
        async for _ in outer():
            break

    await run(p, main())
    assert closed == ["inner", "outer"]


async def test_given_context_is_used() -> None:
    p = Program()
    var: contextvars.ContextVar[int] = contextvars.ContextVar("var", default=0)
    seen = []

    async def child() -> None:
        seen.append(var.get())
        await p.emit("x")

    async def main() -> None:
        context = contextvars.copy_context()
        context.run(var.set, 7)
        await p.emit("a")
        await asyncio.create_task(child(), context=context, name="named")
        await p.emit("b")

    assert await run(p, main()) == {"a": "", "x": "a", "b": "x"}
    assert seen == [7]


async def test_install_counts_and_restores() -> None:
    loop = asyncio.get_running_loop()
    made = []

    def mine(loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        made.append(coro)
        return asyncio.Task(coro, loop=loop, **kwargs)

    loop.set_task_factory(mine)
    tracking.install(loop)
    tracking.install(loop)
    await asyncio.create_task(ticks(1))
    assert len(made) == 1
    tracking.uninstall(loop)
    tracking.enter(Scope(object()))
    assert isinstance(asyncio.create_task(ticks(1)), TrackedTask)
    tracking.uninstall(loop)
    assert loop.get_task_factory() is mine
    with pytest.raises(InvariantError):
        tracking.uninstall(loop)
    loop.set_task_factory(None)
    await ticks(3)


async def test_a_factory_put_over_ours_stays() -> None:
    loop = asyncio.get_running_loop()
    tracking.install(loop)
    ours = loop.get_task_factory()
    assert ours is not None

    def over(loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> Any:
        assert ours is not None
        return ours(loop, coro, **kwargs)

    loop.set_task_factory(over)
    tracking.uninstall(loop)
    assert loop.get_task_factory() is over
    tracking.enter(Scope(object()))
    task = asyncio.create_task(ticks(1))
    assert not isinstance(task, TrackedTask)
    await task
    loop.set_task_factory(None)
