"""Tasks that know their scope: a task factory, and the `Task` subclass that it makes.

A task starts from its creator's frontier; whoever waits for it takes over its own. Nothing of
asyncio is patched. What is seen and what is not: `emission_parents`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Container, Coroutine, Generator, Iterable
from types import CellType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from agentrt.errors import InvariantError
from agentrt.graph.dag import ExecutionDAG
from agentrt.tracking import frameworks
from agentrt.tracking._compat import (
    EAGER_FACTORY,
    given_beside,
    is_ready,
    outer_cell,
    task_of,
    waited_for,
    waiting_group,
)
from agentrt.tracking.current import SCOPE, current_scope, outside, running_task, scope_of
from agentrt.tracking.scope import Family, Scope, family_of

T = TypeVar("T")
_MANY = 256


def start_task(
    coro: Coroutine[Any, Any, T], scope: Scope, *, name: str | None = None
) -> TrackedTask[T]:
    """Start a program's root as a task in ``scope``, on the running loop."""
    context = contextvars.copy_context()
    context.run(SCOPE.set, scope)
    loop = asyncio.get_running_loop()
    return TrackedTask(coro, scope=scope, loop=loop, name=name, context=context)


async def to_its_end(coro: Coroutine[Any, Any, None]) -> None:
    """Await it all, even if this task is cancelled meanwhile: it is ending already."""
    with outside():
        ending = asyncio.create_task(coro)
    while not ending.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([ending])
    ending.result()


async def cancel_tasks(owner: object, spare: asyncio.Task[Any] | None = None) -> None:
    """Cancel every open task of ``owner`` but the current one and ``spare``, and wait until all
    are over.
    """
    family = family_of(owner)
    spared = asyncio.current_task(), spare
    # A task can start others while it is being cancelled.
    while left := [task for task in family if task not in spared and not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left)


def is_alone(owner: object) -> bool:
    """Whether the current task is the only one of ``owner`` that is open."""
    me = asyncio.current_task()
    return all(task is me or task.done() for task in family_of(owner))


def is_stopped(task: asyncio.Task[Any]) -> bool:
    """Whether a task of a program was cancelled from outside of it, by a signal or a limit."""
    return isinstance(task, TrackedTask) and task.is_stopped


def is_single(family: Family) -> bool:
    """Whether at most one task of a program's ``family`` is open."""
    if len(family) < 2:
        return True
    left = 2
    for task in family:
        left -= not task.done()
        if not left:
            return False
    return True


def all_wait(owner: object) -> bool:
    """Whether every open task of ``owner`` waits for something that has not come. Of a program of
    very many tasks it is taken for so.
    """
    family = family_of(owner)
    return len(family) > _MANY or not any(is_ready(task) for task in family)


def only_rests(owner: object, resting: Container[asyncio.Task[Any] | None]) -> bool:
    """Whether every open task of ``owner`` is one of ``resting``, or waits for others of its tasks,
    with no limit of time. One of which that cannot be seen does more.
    """
    family = {task for task in family_of(owner) if not task.done()}
    for task in family:
        if task in resting:
            continue
        awaited = waited_for(task)
        if awaited is None or not all(one.done() or one in family for one in awaited):
            return False
    return bool(family)


def emission_parents(scope: Scope, dag: ExecutionDAG, after: Iterable[int] = ()) -> tuple[int, ...]:
    """The parents of a node that ``scope``'s task emits now, in rising order.

    ``after`` names more nodes of ``dag``, by hand; they must have ended. When the node has
    ended, tell ``scope.frontier.advance(node_id, parents)``.

    Exact: awaiting a task, wait, wait_for, as_completed, a gather or shield that is awaited
    before the next emission, TaskGroup, ``result()`` and ``exception()`` of a task. When a
    gather fails early, only the task that failed counts. Approximate:

    - A gather or shield that is not awaited yet counts once it is over (an edge too many),
      and counts for the task that made it, even if another awaits it (an edge too few).
    - So does a task whose result a callback of the program reads.
    - What passes through a queue, an event, a lock or a plain future is not seen (an edge too
      few): name it in ``after``. Nor are ``done()`` and ``cancelled()``.
    - Tasks that share one context object, given as ``context=``, share a frontier.
    """
    scope.settle()
    if after:
        scope.frontier.include(after)
    return scope.frontier.prune(dag)


