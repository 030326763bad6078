"""What the tracking needs of asyncio that asyncio does not promise; no other module names it.

Tested on the versions below. At another one run `tests/tracking/test_compat.py` first: it has a
test for each name here, and says what has changed.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import tasks
from collections.abc import Callable, Sequence
from types import CellType, FrameType
from typing import Any

PYTHON_VERSIONS = "3.11"
STARTING_MODULES = frozenset({"asyncio.base_events", "asyncio.events", "asyncio.tasks"})
"""The modules of asyncio that call a task factory for whoever starts a task."""
EAGER_FACTORY: object = getattr(asyncio, "eager_task_factory", None)
"""The task factory that starts tasks eagerly, from Python 3.12 on."""


def outer_cell(callback: Callable[[Any], object]) -> CellType | None:
    """The cell with the future of a gather or shield, if ``callback`` is what it waits with."""
    closure = getattr(callback, "__closure__", None)
    if not closure or getattr(callback, "__module__", "") != tasks.__name__:
        return None
    names: tuple[str, ...] = callback.__code__.co_freevars
    return closure[names.index("outer")] if "outer" in names else None


def waiting_group(callback: Callable[[Any], object]) -> asyncio.TaskGroup | None:
    """The TaskGroup that waits with ``callback``, if it is one's."""
    group = getattr(callback, "__self__", None)
    return group if isinstance(group, asyncio.TaskGroup) else None


def task_of(group: asyncio.TaskGroup) -> asyncio.Task[Any] | None:
    """The task that opened ``group``: it waits at the group's end, whoever adds tasks."""
    task: asyncio.Task[Any] | None = getattr(group, "_parent_task", None)
    return task


def is_exiting(group: asyncio.TaskGroup) -> bool:
    """Whether the body of ``group`` has ended."""
    return bool(group._exiting)  # type: ignore[attr-defined]  # no stub has it


def waited_for(task: asyncio.Task[Any]) -> Sequence[asyncio.Future[Any]] | None:
    """What a task that stands still waits for: a task, a gather's or what `asyncio.wait` was given
    without a limit of time. None where that is something else, or cannot be seen.
    """
    future = getattr(task, "_fut_waiter", None)
    if isinstance(future, asyncio.Task):
        return [future]
    if isinstance(future, tasks._GatheringFuture):  # type: ignore[attr-defined]  # no stub has it
        return list(future._children)
    frame = _innermost(task.get_coro())
    if frame is None:
        return None
    if frame.f_code is tasks._wait.__code__:  # type: ignore[attr-defined]  # nor this
        known = frame.f_locals
        return list(known["fs"]) if known["timeout"] is None else None
    if frame.f_code is asyncio.TaskGroup.__aexit__.__code__:
        return list(frame.f_locals["self"]._tasks)
    return None


def is_ready(task: asyncio.Task[Any]) -> bool:
    """Whether a task that does not run now goes on in the next turn of its loop."""
    if task.done():
        return False
    future = getattr(task, "_fut_waiter", None)
    return future is None or future.done()


def _innermost(coro: Any) -> FrameType | None:
    """The frame of the coroutine that ``coro`` waits in."""
    while (inner := getattr(coro, "cr_await", None)) is not None and hasattr(inner, "cr_await"):
        coro = inner
    return getattr(coro, "cr_frame", None)


def given_beside(coro: object) -> Sequence[Any]:
    """What `asyncio.as_completed` was given, if it starts the task of ``coro`` now.

    It makes a set of that, so that the order of its tasks is another one each time.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in STARTING_MODULES:
        for name in ("fs", "aws"):  # the latter from Python 3.13 on
            given = frame.f_locals.get(name)
            if isinstance(given, list | tuple) and any(one is coro for one in given):
                return given
        frame = frame.f_back
    return ()
