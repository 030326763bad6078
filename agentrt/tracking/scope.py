"""Where a program's code runs, and which nodes ended before it: one scope for each task.

A scope learns of other tasks at once, where the task itself waits for them, or from
asyncio's own futures (gather, shield, TaskGroup), which it settles before it is used.
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
    """Where code runs: ``owner`` (its program), ``frontier`` (what ended before now in this
    task) and ``path`` (the names of the node functions around it, such as ``main/expand``).

    Copied contexts (callbacks, OS threads) hold the same scope by reference, so that what
    they see end is seen by the task.

    A scope that is ``over`` sends whoever is still in it ``back``: its end was reported by
    somebody who could not change the context of the code. ``entered_in`` is the id of the
    task whose code entered it while it ran. ``place`` is there if the program is recorded.
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
        """The program's tasks: made when the first one begins."""
        if self._family is None:
            self._family = family_of(self.owner)
        return self._family

    def fork(self, coro: object = None, beside: Sequence[object] = ()) -> Scope:
        """The scope of a task that this one creates now, for ``coro``; together with those that
        are ``beside`` it.
        """
        self.settle()
        place = None if self.place is None else self.place.fork(coro, beside)
        return Scope(self.owner, self.path, self.frontier.fork(), self._family, place)

    def within(self, name: str) -> Scope:
        """The same scope inside the node function ``name``."""
        inner = self.alias()
        inner.path = f"{self.path}/{name}" if self.path else name
        return inner

    def inside(self, node: str) -> Scope:
        """The same scope for what a recorded ``node`` does itself."""
        inner = self.alias()
        inner.place = Place(node) if self.place is None else self.place.inside(node)
        return inner

    def alias(self) -> Scope:
        """The same scope for code that may outlive it: it is never over."""
        alias = Scope(self.owner, self.path, self.frontier, self._family, self.place)
        alias.pending = self.pending
        return alias

    def leave(self, back: Scope | None) -> None:
        """The code that ran here is over, and what comes next in its context is in ``back``."""
        self.over, self.back = True, back

    def join(self, ended: Scope) -> None:
        """This task waited for the task of ``ended``, which must be over."""
        if ended.owner is self.owner and ended.frontier is not self.frontier:
            ended.seal()
            self.frontier.join(ended.frontier)

    def seal(self) -> None:
        """The task is over: what it did not wait for by now, it never will."""
        self.settle()
        self.pending.waits.clear()
        self.pending.sealed = True

    def settle(self) -> None:
        """Join what was waited for through asyncio's own futures and has ended."""
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


# The open tasks of each owner, by the owner's identity: an owner need not be hashable. An id
# is not given again while its entry lives, since only scopes hold it, and they hold the owner.
_FAMILIES: WeakValueDictionary[int, Family] = WeakValueDictionary()


def family_of(owner: object) -> Family:
    """The tasks of one program, as long as they live."""
    family = _FAMILIES.get(id(owner))
    if family is None:
        family = _FAMILIES[id(owner)] = WeakSet()
    return family


class Pending:
    """What callbacks learned while the task itself did not run; joined by `Scope.settle`."""

    __slots__ = ("known", "sealed", "seen", "waits")

    def __init__(self) -> None:
        self.seen: list[Scope] = []  # tasks whose result a callback read
        self.waits: list[Wait] = []  # waits of which some task has ended
        self.sealed = False
        # One per gather, shield or group, by asyncio's own object for it.
        self.known: WeakKeyDictionary[Any, Wait] | None = None

    def wait_for(self, key: Any) -> Wait:
        """The wait that asyncio knows by ``key``: a TaskGroup, or the callback of another."""
        if self.known is None:
            self.known = WeakKeyDictionary()
        wait = self.known.get(key)
        if wait is None:
            wait = self.known[key] = Wait(key if isinstance(key, asyncio.TaskGroup) else None)
        return wait


class Wait:
    """One gather, shield or TaskGroup: the tasks that it waits for, and those that ended.

    It holds scopes and weak references only: neither tasks nor their results live longer.
    """

    __slots__ = ("ended", "expected", "is_group", "target")

    def __init__(self, group: asyncio.TaskGroup | None) -> None:
        self.expected = 0
        self.ended: list[Scope] = []
        self.is_group = group is not None
        self.target: ref[Any] | None = None if group is None else ref(group)

    def arrived(self, waiting: Scope, outer: CellType | None, ended: Scope) -> None:
        """The task of ``ended`` is over; runs just before asyncio's own callback for that."""
        if outer is not None:
            # gather() fills the cell only after it has added its callbacks.
            future = outer.cell_contents
            if future.done():
                return  # it failed or was cancelled before: nobody waited for this task
            if self.target is None:
                self.target = ref(future)
        ended.seal()
        if not self.ended and not waiting.pending.sealed:
            waiting.pending.waits.append(self)
        self.ended.append(ended)

    def over(self) -> bool:
        """True once the wait has ended. What nobody can reach any more has, too."""
        target = None if self.target is None else self.target()
        if target is None:
            return True
        return is_exiting(target) if self.is_group else bool(target.done())

    def causes(self) -> list[Scope]:
        """The tasks whose end ended the wait: all, or the one that failed first."""
        early = not self.is_group and len(self.ended) < self.expected
        return self.ended[-1:] if early else self.ended
