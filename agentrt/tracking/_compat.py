"""Private parts of asyncio that tracking needs. No other module uses them.

The module was tested with `PYTHON_VERSIONS`. For another version of Python, run
`tests/tracking/test_compat.py` first: it tests each function of this module, and shows what has
changed.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from asyncio import tasks
from collections.abc import Callable, Sequence
from types import AsyncGeneratorType, CellType, FrameType
from typing import Any

PYTHON_VERSIONS = "3.11"
STARTING_MODULES = frozenset({"asyncio.base_events", "asyncio.events", "asyncio.tasks"})
"""The modules of asyncio that call the task factory when code starts a task."""
_CLOSING = "async_generator_athrow"
"""The name of the type of ``generator.aclose()``."""
EAGER_FACTORY: object = getattr(asyncio, "eager_task_factory", None)
"""The task factory that starts tasks eagerly; None before Python 3.12."""

task_on: Callable[[asyncio.AbstractEventLoop], asyncio.Task[Any] | None] = (
    asyncio.current_task if sys.version_info >= (3, 12) else tasks._current_tasks.get  # type: ignore[attr-defined]  # not in the stubs
)
"""Return the task that an event loop runs now, or None. It is called for every token, and Python
3.11 has `asyncio.current_task` in Python only.
"""


def outer_cell(callback: Callable[[Any], object]) -> CellType | None:
    """Return the cell with the future of a gather or shield if ``callback`` is the callback of a
    gather or shield; else None.
    """
    closure = getattr(callback, "__closure__", None)
    if not closure or getattr(callback, "__module__", "") != tasks.__name__:
        return None
    names: tuple[str, ...] = callback.__code__.co_freevars
    return closure[names.index("outer")] if "outer" in names else None


def waiting_group(callback: Callable[[Any], object]) -> asyncio.TaskGroup | None:
    """Return the TaskGroup to which ``callback`` belongs, or None."""
    group = getattr(callback, "__self__", None)
    return group if isinstance(group, asyncio.TaskGroup) else None


def task_of(group: asyncio.TaskGroup) -> asyncio.Task[Any] | None:
    """Return the task that opened ``group``. At the end of the group, this task also waits for
    tasks that other tasks have added.
    """
    task: asyncio.Task[Any] | None = getattr(group, "_parent_task", None)
    return task


def is_exiting(group: asyncio.TaskGroup) -> bool:
    """Return whether the body of ``group`` has ended."""
    return bool(group._exiting)  # type: ignore[attr-defined]  # not in the stubs


def waited_for(task: asyncio.Task[Any]) -> Sequence[asyncio.Future[Any]] | None:
    """Return the futures for which a suspended task waits without a timeout: a task, the tasks of a
    gather or a TaskGroup, or the arguments of `asyncio.wait`.

    Returns None if the task waits for anything else, or if it is unknown what the task waits for.
    """
    future = getattr(task, "_fut_waiter", None)
    if isinstance(future, asyncio.Task):
        return [future]
    if isinstance(future, tasks._GatheringFuture):  # type: ignore[attr-defined]  # not in the stubs
        return list(future._children)
    frame = _innermost(task.get_coro())
    if frame is None:
        return None
    if frame.f_code is tasks._wait.__code__:  # type: ignore[attr-defined]  # not in the stubs
        known = frame.f_locals
        return list(known["fs"]) if known["timeout"] is None else None
    if frame.f_code is asyncio.TaskGroup.__aexit__.__code__:
        return list(frame.f_locals["self"]._tasks)
    return None


def is_ready(task: asyncio.Task[Any]) -> bool:
    """Return whether a suspended task will run in the next iteration of its loop."""
    if task.done():
        return False
    future = getattr(task, "_fut_waiter", None)
    return future is None or future.done()


def closes_generator(task: asyncio.Task[Any]) -> bool:
    """Return whether a task closes an asynchronous generator. Event loops start such a task for
    each generator that code has dropped before its end.
    """
    return type(task.get_coro()).__name__ == _CLOSING


def closed_generator(coro: object) -> AsyncGeneratorType[Any, Any] | None:
    """Return the asynchronous generator that the awaitable ``coro`` closes; None if ``coro`` closes
    no generator.
    """
    if type(coro).__name__ != _CLOSING:
        return None
    referents = gc.get_referents(coro)
    return next((each for each in referents if isinstance(each, AsyncGeneratorType)), None)


def _innermost(coro: Any) -> FrameType | None:
    """Return the frame of the innermost coroutine in which ``coro`` waits."""
    while (inner := getattr(coro, "cr_await", None)) is not None and hasattr(inner, "cr_await"):
        coro = inner
    return getattr(coro, "cr_frame", None)


def given_beside(coro: object) -> Sequence[Any]:
    """Return the arguments of `asyncio.as_completed` if `asyncio.as_completed` is starting a task
    for ``coro`` now; else an empty sequence.

    `asyncio.as_completed` puts its arguments into a set, so it starts the tasks in an arbitrary
    order.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in STARTING_MODULES:
        for name in ("fs", "aws"):  # the parameter is called "aws" from Python 3.13 on
            arguments = frame.f_locals.get(name)
            if isinstance(arguments, list | tuple) and any(each is coro for each in arguments):
                return arguments
        frame = frame.f_back
    return ()
