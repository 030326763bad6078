"""Tasks that know their scope: a subclass of `asyncio.Task`, and the task factory that makes such
tasks.

A new task starts with a copy of its creator's frontier. When another task has waited for it, its
frontier is joined into the frontier of the waiting task. asyncio itself is not patched.
`emission_parents` describes which waits are noticed.
"""

from __future__ import annotations

import asyncio
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
    closes_generator,
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
_CLOSING_S = 5.0
"""Maximum number of seconds that the end of a program waits for generators that are being closed.
"""


async def to_its_end(coro: Coroutine[Any, Any, None], *, ends_task: bool = False) -> None:
    """Await ``coro`` to its end, even if the current task is cancelled while it waits.

    `CancelledError` is then raised where the task next waits, so that the task can first note what
    ``coro`` has done. If ``ends_task`` is True, this is the last work of the task, and such a
    cancellation has no effect.
    """
    task, is_cancelled = asyncio.current_task(), False
    with outside():
        ending = asyncio.create_task(coro)
    while not ending.done():
        try:
            await asyncio.wait([ending])
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled and not ends_task and task is not None:
        task.uncancel()  # so that the number of cancellations stays as it is
        task.cancel()
    ending.result()


async def cancel_tasks(owner: object, spare: asyncio.Task[Any] | None = None) -> None:
    """Cancel all open tasks of ``owner`` except the current task and ``spare``, and wait until they
    have ended. Generators that the tasks have dropped are closed first (`generators_closed`).
    """
    family = family_of(owner)
    spared = asyncio.current_task(), spare
    await generators_closed(owner)
    # A task can start other tasks while it is being cancelled, so look again.
    while left := [task for task in family if task not in spared and not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left)
        await generators_closed(owner)


async def generators_closed(owner: object) -> None:
    """Wait until the event loop has closed the asynchronous generators that the code of ``owner``
    has dropped, such as streams that were not read to their end. Wait at most `_CLOSING_S` seconds.

    If the closing of a generator were cancelled before it began, Python would close the generators
    inside of this generator in an arbitrary order, and several times.
    """
    family, loop = family_of(owner), asyncio.get_running_loop()
    deadline = loop.time() + _CLOSING_S
    # A generator that is closed may drop further generators, so look again.
    while closing := [task for task in family if not task.done() and closes_generator(task)]:
        if (left := deadline - loop.time()) <= 0:
            return
        await asyncio.wait(closing, timeout=left)


def is_alone(owner: object) -> bool:
    """Return whether the current task is the only open task of ``owner``. Tasks that close a stream
    that the code has dropped do not count.
    """
    me = asyncio.current_task()
    return not any(
        isinstance(task, TrackedTask) and task is not me and not task.done()
        for task in family_of(owner)
    )


def is_stopped(task: asyncio.Task[Any]) -> bool:
    """Return whether a task of a program was cancelled from outside the program, for example by a
    signal or a timeout.
    """
    return isinstance(task, TrackedTask) and task.is_stopped


def is_single(family: Family) -> bool:
    """Return whether at most one task in ``family``, the tasks of a program, has not ended."""
    if len(family) < 2:
        return True
    left = 2
    for task in family:
        left -= not task.done()
        if not left:
            return False
    return True


def all_wait(owner: object) -> bool:
    """Return whether no open task of ``owner`` can continue now, because each task waits for an
    event that has not happened yet. For programs with more than `_MANY` tasks, return True without
    checking.
    """
    family = family_of(owner)
    return len(family) > _MANY or not any(is_ready(task) for task in family)


def only_rests(owner: object, resting: Container[asyncio.Task[Any] | None]) -> bool:
    """Return whether each open task of ``owner`` is in ``resting``, or waits without a timeout for
    other tasks of ``owner``.

    The result is False if ``owner`` has no open task, or if it is unknown what a task waits for.
    """
    family = {task for task in family_of(owner) if not task.done()}
    for task in family:
        if task in resting:
            continue
        awaited = waited_for(task)
        if awaited is None or not all(future.done() or future in family for future in awaited):
            return False
    return bool(family)


def emission_parents(scope: Scope, dag: ExecutionDAG, after: Iterable[int] = ()) -> tuple[int, ...]:
    """Return the parents of a node that the task of ``scope`` emits now, as ids in rising order.

    ``after`` has the ids of further nodes of ``dag`` that the new node depends on; these nodes must
    have ended. When the new node has ended, call ``scope.frontier.advance(node_id, parents)``.

    The result is exact for awaiting a task, for ``wait``, ``wait_for`` and ``as_completed``, for a
    gather or shield that is awaited before the next node, for a TaskGroup, and for ``result()`` and
    ``exception()`` of a task. When a gather fails early, only the task that failed counts. The
    result is approximate in these cases:

    - A gather or shield that has ended counts as awaited, even if it is not awaited yet (an edge
      too many). It counts for the task that made it, even if another task awaits it (an edge too
      few).
    - A task whose result a callback of the program reads counts as awaited, too.
    - Values that are passed through a queue, an event, a lock or a plain future are not noticed (an
      edge too few); name the nodes in ``after``. Calls of ``done()`` and ``cancelled()`` are not
      noticed either.
    - Tasks that share a context object, passed as ``context=``, share a frontier.
    """
    scope.settle()
    if after:
        scope.frontier.include(after)
    return scope.frontier.prune(dag)


