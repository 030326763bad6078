"""Which asyncio tasks are a foreign framework's own, and no branches of the program that it runs.

A framework names its modules once, at import; the tracking asks for every task that starts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

_MACHINERY: set[str] = set()
_CODES: set[CodeType] = set()  # those of `_MACHINERY` that were seen
_AWAITING: set[str] = set()
_THREADS: set[CodeType] = set()
_ASYNCIO = frozenset({"asyncio.base_events", "asyncio.events", "asyncio.tasks"})


def see_through(module: str) -> None:
    """Tasks whose coroutine is of this module run in the scope of whoever starts them.

    They are machinery: it starts what the program asked for, and nobody waits for the
    machinery itself.
    """
    _MACHINERY.add(module)


def see_through_calls_of(module: str, *threads: Callable[..., Any]) -> None:
    """Tasks that this module's code starts run in its own scope: it awaits each at once.

    The async functions ``threads`` go on in a thread when nobody waits for them any more.
    """
    _AWAITING.add(module)
    _THREADS.update(function.__code__ for function in threads)


def is_machinery(coro: Any) -> bool:
    """Whether ``coro`` is of a module that is seen through."""
    if getattr(coro, "cr_code", None) in _CODES:
        return True
    frame = getattr(coro, "cr_frame", None)
    if frame is None or frame.f_globals.get("__name__") not in _MACHINERY:
        return False
    _CODES.add(frame.f_code)
    return True


def awaits_at_once() -> bool:
    """Whether the code that starts a task now, in a task factory, awaits it at once."""
    if not _AWAITING:
        return False
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in _ASYNCIO:
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") in _AWAITING


def is_thread(coro: Any) -> bool:
    """Whether ``coro`` is a call of one of the functions that run something in a thread."""
    return getattr(coro, "cr_code", None) in _THREADS
