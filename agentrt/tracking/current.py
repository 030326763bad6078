"""Which scope the code that asks is in, and how code comes into one."""

from __future__ import annotations

import asyncio
import contextvars
from contextlib import AbstractContextManager
from typing import Any

from agentrt.tracking.scope import Scope

SCOPE: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("agentrt_scope", default=None)


def current_scope() -> Scope | None:
    """The scope of the code that asks, or None outside any program."""
    scope = SCOPE.get()
    while scope is not None and scope.over:
        scope = scope.back
    return scope


def running_task() -> asyncio.Task[Any] | None:
    """The task that the code runs in, or None in a callback or a thread without a loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that the code runs on, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def scope_of(task: asyncio.Task[Any] | None) -> Scope | None:
    """The scope that ``task`` was started in, if it is a program's."""
    return getattr(task, "scope", None)


class _Inside(AbstractContextManager[Scope | None]):
    """A class, and no generator: this is done for every piece of an output."""

    __slots__ = ("_scope", "_token")

    def __init__(self, scope: Scope | None) -> None:
        self._scope = scope

    def __enter__(self) -> Scope | None:
        self._token = SCOPE.set(self._scope)
        return self._scope

    def __exit__(self, *error: object) -> None:
        SCOPE.reset(self._token)


def enter_node(name: str) -> AbstractContextManager[Scope | None]:
    """Run the body inside the node function ``name``: its emissions' path ends with it.

    Outside any program this does nothing, so that a node function can be tested alone.
    """
    scope = current_scope()
    return _Inside(None if scope is None else scope.within(name))


def within(scope: Scope) -> AbstractContextManager[Scope | None]:
    """Run the body in ``scope``."""
    return _Inside(scope)


def enter(scope: Scope | None) -> None:
    """From here on, the code of this context (a task, or a thread's copy) is in ``scope``.

    For a framework's callbacks, which run before and after code that they cannot wrap.
    """
    if scope is not None:
        scope.entered_in = id(running_task())
    SCOPE.set(scope)


def is_alone_in(scope: Scope) -> bool:
    """Whether the code that asks runs in the task that ``scope`` is of, and not beside others."""
    task = running_task()
    return task is not None and (scope.entered_in == id(task) or scope_of(task) is scope)


def outside() -> AbstractContextManager[object]:
    """Run the body outside any program: a task that it starts is nobody's, and outlives it.

    For what programs share, such as an engine that starts its reader task inside the first
    call.
    """
    return _Inside(None)
