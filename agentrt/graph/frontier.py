"""The frontier of a thread of a program: the nodes that will be the parents of its next node.

A thread is here a task or another line of execution in a program's code. The frontier has the nodes
whose ends the thread knows of, without the nodes that another of these nodes depends on. When a
thread forks, the new thread starts with the same frontier. A thread's frontier changes when the
thread advances (a node of its own has ended), and when it joins another thread (it has waited for
the end of that thread).
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from weakref import WeakSet

from agentrt.graph.dag import ExecutionDAG
from agentrt.graph.node import NodeKind


class Frontier:
    """The frontier of one thread: the ended nodes that will be the parents of its next node. The
    class is not thread-safe.

    Each thread remembers its *base*: the frontier that it got when it was forked. If a thread joins
    only threads that it has forked itself, its new frontier is computed by set operations on the
    bases of these threads. The cost is O(1) for each operation and each new node. If a thread joins
    a thread that another thread has forked, the frontier of the joining thread may get nodes that
    are ancestors of its other nodes. Such a frontier is *mixed*; before the next node, `prune`
    removes the ancestors by a search in the DAG.
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
        # `_view` has the ids as a sorted tuple, which nodes and forks share. `_ids` has them as a
        # set, which exists only while joins are collected. At least one of the two is always set.
        self._view: tuple[int, ...] | None = tuple(sorted(set(ids))) if ids else ()
        self._ids: set[int] | None = None
        self._base: tuple[int, ...] = ()
        # A fork refers to its origin by this token and not by the object, so that it does not keep
        # the origin alive.
        self._token = object()
        self._origin: object = None
        self._moved = False  # whether later nodes have replaced all nodes of the base
        self._joined = False  # whether the thread that forked this one has joined it
        self._mixed = False  # whether nodes came from a thread that this thread had not forked
        self._dirty = False  # whether the frontier may contain ancestors of its own members
        self._dropped: tuple[int, ...] | None = None  # the base that the last join removed
        self._seen: WeakSet[Frontier] | None = None  # joined threads that other threads forked

    @property
    def ids(self) -> tuple[int, ...]:
        """The sorted ids of the nodes. The result is the same object until the frontier changes."""
        if self._view is None:
            assert self._ids is not None
            self._view = tuple(sorted(self._ids))
        return self._view

    def fork(self) -> Frontier:
        """Return the frontier of a child thread that starts now."""
        child = Frontier()
        child._view = child._base = self.ids
        child._origin = self._token
        child._dirty = self._dirty
        return child

    def advance(self, node_id: int, parents: tuple[int, ...]) -> None:
        """Record that a node of this thread has ended, successfully or not.

        ``parents`` are the parents with which the node was emitted. If two nodes of the thread
        overlap, as with OS threads that share a scope, the parents are not the whole frontier, and
        both nodes stay in the frontier.
        """
        if parents is self._view or parents == self.ids:
            self._view, self._ids = (node_id,), None
            self._moved, self._dirty = True, False
            return
        members = self._members()
        members.difference_update(parents)
        members.add(node_id)

    def join(self, child: Frontier) -> None:
        """Record that this thread has waited for the end of ``child``. Idempotent."""
        own = child._origin is self._token
        if self._knows(child, own):
            return
        ids, base = child.ids, child._base
        if own and ids is base:
            return  # the child emitted no node
        if child._moved:
            self._drop(base)
        else:
            self._drop(tuple(set(base).difference(ids)))
        self._take(self._news(child, own), unrelated=not own or child._mixed)

    def include(self, ids: Iterable[int]) -> None:
        """Add nodes on which this thread depends. Any thread may have emitted them."""
        self._take(tuple(ids), unrelated=True)

    def prune(self, dag: ExecutionDAG) -> tuple[int, ...]:
        """Remove the nodes that are ancestors of other nodes of the frontier, and return the ids of
        the remaining nodes.
        """
        if self._dirty:
            self._view, self._ids = maximal(self.ids, dag), None
            self._dirty = False
        return self.ids

    def _knows(self, child: Frontier, own: bool) -> bool:
        """Return whether ``child`` has been joined here before, and mark it as joined."""
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
        """Return the nodes of ``child`` to add to this frontier. If this thread has forked
        ``child``, the nodes that the fork started with are left out.
        """
        ids = child.ids
        if not own or child._moved:
            return ids
        # This thread already has the nodes of the base that the child still has, or has replaced
        # them by later nodes.
        base = set(child._base)
        return tuple(node_id for node_id in ids if node_id not in base)

    def _drop(self, gone: tuple[int, ...]) -> None:
        # All children of a wide fan-out share one base, so remove the base's nodes only once.
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
        """Return the nodes as a mutable set."""
        if self._ids is None:
            assert self._view is not None
            self._ids = set(self._view)
        self._view = None
        return self._ids


def maximal(ids: Iterable[int], dag: ExecutionDAG, budget: int = 256) -> tuple[int, ...]:
    """Return ``ids`` in rising order, without the nodes that are ancestors of other nodes.

    The search follows edges backwards from the deepest node, and stops at the smallest depth of the
    remaining ids. It follows at most about ``budget`` edges, plus four for each id. If this limit
    ends the search, an ancestor may remain. Such an ancestor only adds a redundant edge to the DAG,
    which changes neither the order of nodes nor the service on the longest path to a node.
    """
    unique = sorted(set(ids))
    if len(unique) < 2:
        return tuple(unique)
    left = set(unique)
    depth = {node_id: dag.node(node_id).depth for node_id in unique}
    shallow = sorted(unique, key=depth.__getitem__, reverse=True)
    heap = [(-depth[node_id], node_id) for node_id in unique]
    heapify(heap)
    queued = set(unique)
    budget += 4 * len(unique)
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
    """Return the calls among ``parents``. For each interrupt among them, return the last calls
    before the interrupt instead. The ids are in rising order.
    """
    calls: set[int] = set()
    seen: set[int] = set()
    left = list(parents)
    while left:
        node = dag.node(left.pop())
        if node.id in seen:
            continue
        seen.add(node.id)
        if node.kind is NodeKind.CALL:
            calls.add(node.id)
        else:
            left += node.parents
    return tuple(sorted(calls))
