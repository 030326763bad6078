"""Tasks of frameworks, which are not branches of the programs that the frameworks run.

The integration of a framework registers the framework's modules once, at import. The task factory
checks every task that starts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from agentrt.tracking._compat import STARTING_MODULES

_INTERNAL: set[str] = set()
_INTERNAL_CODES: set[CodeType] = set()  # functions of these modules that have started a task
_AWAITING: set[str] = set()
_THREADS: set[CodeType] = set()


def add_internal(module: str) -> None:
    """Register a module whose coroutines, started as tasks, run in the scope of their starter.

    Such tasks start the program's own work, and no code of the program awaits the tasks themselves.
    """
    _INTERNAL.add(module)


def add_awaiting(module: str, *threads: Callable[..., Any]) -> None:
    """Register a module that awaits each task right after starting it. Such tasks run in the scope
    of their starter.

    ``threads`` are async functions that run something in a thread, which continues even if nothing
    waits for it any more.
    """
    _AWAITING.add(module)
    _THREADS.update(function.__code__ for function in threads)


def is_internal(coro: Any) -> bool:
    """Return whether ``coro`` is of a module that `add_internal` registered."""
    if getattr(coro, "cr_code", None) in _INTERNAL_CODES:
        return True
    frame = getattr(coro, "cr_frame", None)
    if frame is None or frame.f_globals.get("__name__") not in _INTERNAL:
        return False
    _INTERNAL_CODES.add(frame.f_code)
    return True


def awaits_at_once() -> bool:
    """Return whether the code that is starting a task awaits it right away. Called by a task
    factory.
    """
    if not _AWAITING:
        return False
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in STARTING_MODULES:
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") in _AWAITING


def is_thread(coro: Any) -> bool:
    """Return whether ``coro`` is a call of a registered function that runs something in a
    thread.
    """
    return getattr(coro, "cr_code", None) in _THREADS
