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
    """A context manager that runs its body in a scope. It is a class, because a generator would be
    too slow for every piece of an output.
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
    """Run the body inside the node function ``name``: the path of its nodes ends with that name.

    Does nothing outside any program, so that a node function can be tested on its own.
    """
    scope = current_scope()
    return _InScope(None if scope is None else scope.within(name))


def within(scope: Scope) -> AbstractContextManager[Scope | None]:
    """Run the body in ``scope``."""
    return _InScope(scope)


def enter(scope: Scope | None) -> None:
    """Put the code of this context (a task, or a thread's copy) into ``scope`` from here on.

    For callbacks of a framework, which run before and after code and cannot wrap it.
    """
    if scope is not None:
        scope.entered_in = id(running_task())
    SCOPE.set(scope)


def is_alone_in(scope: Scope) -> bool:
    """Return whether the calling code runs in the task to which ``scope`` belongs."""
    task = running_task()
    return task is not None and (scope.entered_in == id(task) or scope_of(task) is scope)


def outside() -> AbstractContextManager[object]:
    """Run the body outside any program. Tasks that it starts belong to no program, and outlive it.

    For things that programs share, such as the reader task of an engine, which starts during the
    first call.
    """
    return _InScope(None)
