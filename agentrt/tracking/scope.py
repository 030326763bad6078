"""Scopes: for each task of a program, where its code runs and which nodes ended before it.

A scope learns of the end of other tasks in two ways: at once, if its own task awaits them; or
through asyncio's own futures (gather, shield, TaskGroup), which it settles before it is used.
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
    """The position of a task's code. ``owner`` is its program, ``frontier`` holds the last nodes
    that ended before now in this task, and ``path`` names the node functions around the code, such
    as ``main/expand``.

    Copied contexts (callbacks, OS threads) refer to the same scope, so that the task learns of the
    ends that they see.

    Code that is still in a scope that is ``over`` is in the scope ``back`` instead: the end of the
    scope was reported by code that could not change the context. ``entered_in`` is the id of the
    task that entered the scope while running. ``place`` is set if the program is recorded.
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
        """Return the scope of a task that this task starts now for ``coro``, together with the
        coroutines ``beside`` it.
        """
        self.settle()
        place = None if self.place is None else self.place.fork(coro, beside)
        return Scope(self.owner, self.path, self.frontier.fork(), self._family, place)

    def within(self, name: str) -> Scope:
        """Return the same scope inside the node function ``name``."""
        inner = self.alias()
        inner.path = f"{self.path}/{name}" if self.path else name
        return inner

    def inside(self, node: str) -> Scope:
        """Return the same scope for work that a recorded ``node`` does itself."""
        inner = self.alias()
        inner.place = Place(node) if self.place is None else self.place.inside(node)
        return inner

    def alias(self) -> Scope:
        """Return the same scope for code that may outlive it. An alias is never over."""
        alias = Scope(self.owner, self.path, self.frontier, self._family, self.place)
        alias.pending = self.pending
        return alias

    def leave(self, back: Scope | None) -> None:
        """End this scope. Code that follows in the same context is in ``back``."""
        self.over, self.back = True, back

    def join(self, ended: Scope) -> None:
        """Record that this task has waited for the task of ``ended``, which must have ended."""
        if ended.owner is self.owner and ended.frontier is not self.frontier:
            ended.seal()
            self.frontier.join(ended.frontier)

    def seal(self) -> None:
        """Record that the task has ended. It will not wait for anything else."""
        self.settle()
        self.pending.waits.clear()
        self.pending.sealed = True

    def settle(self) -> None:
        """Join the tasks that have ended, and for which this task waited through asyncio's own
        futures.
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


# The open tasks of each owner, by the owner's id, because an owner need not be hashable. An id is
# not reused while its entry exists, because only scopes hold the entry, and they hold the owner.
_FAMILIES: WeakValueDictionary[int, Family] = WeakValueDictionary()


def family_of(owner: object) -> Family:
    """Return the set of a program's live tasks."""
    family = _FAMILIES.get(id(owner))
    if family is None:
        family = _FAMILIES[id(owner)] = WeakSet()
    return family


class Pending:
    """What a task's callbacks have observed since the task last ran: results that they read, and
    waits with ended tasks. `Scope.settle` joins them into the task's scope.
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
    """A gather, shield or TaskGroup: the number of tasks that it waits for, and the scopes of those
    that have ended.

    It holds scopes and weak references only, so that it keeps neither tasks nor results alive.
    """

    __slots__ = ("ended", "expected", "is_group", "target")

    def __init__(self, group: asyncio.TaskGroup | None) -> None:
        self.expected = 0
        self.ended: list[Scope] = []
        self.is_group = group is not None
        self.target: ref[Any] | None = None if group is None else ref(group)

    def arrived(self, waiting: Scope, outer: CellType | None, ended: Scope) -> None:
        """Record the end of the task of ``ended``. Runs just before asyncio's own callback."""
        if outer is not None:
            # gather() fills the cell only after adding its callbacks, so it cannot be read earlier.
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
        """Return whether the wait has ended. A wait whose future is gone has ended, too."""
        target = None if self.target is None else self.target()
        if target is None:
            return True
        return is_exiting(target) if self.is_group else bool(target.done())

    def causes(self) -> list[Scope]:
        """Return the scopes of the tasks that ended the wait: of all, or of the task that failed
        first.
        """
        early = not self.is_group and len(self.ended) < self.expected
        return self.ended[-1:] if early else self.ended
