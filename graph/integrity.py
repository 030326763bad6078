"""The slow, plain recomputation that `ExecutionDAG.check_integrity` compares itself with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrt.errors import InvariantError
from agentrt.graph.node import Node, NodeKind, NodeState

if TYPE_CHECKING:
    from agentrt.graph.dag import ExecutionDAG


def check(dag: ExecutionDAG) -> None:
    """Raise `InvariantError` where ``dag`` is not what its nodes say. O(nodes + edges)."""
    ends: list[float] = []
    inner: set[int] = set()
    for index, node in enumerate(dag.nodes()):
        _require(node.id == index, node, "its id is not its place")
        _check_edges(dag, node)
        _check_times(node)
        path = max((ends[parent] for parent in node.parents), default=0.0)
        _require(node.path_s == path, node, f"path_s is {node.path_s}, should be {path}")
        ends.append(path + node.service_s)
        inner.update(node.parents)
    _check_sets(dag, inner)
    _check_critical_path(dag, ends)


def _require(holds: bool, node: Node | None, message: str) -> None:
    if not holds:
        raise InvariantError(message if node is None else f"node {node.id}: {message}")


def _check_edges(dag: ExecutionDAG, node: Node) -> None:
    depth = 0
    for parent_id in node.parents:
        _require(0 <= parent_id < node.id, node, f"parent {parent_id} is not older")
        parent = dag.node(parent_id)
        ended = parent.ended_at is not None and parent.ended_at <= node.created_at
        _require(ended, node, f"parent {parent_id} had not ended at its creation")
        depth = max(depth, parent.depth + 1)
    _require(sorted(set(node.parents)) == list(node.parents), node, "parents are not in order")
    _require(node.depth == depth, node, f"depth is {node.depth}, should be {depth}")


def _check_times(node: Node) -> None:
    times = [t for t in (node.created_at, node.started_at, node.ended_at) if t is not None]
    _require(times == sorted(times), node, f"times run backwards: {times}")
    _require(node.state.ended == (node.ended_at is not None), node, "state and end disagree")
    if node.state is NodeState.RUNNING:
        _require(node.started_at is not None, node, "runs without a start")
    report = node.report if node.kind is NodeKind.CALL else None
    service = 0.0 if report is None else report.service_s
    _require(node.service_s == service, node, f"service is {node.service_s}, not {service}")


def _check_sets(dag: ExecutionDAG, inner: set[int]) -> None:
    by_state = {state: [n.id for n in dag.nodes() if n.state is state] for state in NodeState}
    waiting = sorted(node.id for node in dag.waiting())
    running = sorted(node.id for node in dag.running())
    _require(waiting == by_state[NodeState.WAITING], None, f"waiting() says {waiting}")
    _require(running == by_state[NodeState.RUNNING], None, f"running() says {running}")
    sinks = [node.id for node in dag.sinks()]
    true = [node.id for node in dag.nodes() if node.id not in inner]
    _require(sinks == true, None, f"sinks are {sinks}, should be {true}")
    sums = dag.totals
    counts = {
        NodeState.DONE: sums.done,
        NodeState.FAILED: sums.failed,
        NodeState.CANCELLED: sums.cancelled,
        NodeState.INTERRUPTED: sums.interrupted,
    }
    for state, count in counts.items():
        _require(count == len(by_state[state]), None, f"{count} nodes counted as {state}")
    _require(sums.calls + sums.interrupts == len(dag), None, "kinds do not add up")


def _check_critical_path(dag: ExecutionDAG, ends: list[float]) -> None:
    path = dag.critical_path()
    ended = [node.id for node in dag.nodes() if node.state.ended]
    longest = max((ends[node_id] for node_id in ended), default=0.0)
    _require(path.seconds == longest, None, f"critical path {path.seconds}, should be {longest}")
    _require(bool(path.nodes) == bool(ended), None, "critical path without nodes")
    if path.nodes:
        _require(not dag.parents(path.nodes[0]), None, "critical path starts at no root")
    for parent, child in zip(path.nodes, path.nodes[1:], strict=False):
        _require(parent in dag.parents(child), None, f"no edge {parent} to {child} on the path")
    # In path order, and with the same additions as path_s, so that rounding agrees.
    total = 0.0
    for node_id in path.nodes:
        total += dag.node(node_id).service_s
    _require(total == longest, None, f"critical path's nodes add up to {total}")
