"""Tasks that frameworks start for their own purposes, which are not branches of a program.

The integration of a framework registers the framework's modules once, when it is imported. The task
factory checks for every new task whether a registered module starts it.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable
from types import CodeType, FrameType
from typing import Any

from agentrt.tracking._compat import STARTING_MODULES, closed_generator

_INTERNAL: set[str] = set()
_INTERNAL_CODES: set[CodeType] = set()  # functions of these modules that were started as tasks
_AWAITING: set[str] = set()
_THREADS: set[CodeType] = set()
_STREAMS: set[CodeType] = set()


def add_internal(module: str) -> None:
    """Register a module whose coroutines run in the scope of the code that starts them as tasks.

    Such tasks run the program's own code, and no code of the program awaits the tasks themselves.
    """
    _INTERNAL.add(module)


def add_awaiting(module: str, *threads: Callable[..., Any]) -> None:
    """Register a module that awaits each task right after starting the task. Such tasks run in the
    scope of the code that starts them.

    ``threads`` are async functions that run code in a thread. The thread continues even if no task
    waits for it any more.
    """
    _AWAITING.add(module)
    _THREADS.update(function.__code__ for function in threads)


def add_stream(function: Callable[..., AsyncGenerator[Any, None]]) -> None:
    """Register a function whose generators do not run a program's own code. A task that closes such
    a generator, which a program's code has dropped, is not a branch of the program.
    """
    _STREAMS.add(function.__code__)


def closes_stream(coro: object) -> bool:
    """Return whether ``coro`` closes a generator of a function that `add_stream` has registered."""
    generator = closed_generator(coro)
    return generator is not None and generator.ag_code in _STREAMS


def is_internal(coro: Any) -> bool:
    """Return whether ``coro`` is a coroutine of a module that `add_internal` has registered."""
    if getattr(coro, "cr_code", None) in _INTERNAL_CODES:
        return True
    frame = getattr(coro, "cr_frame", None)
    if frame is None or frame.f_globals.get("__name__") not in _INTERNAL:
        return False
    _INTERNAL_CODES.add(frame.f_code)
    return True


def awaits_at_once() -> bool:
    """Return whether the code that is starting a task belongs to a module that `add_awaiting` has
    registered. Must be called by a task factory.
    """
    if not _AWAITING:
        return False
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in STARTING_MODULES:
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") in _AWAITING


def is_thread(coro: Any) -> bool:
    """Return whether ``coro`` is a call of a function that `add_awaiting` has registered in
    ``threads``.
    """
    return getattr(coro, "cr_code", None) in _THREADS
