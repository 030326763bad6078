"""What the tracking reads inside asyncio is there: a failure here names what has changed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from agentrt.tracking import _compat


def changed(what: str) -> str:
    known, here = _compat.PYTHON_VERSIONS, sys.version.split()[0]
    return f"asyncio of Python {here}: {what}; agentrt.tracking._compat knows Python {known}"


class Watched(asyncio.Future[None]):
    """Keeps the callbacks that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.callbacks: list[Callable[[Any], object]] = []

    def add_done_callback(self, fn: Callable[[Any], object], *, context: Any = None) -> None:
        self.callbacks.append(fn)
        super().add_done_callback(fn, context=context)


async def test_the_task_of_a_loop_is_the_current_task() -> None:
    loop, callbacks = asyncio.get_running_loop(), asyncio.Event()
    seen: list[object] = []

    def call_back() -> None:
        seen.append(_compat.task_on(loop))
        callbacks.set()

    loop.call_soon(call_back)
    assert _compat.task_on(loop) is asyncio.current_task(), changed("no `_current_tasks`")
    await callbacks.wait()
    assert seen == [None], changed("`_current_tasks` has a task in a callback")


@pytest.mark.parametrize("wait", [asyncio.gather, asyncio.shield])
async def test_gather_and_shield_keep_their_future_in_a_cell(wait: Callable[..., Any]) -> None:
    inner = Watched()
    outer = wait(inner)
    cells = [_compat.outer_cell(callback) for callback in inner.callbacks]
    futures = [cell.cell_contents for cell in cells if cell is not None]
    assert futures == [outer], changed(f"{wait.__name__}'s callback has no `outer` in its closure")
    inner.set_result(None)
    await outer


async def test_a_task_group_says_who_waits_and_when() -> None:
    callbacks: list[Callable[[Any], object]] = []

    class Task(asyncio.Task[Any]):
        def add_done_callback(self, fn: Callable[[Any], object], *, context: Any = None) -> None:
            callbacks.append(fn)
            super().add_done_callback(fn, context=context)

    async def inside() -> None:
        assert _compat.is_exiting(group), changed("TaskGroup has no `_exiting` at its end")

    asyncio.get_running_loop().set_task_factory(lambda loop, coro, **terms: Task(coro, loop=loop))
    async with asyncio.TaskGroup() as group:
        assert not _compat.is_exiting(group), changed("TaskGroup's `_exiting` is true in its body")
        assert _compat.task_of(group) is asyncio.current_task(), changed("no `_parent_task`")
        group.create_task(inside())
    asyncio.get_running_loop().set_task_factory(None)
    groups = [_compat.waiting_group(callback) for callback in callbacks]
    assert group in groups, changed("a TaskGroup's callback is no method of it")


async def test_a_task_factory_is_called_from_known_modules() -> None:
    starters: list[str] = []

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **terms: Any) -> Any:
        frame = sys._getframe(1)
        while (name := frame.f_globals["__name__"]) != __name__:
            starters.append(name)
            assert frame.f_back is not None
            frame = frame.f_back
        return asyncio.Task(coro, loop=loop)

    asyncio.get_running_loop().set_task_factory(factory)
    await asyncio.create_task(asyncio.sleep(0))
    await asyncio.ensure_future(asyncio.sleep(0))
    asyncio.get_running_loop().set_task_factory(None)
    assert starters, changed("a task factory is not called by asyncio's Python code")
    assert set(starters) <= _compat.STARTING_MODULES, changed(f"tasks start in {set(starters)}")


async def test_what_a_task_waits_for_is_seen() -> None:
    tasks = [asyncio.create_task(asyncio.Event().wait()) for _ in range(2)]

    async def alone() -> None:
        await tasks[0]

    async def gathered() -> None:
        await asyncio.gather(*tasks)

    async def waited() -> None:
        await asyncio.wait(tasks)

    async def in_time() -> None:
        await asyncio.wait(tasks, timeout=60)

    async def grouped() -> None:
        async with asyncio.TaskGroup() as group:
            started.append(group.create_task(asyncio.Event().wait()))

    started: list[asyncio.Task[Any]] = []
    waiting = [asyncio.create_task(one()) for one in (alone, gathered, waited, in_time, grouped)]
    for _ in range(3):
        await asyncio.sleep(0)
    seen = [_compat.waited_for(task) for task in waiting]
    what = [None if one is None else set(one) for one in seen]
    expected = [{tasks[0]}, set(tasks), set(tasks), None, set(started)]
    assert what == expected, changed("`_fut_waiter`, `_children`, or a frame of asyncio differs")
    assert _compat.waited_for(tasks[0]) is None
    for task in (*waiting, *tasks):
        task.cancel()


async def test_which_tasks_go_on_in_the_next_turn() -> None:
    event = asyncio.Event()

    async def yields() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    waiting, moving = asyncio.create_task(event.wait()), asyncio.create_task(yields())
    ended = asyncio.create_task(asyncio.sleep(0))
    for _ in range(3):
        await asyncio.sleep(0)
    seen = [_compat.is_ready(task) for task in (waiting, moving, ended)]
    event.set()
    assert [*seen, _compat.is_ready(waiting)] == [False, True, False, True], changed(
        "`_fut_waiter`"
    )
    await asyncio.wait([waiting, moving])


async def test_which_generator_a_task_closes_is_seen() -> None:
    async def numbers() -> AsyncGenerator[int, None]:
        yield 1

    generator = numbers()
    await anext(generator)
    closing = generator.aclose()
    assert _compat.closed_generator(closing) is generator, changed("the type of `aclose()`")
    await closing
    task = asyncio.sleep(0)
    assert _compat.closed_generator(task) is None
    await task
