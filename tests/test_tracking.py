"""Plain asyncio programs run for real; the parents found are compared with hand-written ones.

`emit` is a toy call: a node that takes a number of turns of the event loop. The last test
compares random programs with sets of everything that each task knows, kept by hand.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt import tracking
from agentrt.errors import InvariantError
from agentrt.graph import ExecutionDAG, Node, NodeKind
from agentrt.tracking import Scope, TrackedTask, current_scope, emission_parents, enter_node


class Boom(Exception):
    """What a failing branch raises."""

    known: Known


class Program:
    """A running program: its DAG, and its nodes by name."""

    def __init__(self, name: str = "p", dag: type[ExecutionDAG] = ExecutionDAG) -> None:
        self.dag = dag(name, "test")
        self.at = 0.0

    async def emit(
        self, name: str, ticks: int = 1, after: tuple[int, ...] = (), fails: bool = False
    ) -> Node:
        scope = current_scope()
        assert scope is not None
        assert scope.owner is self
        parents = emission_parents(scope, self.dag, after)
        self.at += 1
        node = self.dag.add(NodeKind.CALL, name, scope.path, parents, self.at)
        try:
            for _ in range(ticks):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.dag.cancel(node.id, self.at)
            raise
        else:
            if fails:
                self.dag.fail(node.id, self.at, "boom")
                raise Boom(name)
            self.dag.finish(node.id, self.at)
        finally:
            scope.frontier.advance(node.id, parents)
        return node

    def edges(self) -> dict[str, str]:
        """Each node's parents by name, in one string."""
        names = [node.name for node in self.dag.nodes()]
        return {n.name: " ".join(sorted(names[p] for p in n.parents)) for n in self.dag.nodes()}


@contextmanager
def installed() -> Iterator[None]:
    loop = asyncio.get_running_loop()
    tracking.install(loop)
    try:
        yield
    finally:
        tracking.uninstall(loop)


async def run(program: Program, main: Coroutine[Any, Any, None]) -> dict[str, str]:
    with installed():
        await tracking.start_task(main, Scope(program, "main"))
        await tracking.cancel_tasks(program)
    program.dag.check_integrity()
    return program.edges()


