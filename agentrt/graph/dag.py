"""The live execution DAG of one program: which calls and interrupts had to end before which.

Events come in with their time (seconds); each costs O(1) beyond the edges that it adds.
The longest path of attained service (ATLAS, Eq. 2) is kept up to date as nodes end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agentrt.errors import InvariantError
from agentrt.graph.node import Node, NodeKind, NodeState
from agentrt.request import CallReport


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The path with the most attained service: its seconds, and its node ids from root to end."""

    seconds: float
    nodes: tuple[int, ...]


class _Lineage(NamedTuple):
    """What a set of parents gives to a child: depth, p(c), and the parent that p(c) is from."""

    parents: tuple[int, ...]
    depth: int
    path_s: float
    via: int | None


_ROOT = _Lineage((), 0, 0.0, None)


class ExecutionDAG:
    """The nodes and edges of one program, fed by events.

    ``state`` is ``RUNNING`` until `close` gives it an end; ``closed_at`` is that time.
    A broken rule (an unknown id, an event out of order) raises `InvariantError`.
    """

    def __init__(self, program_id: str, program_type: str) -> None:
        self.program_id = program_id
        self.program_type = program_type
        self.state = NodeState.RUNNING
        self.closed_at: float | None = None
        self._nodes: list[Node] = []
        # Open nodes are apart, so that asking for them never scans the ended ones.
        self._waiting: dict[int, Node] = {}
        self._running: dict[int, Node] = {}
        self._best: Node | None = None
        self._lineage = _ROOT

    # -- events ---------------------------------------------------------------------------

    def add(
        self, kind: NodeKind, name: str, scope: str, parents: tuple[int, ...], at: float
    ) -> Node:
        """A node was emitted at ``at`` (seconds), after all of ``parents`` (ids) had ended."""
        if self.closed_at is not None:
            raise InvariantError(f"program {self.program_id} is closed: cannot add {name!r}")
        above, depth, path_s, via = self._lineage_of(parents)
        node = Node(len(self._nodes), kind, name, scope, above, at, path_s, depth, via)
        self._nodes.append(node)
        self._waiting[node.id] = node
        return node

    def start(self, node_id: int, at: float) -> Node:
        """The node began to run at ``at``. A start after `requeue` keeps the first time."""
        node = self._take(node_id)
        if node.state is not NodeState.WAITING:
            raise InvariantError(f"{self._label(node)} starts, but is {node.state}")
        node.state = NodeState.RUNNING
        node.wait = ""
        if node.started_at is None:
            node.started_at = at
        del self._waiting[node_id]
        self._running[node_id] = node
        return node

    def requeue(self, node_id: int, wait: str) -> Node:
        """The node lost its place (preempted, or its engine died) and waits again, for ``wait``."""
        node = self._take(node_id)
        if node.state is not NodeState.RUNNING:
            raise InvariantError(f"{self._label(node)} is requeued, but is {node.state}")
        node.state = NodeState.WAITING
        node.wait = wait
        del self._running[node_id]
        self._waiting[node_id] = node
        return node

    def finish(self, node_id: int, at: float, report: CallReport | None = None) -> Node:
        """The node did its work. Legal without `start`, for executors that do not tell of it."""
        return self._end(node_id, NodeState.DONE, at, report)

    def fail(self, node_id: int, at: float, error: str, report: CallReport | None = None) -> Node:
        """The node ended with ``error`` (text for people); service it used still counts."""
        return self._end(node_id, NodeState.FAILED, at, report, error)

    def cancel(self, node_id: int, at: float, report: CallReport | None = None) -> Node:
        """The node was called off; service it used still counts."""
        return self._end(node_id, NodeState.CANCELLED, at, report)

    def expire(self, node_id: int, at: float, error: str) -> Node:
        """The interrupt was not over by its deadline."""
        return self._end(node_id, NodeState.EXPIRED, at, None, error)

    def close(self, at: float, state: NodeState) -> tuple[Node, ...]:
        """The program ended in ``state``. Cancels whatever is open, and returns those nodes.

        A program that is ``INTERRUPTED`` leaves its open questions so, too.
        """
        if self.closed_at is not None or not state.ended:
            raise InvariantError(f"program {self.program_id} is {self.state}: not to {state}")
        left = tuple(self.waiting()) + tuple(self.running())
        for node in left:
            asks = state is NodeState.INTERRUPTED and node.kind is NodeKind.HUMAN
            end = state if asks else NodeState.CANCELLED
            self._end(node.id, end, at, None)
        self.state = state
        self.closed_at = at
        return left

    # -- questions ------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, node_id: int) -> Node:
        """The node with this id."""
        # A negative index would be legal for a list and wrong for us.
        if not 0 <= node_id < len(self._nodes):
            raise InvariantError(f"program {self.program_id} has no node {node_id}")
        return self._nodes[node_id]

    def nodes(self) -> Sequence[Node]:
        """All nodes, by id: a live view, not to be changed."""
        return self._nodes

    def waiting(self) -> list[Node]:
        """Nodes that were emitted and do not run, longest emitted first."""
        return list(self._waiting.values())

    def running(self) -> list[Node]:
        """Nodes that run now, in the order in which they started."""
        return list(self._running.values())

    def critical_path(self) -> CriticalPath:
        """The ended path with the most service. Of equals, the one with the lowest ids.

        Nodes without service are on it only where they link two that have some.
        """
        path: list[int] = []
        step = self._best.id if self._best else None
        while step is not None:
            path.append(step)
            step = self._nodes[step].via
        path.reverse()
        return CriticalPath(self._best.path_end_s if self._best else 0.0, tuple(path))

    # -- inside ---------------------------------------------------------------------------

    def _take(self, node_id: int) -> Node:
        node = self.node(node_id)
        if node.state.ended:
            raise InvariantError(f"{self._label(node)} has ended already ({node.state})")
        return node

    def _label(self, node: Node) -> str:
        return f"node {node.id} ({node.name}) of program {self.program_id}"

    def _end(
        self,
        node_id: int,
        state: NodeState,
        at: float,
        report: CallReport | None,
        error: str | None = None,
    ) -> Node:
        node = self._take(node_id)
        del (self._running if node.state is NodeState.RUNNING else self._waiting)[node_id]
        node.state, node.ended_at, node.error, node.report = state, at, error, report
        node.wait = ""
        if report is not None and node.kind is NodeKind.CALL:
            node.service_s = report.service_s
        if self._best is None or _length(node) > _length(self._best):
            self._best = node
        return node

    def _parent(self, node_id: int) -> Node:
        node = self.node(node_id)
        if not node.state.ended:
            raise InvariantError(f"{self._label(node)} is {node.state}: not yet a parent")
        return node

    def _lineage_of(self, parents: tuple[int, ...]) -> _Lineage:
        if not parents:
            return _ROOT
        # A wide fan-out hands the same tuple to every child: look at its members once.
        # That is sound because ended nodes never change.
        if parents is self._lineage.parents:
            return self._lineage
        unique = parents if len(parents) == 1 else tuple(sorted(set(parents)))
        nodes = [self._parent(parent) for parent in unique]
        if len(nodes) == 1:  # as it is in a chain of calls
            via, depth = nodes[0], nodes[0].depth + 1
        else:
            via, depth = max(nodes, key=_length), 1 + max(node.depth for node in nodes)
        kept = parents if parents == unique else unique
        self._lineage = _Lineage(kept, depth, via.path_end_s, via.id)
        return self._lineage


def _length(node: Node) -> tuple[float, int]:
    """Orders nodes by the path of service that they end; the lower id wins a tie."""
    return node.path_end_s, -node.id
