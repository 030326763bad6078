"""The scope of the running code, and entering a scope."""

from __future__ import annotations

import asyncio
import contextvars
from contextlib import AbstractContextManager
from typing import Any

from agentrt.tracking.scope import Scope

SCOPE: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("agentrt_scope", default=None)


def current_scope() -> Scope | None:
    """Return the scope of the calling code, or None outside any program."""
    scope = SCOPE.get()
    while scope is not None and scope.over:
        scope = scope.back
    return scope


def running_task() -> asyncio.Task[Any] | None:
    """Return the current task, or None in a callback or a thread without a loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running event loop, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def scope_of(task: asyncio.Task[Any] | None) -> Scope | None:
    """Return the scope of ``task`` if it is a task of a program, else None."""
    return getattr(task, "scope", None)


class _InScope(AbstractContextManager[Scope | None]):
    """A context manager that runs its body in a scope. This is a class, because it is used for
    every piece of a streamed output, and a generator would be too slow.
    """

    __slots__ = ("_scope", "_token")

    def __init__(self, scope: Scope | None) -> None:
        self._scope = scope

    def __enter__(self) -> Scope | None:
        self._token = SCOPE.set(self._scope)
        return self._scope

    def __exit__(self, *error: object) -> None:
        SCOPE.reset(self._token)


def enter_node(name: str) -> AbstractContextManager[Scope | None]:
    """Return a context manager that runs its body inside the node function ``name``: the path of
    the body's nodes ends with this name.

    Outside any program this function has no effect, so that a node function can be tested on its
    own.
    """
    scope = current_scope()
    return _InScope(None if scope is None else scope.within(name))


def within(scope: Scope) -> AbstractContextManager[Scope | None]:
    """Return a context manager that runs its body in ``scope``."""
    return _InScope(scope)


def enter(scope: Scope | None) -> None:
    """From now on, run the code of the current `contextvars` context in ``scope``, or outside any
    program if ``scope`` is None.

    This function is for the callbacks of a framework, which are called before and after a program's
    code, and so cannot use a context manager around the code.
    """
    if scope is not None:
        scope.entered_in = id(running_task())
    SCOPE.set(scope)


def is_alone_in(scope: Scope) -> bool:
    """Return whether the calling code runs in the task to which ``scope`` belongs."""
    task = running_task()
    return task is not None and (scope.entered_in == id(task) or scope_of(task) is scope)


def outside() -> AbstractContextManager[object]:
    """Return a context manager that runs its body outside any program. Tasks that the body starts
    belong to no program, and outlive the program that ran the body.

    Use this for objects that programs share, such as the reader task of an engine, which starts
    during a program's first call.
    """
    return _InScope(None)
