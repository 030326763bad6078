"""The live execution DAG of a program. It shows for each node which other nodes had to end before
this node could begin.

Each event has its time in seconds. Handling an event costs O(1) for each edge that it adds, and for
each node that it ends. The path with the most attained service (ATLAS, Eq. 2) is updated when a
node ends.
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
    """The path with the most attained service: its seconds of service, and its node ids from the
    root on.
    """

    seconds: float
    nodes: tuple[int, ...]


class _Lineage(NamedTuple):
    """The values that a new node gets from its parents: its depth, the seconds of service on the
    longest path to the node (``path_s``), and the last parent on this path (``via``).
    """

    parents: tuple[int, ...]
    depth: int
    path_s: float
    via: int | None


_ROOT = _Lineage((), 0, 0.0, None)


class ExecutionDAG:
    """The nodes and edges of a program, built from events.

    ``state`` is ``RUNNING`` until `close` sets an end state, at the time ``closed_at``. An unknown
    id or an event that is out of order raises `InvariantError`.
    """

    def __init__(self, program_id: str, program_type: str) -> None:
        self.program_id = program_id
        self.program_type = program_type
        self.state = NodeState.RUNNING
        self.closed_at: float | None = None
        self._nodes: list[Node] = []
        # Open nodes are kept separately, so that listing them need not scan all ended nodes.
        self._waiting: dict[int, Node] = {}
        self._running: dict[int, Node] = {}
        self._best: Node | None = None
        self._lineage = _ROOT

    # -- events ---------------------------------------------------------------------------

    def add(
        self, kind: NodeKind, name: str, scope: str, parents: tuple[int, ...], at: float
    ) -> Node:
        """Add a node that was emitted at ``at`` (seconds), after all ``parents`` (ids) had
        ended.
        """
        if self.closed_at is not None:
            raise InvariantError(f"cannot add node {name!r}: program {self.program_id} has ended")
        above, depth, path_s, via = self._lineage_of(parents)
        node = Node(len(self._nodes), kind, name, scope, above, at, path_s, depth, via)
        self._nodes.append(node)
        self._waiting[node.id] = node
        return node

    def start(self, node_id: int, at: float) -> Node:
        """Record that the node started at ``at``. After a `requeue`, keep the first start time."""
        node = self._take(node_id)
        if node.state is not NodeState.WAITING:
            raise InvariantError(f"cannot start {self._label(node)}: it is {node.state}")
        node.state = NodeState.RUNNING
        node.wait = ""
        if node.started_at is None:
            node.started_at = at
        del self._waiting[node_id]
        self._running[node_id] = node
        return node

    def requeue(self, node_id: int, wait: str) -> Node:
        """Record that a running node waits again, such as a tool that waits for a slot or for its
        next attempt. ``wait`` is a text for people that says what the node waits for.
        """
        node = self._take(node_id)
        if node.state is not NodeState.RUNNING:
            raise InvariantError(f"cannot requeue {self._label(node)}: it is {node.state}")
        node.state = NodeState.WAITING
        node.wait = wait
        del self._running[node_id]
        self._waiting[node_id] = node
        return node

    def finish(self, node_id: int, at: float, report: CallReport | None = None) -> Node:
        """Record that the node has finished. A `start` before it is not required, because some
        executors do not report when calls start.
        """
        return self._end(node_id, NodeState.DONE, at, report)

    def fail(self, node_id: int, at: float, error: str, report: CallReport | None = None) -> Node:
        """Record that the node failed with ``error``, a text for people. Its service still
        counts.
        """
        return self._end(node_id, NodeState.FAILED, at, report, error)

    def cancel(self, node_id: int, at: float, report: CallReport | None = None) -> Node:
        """Record that the node was cancelled. Its service still counts."""
        return self._end(node_id, NodeState.CANCELLED, at, report)

    def expire(self, node_id: int, at: float, error: str) -> Node:
        """Record that the deadline of the interrupt has passed."""
        return self._end(node_id, NodeState.EXPIRED, at, None, error)

    def close(self, at: float, state: NodeState) -> tuple[Node, ...]:
        """Record that the program ended in ``state``. Cancel its open nodes, and return them.

        If the program is ``INTERRUPTED``, its open questions become ``INTERRUPTED``, too.
        """
        if self.closed_at is not None or not state.ended:
            raise InvariantError(
                f"cannot close program {self.program_id} as {state}: it is {self.state}"
            )
        left = tuple(self.waiting()) + tuple(self.running())
        for node in left:
            asks = state is NodeState.INTERRUPTED and node.kind is NodeKind.HUMAN
            end = state if asks else NodeState.CANCELLED
            self._end(node.id, end, at, None)
        self.state = state
        self.closed_at = at
        return left

    # -- queries --------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, node_id: int) -> Node:
        """Return the node with this id."""
        # Check the id, because a list would accept a negative index.
        if not 0 <= node_id < len(self._nodes):
            raise InvariantError(f"program {self.program_id} has no node {node_id}")
        return self._nodes[node_id]

    def nodes(self) -> Sequence[Node]:
        """Return all nodes in the order of their ids, as a live view that callers must not
        change.
        """
        return self._nodes

    def waiting(self) -> list[Node]:
        """Return the nodes that wait, in the order in which they began to wait."""
        return list(self._waiting.values())

    def running(self) -> list[Node]:
        """Return the running nodes, in the order in which they last started."""
        return list(self._running.values())

    def critical_path(self) -> CriticalPath:
        """Return the path of ended nodes with the most service. Of paths with equal service, the
        path that ends with the lowest node id is returned.

        The path ends with a node that has service, if any ended node has service.
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
            raise InvariantError(f"{self._label(node)} has already ended ({node.state})")
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
            raise InvariantError(
                f"{self._label(node)} cannot be a parent: it is {node.state} and has not ended"
            )
        return node

    def _lineage_of(self, parents: tuple[int, ...]) -> _Lineage:
        if not parents:
            return _ROOT
        # In a wide fan-out all children have the same tuple, so compute its values once. This is
        # correct because ended nodes never change.
        if parents is self._lineage.parents:
            return self._lineage
        unique = parents if len(parents) == 1 else tuple(sorted(set(parents)))
        nodes = [self._parent(parent) for parent in unique]
        if len(nodes) == 1:  # the common case of a chain of calls
            via, depth = nodes[0], nodes[0].depth + 1
        else:
            via, depth = max(nodes, key=_length), 1 + max(node.depth for node in nodes)
        kept = parents if parents == unique else unique
        self._lineage = _Lineage(kept, depth, via.path_end_s, via.id)
        return self._lineage


def _length(node: Node) -> tuple[float, int]:
    """Return the sort key of a node: the service on the longest path that ends with the node. If
    two nodes are equal, the node with the lower id is greater.
    """
    return node.path_end_s, -node.id