async def ticks(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# -- one after another, fan-out and join ---------------------------------------------------


async def test_sequence_and_loop() -> None:
    p = Program()

    async def main() -> None:
        for name in "abcd":
            await p.emit(name)

    assert await run(p, main()) == {"a": "", "b": "a", "c": "b", "d": "c"}


async def test_gather() -> None:
    p = Program()

    async def main() -> None:
        await p.emit("a")
        await asyncio.gather(p.emit("b", 3), p.emit("c", 1), ticks(5))
        await p.emit("d")

    assert await run(p, main()) == {"a": "", "b": "a", "c": "a", "d": "b c"}


async def test_nested_gathers_of_chains() -> None:
    p = Program()

    async def branch(name: str) -> None:
        await p.emit(name + "1")
        await asyncio.gather(p.emit(name + "2"), p.emit(name + "3", 4))
        await p.emit(name + "4")

    async def main() -> None:
        await asyncio.gather(branch("x"), branch("y"))
        await p.emit("end")

    assert await run(p, main()) == {
        "x1": "",
        "x2": "x1",
        "x3": "x1",
        "x4": "x2 x3",
        "y1": "",
        "y2": "y1",
        "y3": "y1",
        "y4": "y2 y3",
        "end": "x4 y4",
    }


async def test_join_through_tasks_that_emit_nothing_themselves() -> None:
    p = Program()

    async def outer() -> None:
        await asyncio.gather(p.emit("b"), p.emit("c", 2))

    async def main() -> None:
        await p.emit("a")
        await asyncio.gather(outer(), outer_idle())
        await p.emit("d")

    async def outer_idle() -> None:
        await asyncio.gather(ticks(1), ticks(2))

    assert await run(p, main()) == {"a": "", "b": "a", "c": "a", "d": "b c"}


async def test_gather_of_layers_without_a_join_between() -> None:
    p = Program()

    async def main() -> None:
        await asyncio.gather(p.emit("a"), p.emit("b"))
        await asyncio.gather(p.emit("c"), p.emit("d"))

    assert await run(p, main()) == {"a": "", "b": "", "c": "a b", "d": "a b"}


async def test_gather_of_tasks_that_are_done_already() -> None:
    p = Program()

    async def main() -> None:
        tasks = [asyncio.create_task(p.emit("a")), asyncio.create_task(p.emit("b"))]
        await ticks(9)
        await p.emit("before")
        await asyncio.gather(*tasks)
        await p.emit("after")

    assert await run(p, main()) == {"a": "", "b": "", "before": "", "after": "a b before"}


# -- tasks started early --------------------------------------------------------------------


async def test_task_awaited_late() -> None:
    p = Program()

    async def main() -> None:
        await p.emit("a")
        early = asyncio.create_task(p.emit("early"))
        await p.emit("b", 5)
        await p.emit("c")
        await early
        await p.emit("d")
        await early
        await p.emit("e")

    assert await run(p, main()) == {
        "a": "",
        "early": "a",
        "b": "a",
        "c": "b",
        "d": "c early",
        "e": "d",
    }


async def test_background_task_is_no_parent() -> None:
    p = Program()

    async def main() -> None:
        task = asyncio.create_task(p.emit("background"))
        task.add_done_callback(lambda _: None)
        await p.emit("a", 5)
        await p.emit("b")
        assert task.done()

    assert await run(p, main()) == {"background": "", "a": "", "b": "a"}


async def test_one_task_awaits_another_and_main_awaits_both() -> None:
    p = Program()

    async def second(first: asyncio.Task[Node]) -> None:
        await first
        await p.emit("t2")

    async def main() -> None:
        await p.emit("a")
        t1 = asyncio.create_task(p.emit("t1"))
        t2 = asyncio.create_task(second(t1))
        await t1
        await t2
        await p.emit("b")

    assert await run(p, main()) == {"a": "", "t1": "a", "t2": "t1", "b": "t2"}


async def test_result_read_instead_of_awaited() -> None:
    p = Program()

    async def main() -> None:
        good = asyncio.create_task(p.emit("good"))
        bad = asyncio.create_task(p.emit("bad", fails=True))
        await ticks(9)
        await p.emit("a")
        assert good.result().name == "good"
        await p.emit("b")
        assert isinstance(bad.exception(), Boom)
        await p.emit("c")

    assert await run(p, main()) == {"good": "", "bad": "", "a": "", "b": "a good", "c": "b bad"}


async def test_tasks_handed_on_to_another_task() -> None:
    p = Program()

    async def make(name: str) -> asyncio.Task[Node]:
        await p.emit(name)
        return asyncio.create_task(p.emit(name + "-inner", 5))

    async def main() -> None:
        one, two = await asyncio.gather(make("x"), make("y"))
        await p.emit("a")
        await one
        await p.emit("b")
        await two

    assert await run(p, main()) == {
        "x": "",
        "y": "",
        "x-inner": "x",
        "y-inner": "y",
        "a": "x y",
        "b": "a x-inner",
    }


# -- asyncio's other ways to wait --------------------------------------------------------------


async def test_wait_first_completed_loop() -> None:
    p = Program()

    async def main() -> None:
        pending = {asyncio.create_task(p.emit(f"t{i}", 1 + 6 * i)) for i in range(3)}
        step = 0
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            assert len(done) == 1
            await p.emit(f"s{step}")
            step += 1

    assert await run(p, main()) == {
        "t0": "",
        "t1": "",
        "t2": "",
        "s0": "t0",
        "s1": "s0 t1",
        "s2": "s1 t2",
    }


async def test_wait_with_a_timeout_joins_what_is_done() -> None:
    p = Program()

    async def main() -> None:
        quick = asyncio.create_task(p.emit("quick"))
        slow = asyncio.create_task(asyncio.Event().wait())
        await asyncio.wait([quick, slow], timeout=0.001)
        await p.emit("a")

    assert await run(p, main()) == {"quick": "", "a": "quick"}


async def test_as_completed() -> None:
    p = Program()

    async def main() -> None:
        for i, step in enumerate(asyncio.as_completed([p.emit("slow", 9), p.emit("quick", 1)])):
            await step
            await p.emit(f"s{i}")

    edges = await run(p, main())
    assert edges == {"slow": "", "quick": "", "s0": "quick", "s1": "s0 slow"}


async def test_wait_for_in_time_and_too_late() -> None:
    p = Program()

    async def never() -> None:
        await p.emit("begun")
        try:
            await asyncio.Event().wait()
        finally:
            await p.emit("cleanup")

    async def main() -> None:
        await asyncio.wait_for(p.emit("a"), 60)
        await p.emit("b")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(never(), 0.001)
        await p.emit("c")

    assert await run(p, main()) == {
        "a": "",
        "b": "a",
        "begun": "b",
        "cleanup": "begun",
        "c": "cleanup",
    }


async def test_timeout_around_a_gather_joins_what_it_waits_for() -> None:
    p = Program()

    async def stuck(name: str) -> None:
        await p.emit(name)
        await asyncio.Event().wait()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.gather(stuck("a"))
        await p.emit("b")

    assert await run(p, main()) == {"a": "", "b": "a"}


async def test_shield() -> None:
    """1. shielded and in time 2. shielded and given up 3. the task itself, later."""
    p = Program()

    async def slow(gate: asyncio.Event) -> None:
        await p.emit("slow")
        await gate.wait()
        await p.emit("slow2")

    async def main() -> None:
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

    assert await run(p, main()) == {
        "a": "",
        "b": "a",
        "slow": "b",
        "slow2": "slow",
        "c": "b",
        "d": "c",
        "e": "d slow2",
    }


async def test_shield_of_a_task_that_fails_or_is_cancelled() -> None:
    p = Program()

    async def quits() -> None:
        await p.emit("quits")
        raise asyncio.CancelledError

    async def main() -> None:
        with pytest.raises(Boom):
            await asyncio.shield(p.emit("fails", fails=True))
        await p.emit("a")
        with pytest.raises(asyncio.CancelledError):
            await asyncio.shield(quits())
        await p.emit("b")

    assert await run(p, main()) == {"fails": "", "a": "fails", "quits": "a", "b": "quits"}


async def test_thread_that_emits_and_waits() -> None:
    """A tool in an OS thread calls back into the loop twice; main goes on after it."""
    p = Program()

    def tool(loop: asyncio.AbstractEventLoop) -> None:
        for name in ("t1", "t2"):
            asyncio.run_coroutine_threadsafe(p.emit(name), loop).result()

    async def main() -> None:
        await p.emit("a")
        await asyncio.to_thread(tool, asyncio.get_running_loop())
        await p.emit("b")

    assert await run(p, main()) == {"a": "", "t1": "a", "t2": "t1", "b": "t2"}


async def test_async_generator() -> None:
    p = Program()

    async def stream() -> AsyncIterator[Node]:
        for name in ("g1", "g2"):
            yield await p.emit(name)

    async def main() -> None:
        async with aclosing(stream()) as nodes:  # type: ignore[type-var]
            async for node in nodes:
                await p.emit("after-" + node.name)

    assert await run(p, main()) == {"g1": "", "after-g1": "g1", "g2": "after-g1", "after-g2": "g2"}


# -- TaskGroup ----------------------------------------------------------------------------------


async def test_group_whose_body_emits_meanwhile() -> None:
    p = Program()

    async def main() -> None:
        await p.emit("a")
        async with asyncio.TaskGroup() as group:
            group.create_task(p.emit("child", 1))
            await p.emit("body", 5)
            group.create_task(p.emit("child2", 5))
            await p.emit("body2")
        await p.emit("b")

    assert await run(p, main()) == {
        "a": "",
        "child": "a",
        "body": "a",
        "child2": "body",
        "body2": "body",
        "b": "body2 child child2",
    }


async def test_group_whose_children_were_all_done_at_its_end() -> None:
    p = Program()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(p.emit("x"))
            group.create_task(p.emit("y"))
            await ticks(9)
            await p.emit("body")
        await p.emit("b")

    assert await run(p, main()) == {"x": "", "y": "", "body": "", "b": "body x y"}


async def test_group_ends_a_task_without_another_emission() -> None:
    p = Program()

    async def branch() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(p.emit("x"))
            group.create_task(p.emit("y", 4))

    async def main() -> None:
        await asyncio.create_task(branch())
        await p.emit("b")

    assert await run(p, main()) == {"x": "", "y": "", "b": "x y"}


async def test_fork_after_a_group_starts_from_its_children() -> None:
    p = Program()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(p.emit("x"))
        await asyncio.create_task(p.emit("b"))

    assert await run(p, main()) == {"x": "", "b": "x"}


async def test_group_that_grows_from_inside() -> None:
    p = Program()

    async def child(group: asyncio.TaskGroup) -> None:
        await p.emit("child")
        group.create_task(p.emit("grandchild", 3))
        await p.emit("child2", 9)
        await p.emit("child3")

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child(group))
        await p.emit("b")

    assert await run(p, main()) == {
        "child": "",
        "grandchild": "child",
        "child2": "child",
        "child3": "child2",
        "b": "child3 grandchild",
    }


