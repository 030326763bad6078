"""The slow, plain recomputation that tests compare a DAG with."""

from __future__ import annotations

from itertools import pairwise

from agentrt.errors import InvariantError
from agentrt.graph.dag import ExecutionDAG
from agentrt.graph.node import Node, NodeKind, NodeState


def check_integrity(dag: ExecutionDAG) -> None:
    """Raise `InvariantError` where ``dag`` is not what its nodes say. O(nodes + edges)."""
    ends: list[float] = []
    for index, node in enumerate(dag.nodes()):
        older = [dag.node(parent) for parent in node.parents if 0 <= parent < index]
        path_s = max((ends[parent.id] for parent in older), default=0.0)
        ends.append(path_s + node.service_s)
        _require(
            f"node {index}",
            id=node.id == index,
            parents=sorted({parent.id for parent in older}) == list(node.parents),
            depth=node.depth == max((parent.depth + 1 for parent in older), default=0),
            path_s=node.path_s == path_s,
            created_at=all(_ended_by(parent, node.created_at) for parent in older),
            **_life(node),
        )
    _require(f"program {dag.program_id}", **_sets(dag), **_critical_path(dag, ends))


def _require(whose: str, **rules: bool) -> None:
    broken = ", ".join(name for name, holds in rules.items() if not holds)
    if broken:
        raise InvariantError(f"{whose}: wrong {broken}")


def _ended_by(node: Node, at: float) -> bool:
    return node.ended_at is not None and node.ended_at <= at


def _life(node: Node) -> dict[str, bool]:
    """State, times and service of one node agree."""
    times = [t for t in (node.created_at, node.started_at, node.ended_at) if t is not None]
    counts = node.kind is NodeKind.CALL and node.report is not None
    return {
        "times": times == sorted(times),
        "ended_at": node.state.ended == (node.ended_at is not None),
        "started_at": node.state is not NodeState.RUNNING or node.started_at is not None,
        "service_s": node.service_s == (node.report.service_s if node.report and counts else 0.0),
    }


def _sets(dag: ExecutionDAG) -> dict[str, bool]:
    """What is kept of open nodes is what the nodes say."""
    by_state = {state: [n.id for n in dag.nodes() if n.state is state] for state in NodeState}
    return {
        "waiting": sorted(node.id for node in dag.waiting()) == by_state[NodeState.WAITING],
        "running": sorted(node.id for node in dag.running()) == by_state[NodeState.RUNNING],
    }


def _critical_path(dag: ExecutionDAG, ends: list[float]) -> dict[str, bool]:
    path = dag.critical_path()
    ended = [node.id for node in dag.nodes() if node.state.ended]
    # In path order, and with the same additions as path_s, so that rounding agrees.
    total = 0.0
    for node_id in path.nodes:
        total += dag.node(node_id).service_s
    edges = all(parent in dag.node(child).parents for parent, child in pairwise(path.nodes))
    root = not path.nodes or not dag.node(path.nodes[0]).parents
    return {
        "critical_seconds": path.seconds == max((ends[i] for i in ended), default=0.0) == total,
        "critical_nodes": bool(path.nodes) == bool(ended) and edges and root,
    }