class TrackedTask(asyncio.Task[T]):
    """A task of a program. ``scope`` is its own; at its end it holds its last frontier. It
    ``is_stopped`` once it was cancelled from outside of its program.
    """

    def __init__(self, coro: Any, *, scope: Scope, **kwargs: Any) -> None:
        # First, because an eager task runs inside the constructor.
        self.scope = scope
        self._waited = False
        self.is_stopped = False
        super().__init__(coro, **kwargs)
        if not self.done():
            scope.family.add(self)

    def __await__(self) -> Generator[Any, None, T]:
        try:
            return (yield from super().__await__())
        finally:
            self._observed()

    __iter__ = __await__

    def cancel(self, msg: Any | None = None) -> bool:
        """As asyncio's; learns here whether it is somebody else than its own program, whose groups
        and time limits call its tasks off, too.
        """
        scope = current_scope()
        if scope is None or scope.owner is not self.scope.owner:
            self.is_stopped = True
        return super().cancel(msg)

    def result(self) -> T:
        """The task's result; whoever reads it comes after the task."""
        self._observed()
        return super().result()

    def exception(self) -> BaseException | None:
        """The task's exception or None; whoever reads it comes after the task."""
        try:
            error = super().exception()
        except asyncio.CancelledError:
            self._observed()
            raise
        # A callback that sees success so far and goes on to read the result says so.
        if error is not None or running_task() is not None:
            self._observed()
        return error

    def add_done_callback(
        self, fn: Callable[[Any], object], *, context: contextvars.Context | None = None
    ) -> None:
        """As asyncio's; learns here which gather, shield or TaskGroup waits for the task."""
        scope = current_scope() if context is None else context.get(SCOPE)
        group, outer = waiting_group(fn), outer_cell(fn)
        if group is not None:
            self._expect(scope_of(task_of(group)) or scope, group, None)
        elif outer is not None:
            self._expect(scope, fn, outer)
        # An explicit None would mean the context of whoever ends the task, that is, its own.
        context = contextvars.copy_context() if context is None else context
        super().add_done_callback(fn, context=context)

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        """As asyncio's; learns here that asyncio.wait is over."""
        # The last thing that asyncio.wait does, in the task that waited.
        if running_task() is not None:
            self._observed()
        return super().remove_done_callback(fn)

    def _expect(self, scope: Scope | None, key: Any, outer: CellType | None) -> None:
        if scope is None or scope.owner is not self.scope.owner:
            return
        wait = scope.pending.wait_for(key)
        wait.expected += 1
        self._waited = True
        super().add_done_callback(lambda task: wait.arrived(scope, outer, task.scope))

    def _observed(self) -> None:
        """The code that runs now knows that this task is over, if it is."""
        scope = current_scope()
        if scope is None or scope.owner is not self.scope.owner or not self.done():
            return
        if running_task() is not None:
            scope.join(self.scope)
        elif not self._waited:
            # A callback: the task that it runs for may be in the middle of an emission.
            self.scope.seal()
            scope.pending.seen.append(self.scope)


class _Part(asyncio.Task[T]):
    """A task that is awaited at once: no more than a part of the code that started it."""

    __slots__ = ("scope",)

    scope: Scope


def _part(coro: Any, scope: Scope, **kwargs: Any) -> asyncio.Task[Any]:
    if frameworks.is_thread(coro):
        kwargs["context"].run(SCOPE.set, scope.alias())
        return asyncio.Task(coro, **kwargs)
    part: _Part[Any] = _Part(coro, **kwargs)
    part.scope = scope
    return part


class _Factory:
    """The task factory. ``installs`` counts; at 0 it only passes on to the one before it."""

    def __init__(self, previous: Callable[..., Any] | None) -> None:
        self.previous = previous
        self.installs = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> Any:
        # Most tasks of a server are nobody's.
        scope = None if SCOPE.get() is None else current_scope()
        if scope is None or not self.installs or frameworks.is_internal(coro):
            if self.previous is None:
                return asyncio.Task(coro, loop=loop, **kwargs)
            return self.previous(loop, coro, **kwargs)
        if self.previous is not None and self.previous is EAGER_FACTORY:
            kwargs.setdefault("eager_start", True)
        context = kwargs.pop("context", None)
        if context is None:
            context = contextvars.copy_context()
        if frameworks.awaits_at_once():
            return _part(coro, scope, loop=loop, context=context, **kwargs)
        child = scope.fork(coro, () if scope.place is None else given_beside(coro))
        context.run(SCOPE.set, child)
        return TrackedTask(coro, scope=child, loop=loop, context=context, **kwargs)


_FACTORIES: WeakKeyDictionary[asyncio.AbstractEventLoop, _Factory] = WeakKeyDictionary()


def install(loop: asyncio.AbstractEventLoop) -> None:
    """Track tasks that programs create on ``loop``. Each call needs one `uninstall`."""
    factory = _FACTORIES.get(loop)
    if factory is None:
        factory = _FACTORIES[loop] = _Factory(loop.get_task_factory())
        loop.set_task_factory(factory)
    factory.installs += 1


def uninstall(loop: asyncio.AbstractEventLoop) -> None:
    """Undo one `install`. The last one puts back the factory that was there before."""
    factory = _FACTORIES.get(loop)
    if factory is None:
        raise InvariantError("tracking was uninstalled more often than installed")
    factory.installs -= 1
    if factory.installs:
        return
    previous = factory.previous
    del _FACTORIES[loop]
    # Somebody may have wrapped ours since: then it stays, and only passes on.
    if loop.get_task_factory() is factory:
        loop.set_task_factory(previous)