async def test_group_child_awaited_inside_the_body() -> None:
    p = Program()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(p.emit("x"))
            group.create_task(p.emit("y"))
            await task
            await p.emit("body")
        await p.emit("b")

    assert await run(p, main()) == {"x": "", "y": "", "body": "x", "b": "body y"}


async def test_group_with_a_failing_child() -> None:
    """All children of a failed group were waited for, the cancelled ones too."""
    p = Program()

    async def main() -> None:
        with suppress(BaseExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(p.emit("fails", fails=True))
                group.create_task(p.emit("cancelled", 99))
        await p.emit("b")

    assert await run(p, main()) == {"fails": "", "cancelled": "", "b": "cancelled fails"}


async def test_two_groups_one_in_the_other() -> None:
    p = Program()

    async def main() -> None:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(p.emit("o", 1))
            async with asyncio.TaskGroup() as inner:
                inner.create_task(p.emit("i", 6))
            await p.emit("a")
        await p.emit("b")

    assert await run(p, main()) == {"o": "", "i": "", "a": "i", "b": "a o"}


# -- failure and cancellation -----------------------------------------------------------------


async def test_failure_is_an_end_like_another() -> None:
    p = Program()

    async def main() -> None:
        with suppress(Boom):
            await p.emit("a", fails=True)
        await p.emit("b")

    assert await run(p, main()) == {"a": "", "b": "a"}


async def test_gather_that_returns_exceptions_waits_for_all() -> None:
    p = Program()

    async def quits() -> None:
        await p.emit("c", 2)
        raise asyncio.CancelledError

    async def main() -> None:
        await asyncio.gather(
            p.emit("a", fails=True), p.emit("b", 5), quits(), return_exceptions=True
        )
        await p.emit("d")

    assert await run(p, main()) == {"a": "", "b": "", "c": "", "d": "a b c"}


async def test_gather_that_raises_waited_for_the_failed_one_only() -> None:
    """1. quick ends 2. fails fails 3. slow goes on, and nobody waits for it."""
    p = Program()

    async def main() -> None:
        with suppress(Boom):
            await asyncio.gather(p.emit("quick", 1), p.emit("fails", 3, fails=True), slow())
        await p.emit("a", 9)
        await p.emit("b")

    async def slow() -> None:
        await p.emit("slow", 5)

    assert await run(p, main()) == {"quick": "", "fails": "", "slow": "", "a": "fails", "b": "a"}


async def test_cancelled_branch() -> None:
    p = Program()

    async def main() -> None:
        task = asyncio.create_task(p.emit("branch", 99))
        await p.emit("a")
        task.cancel()
        await p.emit("b")
        with suppress(asyncio.CancelledError):
            await task
        await p.emit("c")

    assert await run(p, main()) == {"branch": "", "a": "", "b": "a", "c": "b branch"}


async def test_cancelling_the_waiter_cancels_and_joins_the_awaited() -> None:
    p = Program()

    async def waiter() -> None:
        task = asyncio.create_task(p.emit("inner", 99))
        try:
            await task
        finally:
            await p.emit("cleanup")

    async def main() -> None:
        task = asyncio.create_task(waiter())
        await ticks(3)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await p.emit("a")

    assert await run(p, main()) == {"inner": "", "cleanup": "inner", "a": "cleanup"}


async def test_cancelled_before_it_began() -> None:
    p = Program()

    async def main() -> None:
        await p.emit("a")
        task = asyncio.create_task(p.emit("never"))
        task.cancel()
        await asyncio.wait([task])
        await p.emit("b")

    assert await run(p, main()) == {"a": "", "b": "a"}


# -- gathers that are not awaited at once -------------------------------------------------------


async def test_gather_still_going_is_no_parent() -> None:
    """Some of its tasks have ended, but the gather has not."""
    p = Program()

    async def main() -> None:
        both = asyncio.gather(p.emit("quick", 1), p.emit("slow", 30))
        await p.emit("a", 5)
        await p.emit("b")
        await both
        await p.emit("c")

    assert await run(p, main()) == {"quick": "", "slow": "", "a": "", "b": "a", "c": "b quick slow"}


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


async def test_exception_read_in_a_callback_counts_only_if_there_is_one() -> None:
    """A callback that looks for failures, as logging does, waits for nothing."""
    p = Program()

    async def main() -> None:
        for fails in (False, True):
            task = asyncio.create_task(p.emit(f"x{fails}", fails=fails))
            task.add_done_callback(lambda done: done.exception())
            await p.emit(f"a{fails}", 9)
        await p.emit("b")

    assert await run(p, main()) == {
        "xFalse": "",
        "aFalse": "",
        "xTrue": "aFalse",
        "aTrue": "aFalse",
        "b": "aTrue xTrue",
    }


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


# -- scopes ---------------------------------------------------------------------------------------


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
        task = tracking.start_task(other(), Scope(q, "other"))
        await asyncio.gather(p.emit("b", 2), p.emit("c"))
        await task
        assert task.result() is None
        await p.emit("d")

    assert await run(p, main()) == {"a": "", "b": "a", "c": "a", "d": "b c"}
    assert q.edges() == {"qx": "", "qy": "", "qz": "qx qy"}
    q.dag.check_integrity()


async def test_bind_runs_a_program_in_the_task_that_is_there() -> None:
    p, q = Program("p"), Program("q")
    with installed(), tracking.bind(Scope(p, "main")):
        await p.emit("a")
        async with asyncio.TaskGroup() as group:
            group.create_task(p.emit("x"))
            await ticks(5)
            with tracking.bind(Scope(q, "inner")):
                await q.emit("q")
        await p.emit("b")
    assert p.edges() == {"a": "", "x": "a", "b": "x"}
    assert q.edges() == {"q": ""}
    assert current_scope() is None


async def test_bound_scope_waits_for_its_group_whoever_adds_to_it() -> None:
    p = Program()

    async def child(group: asyncio.TaskGroup) -> None:
        await p.emit("child")
        group.create_task(p.emit("grandchild", 5))

    with installed(), tracking.bind(Scope(p, "main")):
        async with asyncio.TaskGroup() as group:
            group.create_task(child(group))
        await p.emit("b")
    assert p.edges() == {"child": "", "grandchild": "child", "b": "grandchild"}


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
        other = tracking.start_task(second(tasks, started), Scope(q, "second"))
        await started.wait()
        await asyncio.gather(*tasks)
        await other
        await p.emit("b")

    assert await run(p, main()) == {"a": "", "b": "a"}
    assert q.edges() == {"x": "", "y": "x"}
    scope = Scope(p)
    ended = Scope(q)
    ended.frontier.advance(0)
    scope.join(ended)
    assert len(scope.frontier) == 0


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
    with tracking.bind(Scope(object())):
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
    with tracking.bind(Scope(object())):
        task = asyncio.create_task(ticks(1))
    assert not isinstance(task, TrackedTask)
    await task
    loop.set_task_factory(None)


# -- cost and memory ------------------------------------------------------------------------------


class Counting(ExecutionDAG):
    """Counts how often a node is looked at."""

    looked = 0

    def node(self, node_id: int) -> Node:
        self.looked += 1
        return super().node(node_id)


async def test_ten_thousand_calls_cost_the_same_each() -> None:
    p = Program(dag=Counting)

    async def main() -> None:
        for _ in range(5_000):
            await p.emit("", 0)
            await asyncio.gather(p.emit("", 0))
            assert len(current_scope().frontier) <= 1  # type: ignore[union-attr]

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
        await tracking.start_task(main(), Scope(p))
    assert isinstance(p.dag, Counting)
    assert p.dag.looked <= 3 * (1000 * 2 + 1000 + 2)
    p.dag.check_integrity()
    assert [len(p.dag.parents(i)) for i in (1, 1001, 2002)] == [1, 1000, 1000]


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


# -- random programs ----------------------------------------------------------------------------


@dataclass
class Known:
    """The truth, kept by hand: all nodes that had ended before now, in one task."""

    all: set[int]
    visible: list[tuple[asyncio.Task[Known], Known]] = field(default_factory=list)

    def copy(self) -> Known:
        return Known(set(self.all), list(self.visible))


class Interpreter:
    """Runs a random program twice in one: on asyncio, and on sets."""

    def __init__(self) -> None:
        self.program = Program()
        self.before: list[set[int]] = []  # by node: everything that had ended before it
        self.truth: list[tuple[int, ...]] = []
        self.ends: list[Known] = []

    async def emit(self, known: Known, count: int) -> None:
        above: set[int] = set()
        for node_id in known.all:
            above |= self.before[node_id]
        self.before.append(set(known.all))
        self.truth.append(tuple(sorted(known.all - above)))
        node = await self.program.emit("", count)
        known.all.add(node.id)

    async def thread(self, steps: list[Any], known: Known) -> Known:
        """One task. What it knows at its end is in ``known``, also when it fails."""
        try:
            for step in steps:
                if step == "fail":
                    raise Boom
                await getattr(self, "do_" + step[0])(known, *step[1:])
        except Boom as error:
            error.known = known
            raise
        finally:
            self.ends.append(known)
        return known

    async def calm(self, steps: list[Any], known: Known) -> Known:
        """A task that may break off, but does not fail."""
        with suppress(Boom):
            await self.thread(steps, known)
        return known

    async def do_emit(self, known: Known, count: int) -> None:
        await self.emit(known, count)

    async def do_gather(self, known: Known, branches: list[list[Any]], keep: bool) -> None:
        inners = [known.copy() for _ in branches]
        pairs = zip(branches, inners, strict=True)
        try:
            await asyncio.gather(*(self.thread(*pair) for pair in pairs), return_exceptions=keep)
        except Boom as error:
            # If others were still going, or ended later, nobody waited for them.
            ended = [k for k in self.ends if any(k is inner for inner in inners)]
            if len(ended) < len(inners) or ended[-1] is not error.known:
                inners = [error.known]
        for inner in inners:
            known.all |= inner.all

    async def do_group(self, known: Known, body: list[Any], branches: list[list[Any]]) -> None:
        inners = []
        async with asyncio.TaskGroup() as group:
            for steps in branches:
                inners.append(known.copy())
                group.create_task(self.calm(steps, inners[-1]))
            for step in body:
                if step[0] == "emit":
                    await self.emit(known, step[1])
        for inner in inners:
            known.all |= inner.all

    async def do_spawn(self, known: Known, steps: list[Any]) -> None:
        inner = known.copy()
        known.visible.append((asyncio.create_task(self.thread(steps, inner)), inner))

    async def do_await(self, known: Known, index: int, shielded: bool) -> None:
        if not known.visible:
            return
        task, inner = known.visible[index % len(known.visible)]
        with suppress(Boom):
            await (asyncio.shield(task) if shielded else task)
        known.all |= inner.all

    async def do_any(self, known: Known, indexes: list[int]) -> None:
        if not known.visible:
            return
        some = dict(known.visible[index % len(known.visible)] for index in indexes)
        done, _ = await asyncio.wait(some, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            known.all |= some[task].all

    async def do_all(self, known: Known, indexes: list[int]) -> None:
        if not known.visible:
            return
        some = dict(known.visible[index % len(known.visible)] for index in indexes)
        await asyncio.gather(*some, return_exceptions=True)
        for inner in some.values():
            known.all |= inner.all

    async def do_each(self, known: Known, branches: list[list[Any]], count: int) -> None:
        for step in asyncio.as_completed([self.calm(b, known.copy()) for b in branches]):
            known.all |= (await step).all
            await self.emit(known, count)

    async def do_limited(self, known: Known, steps: list[Any]) -> None:
        inner = known.copy()
        with suppress(Boom):
            await asyncio.wait_for(self.thread(steps, inner), 60)
        known.all |= inner.all


_emit = st.tuples(st.just("emit"), st.integers(0, 4))
_index = st.integers(0, 9)


def _steps(inner: st.SearchStrategy[list[Any]]) -> st.SearchStrategy[list[Any]]:
    branches = st.lists(inner, min_size=1, max_size=3)
    return st.lists(
        st.one_of(
            _emit,
            _emit,
            st.tuples(st.just("gather"), branches, st.booleans()),
            st.tuples(st.just("group"), st.lists(_emit, max_size=2), branches),
            st.tuples(st.just("spawn"), inner),
            st.tuples(st.just("await"), _index, st.booleans()),
            st.tuples(st.just("any"), st.lists(_index, min_size=1, max_size=3)),
            st.tuples(st.just("all"), st.lists(_index, min_size=1, max_size=3)),
            st.tuples(st.just("each"), branches, st.integers(0, 2)),
            st.tuples(st.just("limited"), inner),
        ),
        min_size=1,
        max_size=6,
    )


_leaf = st.lists(st.one_of(_emit, _emit, st.just("fail")), min_size=1, max_size=3)
_programs = _steps(st.recursive(_leaf, _steps, max_leaves=8))


async def _compare(steps: list[Any]) -> None:
    interpreter = Interpreter()
    p = interpreter.program

    async def main() -> None:
        await interpreter.calm(steps, Known(set()))

    # Some tasks fail and nobody asks.
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    await run(p, main())
    assert [node.parents for node in p.dag.nodes()] == interpreter.truth


@given(_programs)
@settings(max_examples=300, deadline=None)
def test_random_programs_have_exactly_the_true_parents(steps: list[Any]) -> None:
    asyncio.run(_compare(steps))
