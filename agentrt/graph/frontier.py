"""The frontier of one thread of a program: the ended nodes that come last before its "now".

What a thread emits next has exactly these nodes as parents. A thread forks (a child thread
starts from the same nodes), advances (a node of its own ended), and joins (it waited for
another thread).
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from weakref import WeakSet

from agentrt.graph.dag import ExecutionDAG
from agentrt.graph.node import NodeKind


class Frontier:
    """The maximal ended nodes before "now" in one thread. Not thread-safe.

    Threads that only join what they forked themselves stay exact with set arithmetic on
    the fork's base, at O(1) per operation and new node. A join of somebody else's thread
    can bring nodes that are ancestors of others; the frontier then is *mixed*, and `prune`
    looks at the DAG before the next emission.
    """

    __slots__ = (
        "__weakref__",
        "_base",
        "_dirty",
        "_dropped",
        "_ids",
        "_joined",
        "_mixed",
        "_moved",
        "_origin",
        "_seen",
        "_token",
        "_view",
    )

    def __init__(self, ids: Iterable[int] = ()) -> None:
        # The sorted tuple is what emissions and forks share; the set exists only while
        # joins are being gathered. One of the two is always there.
        self._view: tuple[int, ...] | None = tuple(sorted(set(ids))) if ids else ()
        self._ids: set[int] | None = None
        self._base: tuple[int, ...] = ()
        # A token, not a reference: a chain of threads must not keep all its links alive.
        self._token = object()
        self._origin: object = None
        self._moved = False  # every node of the base was superseded
        self._joined = False  # by the thread that forked it
        self._mixed = False  # joined a thread that it had not forked
        self._dirty = False  # may hold ancestors of its own members
        self._dropped: tuple[int, ...] | None = None  # the base that a join took out last
        self._seen: WeakSet[Frontier] | None = None  # others' threads that were joined

    @property
    def ids(self) -> tuple[int, ...]:
        """The nodes, by id. The same object until something changes."""
        if self._view is None:
            assert self._ids is not None
            self._view = tuple(sorted(self._ids))
        return self._view

    def fork(self) -> Frontier:
        """The frontier of a child thread that starts now."""
        child = Frontier()
        child._view = child._base = self.ids
        child._origin = self._token
        child._dirty = self._dirty
        return child

    def advance(self, node_id: int, parents: tuple[int, ...]) -> None:
        """A node that this thread emitted has ended, in whatever way.

        ``parents`` are those that it was emitted with. They are not all of this frontier when two
        emissions of one thread overlap, as those of OS threads that share a scope can: then both
        ends stay in it.
        """
        if parents is self._view or parents == self.ids:
            self._view, self._ids = (node_id,), None
            self._moved, self._dirty = True, False
            return
        members = self._members()
        members.difference_update(parents)
        members.add(node_id)

    def join(self, child: Frontier) -> None:
        """This thread waited for the end of ``child``. Joining again changes nothing."""
        own = child._origin is self._token
        if self._knows(child, own):
            return
        ids, base = child.ids, child._base
        if own and ids is base:
            return  # it emitted nothing
        if child._moved:
            self._drop(base)
        else:
            self._drop(tuple(set(base).difference(ids)))
        self._take(self._news(child, own), unrelated=not own or child._mixed)

    def include(self, ids: Iterable[int]) -> None:
        """Nodes that this thread comes after; they need no relation to it."""
        self._take(tuple(ids), unrelated=True)

    def prune(self, dag: ExecutionDAG) -> tuple[int, ...]:
        """Take out ancestors of other members, where there can be any; return the ids."""
        if self._dirty:
            self._view, self._ids = maximal(self.ids, dag), None
            self._dirty = False
        return self.ids

    def _knows(self, child: Frontier, own: bool) -> bool:
        """True if ``child`` was joined here before; from now on it was."""
        if own:
            known, child._joined = child._joined, True
            return known
        if self._seen is None:
            self._seen = WeakSet()
        if child is self or child in self._seen:
            return True
        self._seen.add(child)
        return False

    def _news(self, child: Frontier, own: bool) -> tuple[int, ...]:
        """What ``child`` knows that this thread has never had in its frontier."""
        ids = child.ids
        if not own or child._moved:
            return ids
        # What is still there of the base, this thread has, or has superseded since.
        base = set(child._base)
        return tuple(node_id for node_id in ids if node_id not in base)

    def _drop(self, gone: tuple[int, ...]) -> None:
        # All children of a wide fan-out share one base: take it out once, not per child.
        if gone and gone is not self._dropped:
            self._members().difference_update(gone)
            self._dropped = gone

    def _take(self, ids: tuple[int, ...], unrelated: bool) -> None:
        if not ids:
            return
        members = self._members()
        before = len(members)
        members.update(ids)
        if len(members) == before:
            return
        self._mixed = self._mixed or unrelated
        self._dirty = self._dirty or self._mixed

    def _members(self) -> set[int]:
        """The nodes as a set that may be changed."""
        if self._ids is None:
            assert self._view is not None
            self._ids = set(self._view)
        self._view = None
        return self._ids


def maximal(ids: Iterable[int], dag: ExecutionDAG, budget: int = 256) -> tuple[int, ...]:
    """``ids`` without those that are ancestors of others, in rising order.

    Searches backwards, deepest node first, and stops at the depth of the shallowest id that
    is left, or after about ``budget`` edges (plus four for each id). Beyond that an ancestor
    may stay: a redundant edge, which changes neither order nor p(c).
    """
    found = sorted(set(ids))
    if len(found) < 2:
        return tuple(found)
    left = set(found)
    depth = {node_id: dag.node(node_id).depth for node_id in found}
    shallow = sorted(found, key=depth.__getitem__, reverse=True)
    heap = [(-depth[node_id], node_id) for node_id in found]
    heapify(heap)
    queued = set(found)
    budget += 4 * len(found)
    while heap and budget > 0:
        while shallow[-1] not in left:
            shallow.pop()
        floor = depth[shallow[-1]]
        above, node_id = heappop(heap)
        if -above <= floor:
            break
        parents = dag.node(node_id).parents
        budget -= len(parents)
        left.difference_update(parents)
        for parent in parents:
            if parent not in queued and (high := dag.node(parent).depth) > floor:
                queued.add(parent)
                heappush(heap, (-high, parent))
    return tuple(sorted(left))


def calls_before(parents: tuple[int, ...], dag: ExecutionDAG) -> tuple[int, ...]:
    """The last calls at or before ``parents``, in rising order: interrupts are seen through."""
    found: set[int] = set()
    seen: set[int] = set()
    left = list(parents)
    while left:
        node = dag.node(left.pop())
        if node.id in seen:
            continue
        seen.add(node.id)
        if node.kind is NodeKind.CALL:
            found.add(node.id)
        else:
            left += node.parents
    return tuple(sorted(found))
