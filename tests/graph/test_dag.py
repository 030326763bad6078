"""Events go into a DAG; what it then says is compared with sums done by hand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.errors import InvariantError
from agentrt.graph import CriticalPath, ExecutionDAG, Node, NodeKind, NodeState
from agentrt.request import CallReport
from tests.graph.integrity import check_integrity


def call(dag: ExecutionDAG, parents: tuple[int, ...], service_s: float, at: float = 0.0) -> Node:
    """A call that starts and ends at once, with this much service."""
    node = dag.add(NodeKind.CALL, "m", "main", parents, at)
    dag.start(node.id, at)
    return dag.finish(node.id, at, CallReport(service_s=service_s))


@pytest.fixture
def dag() -> ExecutionDAG:
    return ExecutionDAG("p1", "demo")


def test_path_is_eq_2_of_atlas(dag: ExecutionDAG) -> None:
    """1. a (2 s) 2. then b (3 s) and c (1 s) at once 3. then d (4 s) after both."""
    a = call(dag, (), 2.0)
    b = call(dag, (a.id,), 3.0)
    c = call(dag, (a.id,), 1.0)
    d = call(dag, (b.id, c.id), 4.0)
    assert [n.path_s for n in (a, b, c, d)] == [0.0, 2.0, 2.0, 5.0]
    assert [n.depth for n in (a, b, c, d)] == [0, 1, 1, 2]
    assert dag.critical_path() == CriticalPath(9.0, (0, 1, 3))
    check_integrity(dag)


def test_critical_path_can_end_before_the_last_node(dag: ExecutionDAG) -> None:
    call(dag, (), 1.0)
    call(dag, (0,), 9.0)
    call(dag, (0,), 2.0)
    call(dag, (2,), 3.0)
    assert dag.critical_path() == CriticalPath(10.0, (0, 1))
    check_integrity(dag)


def test_running_nodes_do_not_count_yet(dag: ExecutionDAG) -> None:
    assert dag.critical_path() == CriticalPath(0.0, ())
    node = dag.add(NodeKind.CALL, "m", "main", (), 0.0)
    dag.start(node.id, 1.0)
    assert dag.critical_path() == CriticalPath(0.0, ())


def test_the_lower_ids_win_a_tie(dag: ExecutionDAG) -> None:
    for _ in range(2):
        dag.add(NodeKind.CALL, "m", "main", (), 0.0)
    for node_id in (1, 0):
        dag.finish(node_id, 1.0, CallReport(service_s=2.0))
    assert dag.critical_path().nodes == (0,)
    assert dag.add(NodeKind.CALL, "m", "main", (0, 1), 1.0).via == 0


def test_interrupts_have_no_service(dag: ExecutionDAG) -> None:
    a = call(dag, (), 2.0)
    tool = dag.add(NodeKind.TOOL, "search", "main", (a.id,), 1.0)
    dag.finish(tool.id, 50.0, CallReport(service_s=7.0))
    b = dag.add(NodeKind.CALL, "m", "main", (tool.id,), 50.0)
    assert (tool.service_s, b.path_s) == (0.0, 2.0)


def test_failed_and_cancelled_calls_keep_their_service(dag: ExecutionDAG) -> None:
    a = dag.add(NodeKind.CALL, "m", "main", (), 0.0)
    dag.fail(a.id, 1.0, "boom", CallReport(service_s=3.0))
    b = dag.add(NodeKind.CALL, "m", "main", (a.id,), 1.0)
    dag.cancel(b.id, 2.0, CallReport(service_s=0.5))
    c = dag.add(NodeKind.CALL, "m", "main", (b.id,), 2.0)
    assert (b.path_s, c.path_s) == (3.0, 3.5)
    assert (a.state, a.error, b.state) == (NodeState.FAILED, "boom", NodeState.CANCELLED)
    check_integrity(dag)


def test_open_nodes_by_state(dag: ExecutionDAG) -> None:
    """1. three are emitted 2. two start 3. one is preempted 4. one ends."""
    for _ in range(3):
        dag.add(NodeKind.CALL, "m", "main", (), 0.0)
    dag.start(2, 1.0)
    dag.start(0, 2.0)
    assert [n.id for n in dag.running()] == [2, 0]
    assert [n.id for n in dag.waiting()] == [1]
    dag.requeue(2, "preempted by p7")
    assert dag.node(2).wait == "preempted by p7"
    assert [n.id for n in dag.running()] == [0]
    assert sorted(n.id for n in dag.waiting()) == [1, 2]
    dag.start(2, 5.0)
    assert (dag.node(2).started_at, dag.node(2).wait) == (1.0, "")
    dag.finish(0, 6.0)
    assert [n.id for n in dag.running()] == [2]
    check_integrity(dag)


def test_close_cancels_what_is_open(dag: ExecutionDAG) -> None:
    for _ in range(3):
        dag.add(NodeKind.CALL, "m", "main", (), 0.0)
    dag.start(1, 1.0)
    dag.requeue(1, "preempted by p7")
    dag.finish(0, 2.0)
    left = dag.close(3.0, NodeState.FAILED)
    assert [(n.id, n.state, n.ended_at) for n in left] == [
        (2, NodeState.CANCELLED, 3.0),
        (1, NodeState.CANCELLED, 3.0),
    ]
    assert left[1].wait == ""
    assert (dag.running(), dag.waiting()) == ([], [])
    assert (dag.state, dag.closed_at) == (NodeState.FAILED, 3.0)
    with pytest.raises(InvariantError, match="has ended"):
        dag.add(NodeKind.CALL, "m", "main", (), 4.0)
    with pytest.raises(InvariantError):
        dag.close(4.0, NodeState.DONE)
    check_integrity(dag)


def test_events_out_of_order_are_refused(dag: ExecutionDAG) -> None:
    node = dag.add(NodeKind.CALL, "m", "main", (), 0.0)
    with pytest.raises(InvariantError, match="cannot be a parent"):
        dag.add(NodeKind.CALL, "m", "main", (node.id,), 1.0)
    with pytest.raises(InvariantError, match="no node 7"):
        dag.add(NodeKind.CALL, "m", "main", (7,), 1.0)
    with pytest.raises(InvariantError, match="no node -1"):
        dag.finish(-1, 1.0)
    with pytest.raises(InvariantError, match=r"cannot requeue node 0 .*: it is waiting"):
        dag.requeue(node.id, "")
    dag.start(node.id, 1.0)
    with pytest.raises(InvariantError, match=r"cannot start node 0 .*: it is running"):
        dag.start(node.id, 1.0)
    dag.finish(node.id, 2.0)
    with pytest.raises(InvariantError, match="already ended"):
        dag.finish(node.id, 3.0)
    with pytest.raises(InvariantError):
        dag.close(4.0, NodeState.RUNNING)
    assert [n.state for n in dag.nodes()] == [NodeState.DONE]
    check_integrity(dag)


def test_parents_may_come_in_any_order_and_twice(dag: ExecutionDAG) -> None:
    call(dag, (), 1.0)
    call(dag, (), 2.0)
    assert dag.add(NodeKind.CALL, "m", "main", (1, 0, 1), 0.0).parents == (0, 1)
    check_integrity(dag)


def test_a_shared_tuple_of_parents_is_looked_at_once(dag: ExecutionDAG) -> None:
    """A thousand nodes after the same thousand: a million edges, a thousand look-ups."""
    looked = 0

    class Counting(ExecutionDAG):
        def node(self, node_id: int) -> Node:
            nonlocal looked
            looked += 1
            return super().node(node_id)

    wide = Counting("p", "t")
    for _ in range(1000):
        call(wide, (), 1.0)
    parents = tuple(range(1000))
    looked = 0
    nodes = [wide.add(NodeKind.CALL, "m", "main", parents, 0.0) for _ in range(1000)]
    assert looked == 1000
    assert all(node.parents is parents and node.path_s == 1.0 for node in nodes)


@pytest.mark.parametrize(
    ("field", "wrong", "rules"),
    [
        ("id", 7, "node 2: wrong id"),
        ("path_s", 1.0, "node 2: wrong path_s"),
        ("depth", 5, "node 2: wrong depth"),
        ("service_s", 3.5, "node 2: wrong service_s"),
        ("parents", (2,), "node 2: wrong parents, depth, path_s"),
        ("state", NodeState.RUNNING, "node 2: wrong ended_at"),
        ("ended_at", None, "node 2: wrong ended_at"),
        ("ended_at", -1.0, "node 2: wrong times"),
        ("created_at", -1.0, "node 2: wrong created_at"),
        ("via", None, "program p1: wrong critical_seconds, critical_nodes"),
    ],
)
def test_the_integrity_check_detects_faults(
    dag: ExecutionDAG, field: str, wrong: object, rules: str
) -> None:
    call(dag, (), 1.0)
    call(dag, (), 5.0)
    node = call(dag, (0, 1), 2.0)
    check_integrity(dag)
    setattr(node, field, wrong)
    with pytest.raises(InvariantError) as broken:
        check_integrity(dag)
    assert str(broken.value) == rules


@given(st.randoms(use_true_random=False), st.integers(1, 60))
@settings(max_examples=30, deadline=None)
def test_any_order_of_events_keeps_integrity(rng: random.Random, steps: int) -> None:
    dag = ExecutionDAG("p", "t")
    for at in range(steps):
        ended = [n.id for n in dag.nodes() if n.state.ended]
        parents = tuple(rng.sample(ended, min(len(ended), rng.randint(0, 3))))
        dag.add(rng.choice(list(NodeKind)), "m", "main", parents, at)
        if dag.waiting() and rng.random() < 0.6:
            dag.start(rng.choice(dag.waiting()).id, at)
        if dag.running() and rng.random() < 0.2:
            dag.requeue(rng.choice(dag.running()).id, "again")
        both = dag.waiting() + dag.running()
        if both and rng.random() < 0.8:
            report = CallReport(service_s=rng.choice([0.0, 0.1, 0.7, 1.3]))
            node_id = rng.choice(both).id
            rng.choice([dag.finish, dag.cancel])(node_id, at, report)
        check_integrity(dag)
    dag.close(steps, NodeState.DONE)
    check_integrity(dag)
