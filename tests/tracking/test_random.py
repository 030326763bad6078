"""Random programs against sets of everything that each task knows, kept by hand."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tracking.toy import Boom, Program, run


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
@settings(max_examples=100, deadline=None)
def test_random_programs_have_exactly_the_true_parents(steps: list[Any]) -> None:
    asyncio.run(_compare(steps))