class TrackedTask(asyncio.Task[T]):
    """A task of a program, which runs in its own ``scope``. When the task has ended, the scope has
    the last frontier of the task. ``is_stopped`` is True if the task was cancelled from outside the
    program.

    The task runs in ``context``, by default in a copy of the current context. The other arguments
    are those of `asyncio.Task`.
    """

    def __init__(
        self,
        coro: Coroutine[Any, Any, T],
        *,
        scope: Scope,
        context: contextvars.Context | None = None,
        **kwargs: Any,
    ) -> None:
        # Set the scope first, because an eager task runs inside the constructor.
        context = contextvars.copy_context() if context is None else context
        context.run(SCOPE.set, scope)
        self.scope = scope
        self._waited = False
        self.is_stopped = False
        super().__init__(coro, context=context, **kwargs)
        if not self.done():
            scope.family.add(self)

    def __await__(self) -> Generator[Any, None, T]:
        try:
            return (yield from super().__await__())
        finally:
            self._observed()

    __iter__ = __await__

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the task as asyncio does, and note whether the cancellation comes from outside the
        program. TaskGroups and timeouts in the program's code cancel tasks of the program, too.
        """
        scope = current_scope()
        if scope is None or scope.owner is not self.scope.owner:
            self.is_stopped = True
        return super().cancel(msg)

    def result(self) -> T:
        """Return the task's result. The next nodes of the calling code depend on this task."""
        self._observed()
        return super().result()

    def exception(self) -> BaseException | None:
        """Return the task's exception, or None if the task has succeeded. The next nodes of the
        calling code depend on this task; in a callback, only if the task has failed.
        """
        try:
            error = super().exception()
        except asyncio.CancelledError:
            self._observed()
            raise
        # asyncio's own callbacks call this method, too. So in a callback, a successful end counts
        # only if the callback also reads the result.
        if error is not None or running_task() is not None:
            self._observed()
        return error

    def add_done_callback(
        self, fn: Callable[[Any], object], *, context: contextvars.Context | None = None
    ) -> None:
        """Add a callback as asyncio does, and note which gather, shield or TaskGroup waits for the
        task.
        """
        scope = current_scope() if context is None else context.get(SCOPE)
        group, outer = waiting_group(fn), outer_cell(fn)
        if group is not None:
            self._expect(scope_of(task_of(group)) or scope, group, None)
        elif outer is not None:
            self._expect(scope, fn, outer)
        # Without a context, the callback would run in the context of the task itself.
        context = contextvars.copy_context() if context is None else context
        super().add_done_callback(fn, context=context)

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        """Remove a callback as asyncio does, and note the end of an `asyncio.wait`."""
        # At its end, asyncio.wait calls this method in the task that waited.
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
        """Record that the running code has learned of this task's end, if it has ended."""
        scope = current_scope()
        if scope is None or scope.owner is not self.scope.owner or not self.done():
            return
        if running_task() is not None:
            scope.join(self.scope)
        elif not self._waited:
            # This is a callback. The task to which it belongs may be in the middle of emitting a
            # node, so join later.
            self.scope.seal()
            scope.pending.seen.append(self.scope)


class _AwaitedTask(asyncio.Task[T]):
    """A task that is awaited right away, so that it counts as a part of the code that started
    it.
    """

    __slots__ = ("scope",)

    scope: Scope


def _part(
    coro: Any, scope: Scope, *, context: contextvars.Context | None = None, **kwargs: Any
) -> asyncio.Task[Any]:
    if frameworks.is_thread(coro):
        context = contextvars.copy_context() if context is None else context
        context.run(SCOPE.set, scope.alias())
        return asyncio.Task(coro, context=context, **kwargs)
    part: _AwaitedTask[Any] = _AwaitedTask(coro, context=context, **kwargs)
    part.scope = scope
    return part


class _Factory:
    """The task factory. ``installs`` is the number of its installations. If the number is 0, the
    factory only calls the previous factory.
    """

    def __init__(self, previous: Callable[..., Any] | None) -> None:
        self.previous = previous
        self.installs = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> Any:
        # Check the variable first, because most tasks of a server belong to no program.
        scope = None if SCOPE.get() is None else current_scope()
        if scope is None or not self.installs or frameworks.is_internal(coro):
            if self.previous is None:
                return asyncio.Task(coro, loop=loop, **kwargs)
            return self.previous(loop, coro, **kwargs)
        if frameworks.closes_stream(coro):
            # The end of the program waits for this task, but it has no place among the tasks that
            # the program has started: Python and not the code decides when it starts.
            with outside():
                closing = asyncio.Task(coro, loop=loop, **kwargs)
            scope.family.add(closing)
            return closing
        if self.previous is not None and self.previous is EAGER_FACTORY:
            kwargs.setdefault("eager_start", True)
        if frameworks.awaits_at_once():
            return _part(coro, scope, loop=loop, **kwargs)
        child = scope.fork(coro, () if scope.place is None else given_beside(coro))
        return TrackedTask(coro, scope=child, loop=loop, **kwargs)


_FACTORIES: WeakKeyDictionary[asyncio.AbstractEventLoop, _Factory] = WeakKeyDictionary()


def install(loop: asyncio.AbstractEventLoop) -> None:
    """Track the tasks that programs create on ``loop``. Each call needs one `uninstall`."""
    factory = _FACTORIES.get(loop)
    if factory is None:
        factory = _FACTORIES[loop] = _Factory(loop.get_task_factory())
        loop.set_task_factory(factory)
    factory.installs += 1


def uninstall(loop: asyncio.AbstractEventLoop) -> None:
    """Undo one `install`. The last call restores the previous task factory."""
    factory = _FACTORIES.get(loop)
    if factory is None:
        raise InvariantError("tracking was uninstalled more often than installed")
    factory.installs -= 1
    if factory.installs:
        return
    previous = factory.previous
    del _FACTORIES[loop]
    # If other code has wrapped our factory since, leave the factory in place. It then only calls
    # the previous factory.
    if loop.get_task_factory() is factory:
        loop.set_task_factory(previous)
