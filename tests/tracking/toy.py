"""A toy program to run on asyncio for real: its nodes take turns of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from agentrt import tracking
from agentrt.graph import ExecutionDAG, Node, NodeKind
from agentrt.tracking import current_scope, emission_parents
from agentrt.tracking.scope import Scope
from tests.graph.integrity import check_integrity


class Boom(Exception):
    """What a failing branch raises."""

    known: Any


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
        await tracking.TrackedTask(main, scope=Scope(program, "main"))
        await tracking.cancel_tasks(program)
    check_integrity(program.dag)
    return program.edges()


Story = Callable[[Program], Coroutine[Any, Any, None]]


def leads_to(**edges: str) -> Callable[[Story], Callable[[], Coroutine[Any, Any, None]]]:
    """Make a test of a program's code: these are its nodes, each with its parents' names."""

    def as_test(story: Story) -> Callable[[], Coroutine[Any, Any, None]]:
        async def test() -> None:
            program = Program()
            assert await run(program, story(program)) == edges

        test.__doc__ = story.__doc__
        return test

    return as_test


async def ticks(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
