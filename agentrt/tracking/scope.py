"""Scopes: for each task of a program, which node functions its code is in, and which nodes the task
knows to have ended.

A scope learns of the end of another task in two ways. If its task awaits the other task, it learns
at once. If its task waits through asyncio's own futures (gather, shield, TaskGroup), the end is
noted first and becomes known in `Scope.settle`, which is called before the scope is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import CellType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary, ref

from agentrt.graph.frontier import Frontier
from agentrt.tracking._compat import is_exiting
from agentrt.tracking.place import Place

Family = WeakSet[asyncio.Task[Any]]


class Scope:
    """The position of a task's code. ``owner`` is the task's program, ``frontier`` has the
    ended nodes that will be the parents of the task's next node, and ``path`` has the names of the
    node functions around the code, such as ``main/expand``.

    Callbacks and threads have copies of the task's context, which refer to the same scope. So if a
    callback or a thread learns that another task has ended, the scope's task knows this, too.

    A scope is ``over`` if code that could not change the context has ended it. Code whose context
    still has such a scope belongs to the scope ``back`` instead. ``entered_in`` is the id (in
    memory) of the running task that entered the scope, or None. ``place`` is set if the program is
    recorded.
    """

    __slots__ = (
        *("_family", "back", "entered_in", "frontier", "over", "owner", "path", "pending"),
        "place",
    )

    def __init__(
        self,
        owner: object,
        path: str = "",
        frontier: Frontier | None = None,
        family: Family | None = None,
        place: Place | None = None,
    ) -> None:
        self.owner = owner
        self.path = path
        self.frontier = Frontier() if frontier is None else frontier
        self.pending = Pending()
        self._family = family
        self.over = False
        self.back: Scope | None = None
        self.entered_in: int | None = None
        self.place = place

    @property
    def family(self) -> Family:
        """The set of the program's tasks. It is created when the first task starts."""
        if self._family is None:
            self._family = family_of(self.owner)
        return self._family

    def fork(self, coro: object = None, beside: Sequence[object] = ()) -> Scope:
        """Return the scope of a new task that this task starts for ``coro``. For ``beside``, see
        `Place.fork`.
        """
        self.settle()
        place = None if self.place is None else self.place.fork(coro, beside)
        return Scope(self.owner, self.path, self.frontier.fork(), self._family, place)

    def within(self, name: str) -> Scope:
        """Return an alias of this scope for code inside the node function ``name``."""
        inner = self.alias()
        inner.path = f"{self.path}/{name}" if self.path else name
        return inner

    def inside(self, node: str) -> Scope:
        """Return an alias of this scope for the work of a recorded ``node``."""
        inner = self.alias()
        inner.place = Place(node) if self.place is None else self.place.inside(node)
        return inner

    def alias(self) -> Scope:
        """Return another scope with the same frontier. It stays open when this scope ends, so code
        that may outlive this scope can use it.
        """
        alias = Scope(self.owner, self.path, self.frontier, self._family, self.place)
        alias.pending = self.pending
        return alias

    def leave(self, back: Scope | None) -> None:
        """End this scope. Later code in the same context belongs to the scope ``back``."""
        self.over, self.back = True, back

    def join(self, ended: Scope) -> None:
        """Record that this task has waited for the task of ``ended``, which must have ended."""
        if ended.owner is self.owner and ended.frontier is not self.frontier:
            ended.seal()
            self.frontier.join(ended.frontier)

    def seal(self) -> None:
        """Record that the task of this scope has ended, so that it will not wait for other tasks
        any more.
        """
        self.settle()
        self.pending.waits.clear()
        self.pending.sealed = True

    def settle(self) -> None:
        """Join the ended tasks for which this task has waited through a gather, shield or TaskGroup
        of asyncio, and not by awaiting the tasks themselves.
        """
        pending = self.pending
        if pending.seen:
            seen, pending.seen = pending.seen, []
            for ended in seen:
                self.join(ended)
        if pending.waits:
            waits, pending.waits = pending.waits, []
            for wait in waits:
                if not wait.over():
                    pending.waits.append(wait)
                    continue
                for ended in wait.causes():
                    self.join(ended)


# The tasks of each owner that still exist in memory, some of which may have ended. The key is the
# owner's id, because an owner need not be hashable. While an entry exists, its id is not used for
# another owner: only scopes keep the entry alive, and the scopes also keep the owner alive.
_FAMILIES: WeakValueDictionary[int, Family] = WeakValueDictionary()


def family_of(owner: object) -> Family:
    """Return the set of a program's tasks. Some of them may have ended."""
    family = _FAMILIES.get(id(owner))
    if family is None:
        family = _FAMILIES[id(owner)] = WeakSet()
    return family


class Pending:
    """The ends of other tasks that a task's callbacks have observed, and that `Scope.settle` must
    still join into the task's scope: tasks whose results the callbacks have read, and waits with
    ended tasks.
    """

    __slots__ = ("known", "sealed", "seen", "waits")

    def __init__(self) -> None:
        self.seen: list[Scope] = []  # tasks whose result a callback read
        self.waits: list[Wait] = []  # waits with at least one ended task
        self.sealed = False
        # The wait of each gather, shield or TaskGroup, by asyncio's own object for it.
        self.known: WeakKeyDictionary[Any, Wait] | None = None

    def wait_for(self, key: Any) -> Wait:
        """Return the `Wait` for ``key``, which is a TaskGroup, or the callback of a gather or
        shield. The first call for a key creates it.
        """
        if self.known is None:
            self.known = WeakKeyDictionary()
        wait = self.known.get(key)
        if wait is None:
            wait = self.known[key] = Wait(key if isinstance(key, asyncio.TaskGroup) else None)
        return wait


class Wait:
    """A gather, shield or TaskGroup that a task waits for: the number of tasks in it, and the
    scopes of its ended tasks.

    A `Wait` refers to scopes and not to tasks, and to asyncio's own object only by a weak
    reference, so that it keeps neither tasks nor results alive.
    """

    __slots__ = ("ended", "expected", "is_group", "target")

    def __init__(self, group: asyncio.TaskGroup | None) -> None:
        self.expected = 0
        self.ended: list[Scope] = []
        self.is_group = group is not None
        self.target: ref[Any] | None = None if group is None else ref(group)

    def arrived(self, waiting: Scope, outer: CellType | None, ended: Scope) -> None:
        """Record the end of the task whose scope is ``ended``. This is called just before the
        callback with which the gather, shield or TaskGroup itself handles the end of the task.
        """
        if outer is not None:
            # gather() fills the cell only after it has added its callbacks, so the future cannot be
            # read when the callback is added.
            future = outer.cell_contents
            if future.done():
                return  # the gather had failed or was cancelled, so it did not wait for this task
            if self.target is None:
                self.target = ref(future)
        ended.seal()
        if not self.ended and not waiting.pending.sealed:
            waiting.pending.waits.append(self)
        self.ended.append(ended)

    def over(self) -> bool:
        """Return whether the wait has ended. If its future no longer exists, it has ended, too."""
        target = None if self.target is None else self.target()
        if target is None:
            return True
        return is_exiting(target) if self.is_group else bool(target.done())

    def causes(self) -> list[Scope]:
        """Return the scopes of the tasks that ended the wait: of all its tasks, or, if the wait
        ended early, of the task that failed first.
        """
        early = not self.is_group and len(self.ended) < self.expected
        return self.ended[-1:] if early else self.ended
