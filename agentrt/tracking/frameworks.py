"""Which asyncio tasks are a framework's own, and no branches of the program that it runs.

A framework's integration names its modules once, at import; the task factory asks for every
task that starts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from agentrt.tracking._compat import STARTING_MODULES

_INTERNAL: set[str] = set()
_INTERNAL_CODES: set[CodeType] = set()  # functions of those modules that were seen
_AWAITING: set[str] = set()
_THREADS: set[CodeType] = set()


def add_internal(module: str) -> None:
    """Tasks whose coroutine is of this module run in the scope of whoever starts them.

    They start what the program asked for, and nobody waits for these tasks themselves.
    """
    _INTERNAL.add(module)


def add_awaiting(module: str, *threads: Callable[..., Any]) -> None:
    """Tasks that this module's code starts run in its own scope: it awaits each at once.

    The async functions ``threads`` go on in a thread when nobody waits for them any more.
    """
    _AWAITING.add(module)
    _THREADS.update(function.__code__ for function in threads)


def is_internal(coro: Any) -> bool:
    """Whether ``coro`` is of a module that `add_internal` named."""
    if getattr(coro, "cr_code", None) in _INTERNAL_CODES:
        return True
    frame = getattr(coro, "cr_frame", None)
    if frame is None or frame.f_globals.get("__name__") not in _INTERNAL:
        return False
    _INTERNAL_CODES.add(frame.f_code)
    return True


def awaits_at_once() -> bool:
    """Whether the code that starts a task now, in a task factory, awaits it at once."""
    if not _AWAITING:
        return False
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in STARTING_MODULES:
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") in _AWAITING


def is_thread(coro: Any) -> bool:
    """Whether ``coro`` is a call of one of the functions that run something in a thread."""
    return getattr(coro, "cr_code", None) in _THREADS
