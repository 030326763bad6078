"""Which scope the code that asks is in, and how code comes into one."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from agentrt.errors import InvariantError
from agentrt.tracking.scope import Scope

SCOPE: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("agentrt_scope", default=None)
# Tasks that `bind` gave a scope; for a TaskGroup, which knows only its task.
_BOUND: WeakKeyDictionary[asyncio.Task[Any], Scope] = WeakKeyDictionary()


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
    """The scope that ``task`` was bound to, or started in."""
    if task is None:
        return None
    return _BOUND.get(task) or getattr(task, "scope", None)


@contextmanager
def _inside(scope: Scope | None) -> Iterator[Scope | None]:
    token = SCOPE.set(scope)
    try:
        yield scope
    finally:
        SCOPE.reset(token)


@contextmanager
def bind(scope: Scope) -> Iterator[Scope]:
    """Run the body, a program's root, in ``scope``, inside the current task."""
    task = running_task()
    if task is None:
        raise InvariantError("a program's scope is bound to a task, and there is none")
    before = _BOUND.get(task)
    _BOUND[task] = scope
    try:
        with _inside(scope):
            yield scope
    finally:
        del _BOUND[task]
        if before is not None:
            _BOUND[task] = before


def enter_node(name: str) -> AbstractContextManager[Scope | None]:
    """Run the body inside the node function ``name``: its emissions' path ends with it.

    Outside any program this does nothing, so that a node function can be tested alone.
    """
    scope = current_scope()
    return _inside(None if scope is None else scope.within(name))


def enter(scope: Scope | None) -> None:
    """From here on, the code of this context (a task, or a thread's copy) is in ``scope``.

    For a framework's callbacks, which run before and after code that they cannot wrap. Who
    can wrap it uses `bind` or `enter_node`.
    """
    if scope is not None:
        scope.entered_in = id(running_task())
    SCOPE.set(scope)


def is_alone_in(scope: Scope) -> bool:
    """Whether the code that asks runs in the task that ``scope`` is of, and not beside others."""
    task = running_task()
    if task is None:
        return False
    return scope.entered_in == id(task) or getattr(task, "scope", None) is scope


def outside() -> AbstractContextManager[object]:
    """Run the body outside any program: a task that it starts is nobody's, and outlives it.

    For what programs share, such as an engine that starts its reader task inside the first
    call.
    """
    return _inside(None)
