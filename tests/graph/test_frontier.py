"""Frontiers are forked, advanced and joined by hand, and compared with sets written by hand."""

from __future__ import annotations

import gc
import random
import weakref

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.graph import (
    ExecutionDAG,
    Frontier,
    Node,
    NodeKind,
    calls_before,
    maximal,
)
from tests.graph.integrity import check_integrity


class Counting(ExecutionDAG):
    """Counts how often a node is looked at."""

    looked = 0

    def node(self, node_id: int) -> Node:
        self.looked += 1
        return super().node(node_id)


def emit(dag: ExecutionDAG, frontier: Frontier) -> int:
    """A node that is emitted and ends at once."""
    parents = frontier.prune(dag)
    node = dag.add(NodeKind.CALL, "m", "main", parents, 0.0)
    dag.finish(node.id, 0.0)
    frontier.advance(node.id, parents)
    return node.id


def chain(dag: ExecutionDAG, length: int) -> Frontier:
    frontier = Frontier()
    for _ in range(length):
        emit(dag, frontier)
    return frontier


def test_fork_and_join() -> None:
    dag = ExecutionDAG("p", "t")
    main = chain(dag, 1)
    left, right, idle = main.fork(), main.fork(), main.fork()
    emit(dag, left)
    emit(dag, right)
    for child in (left, right, idle):
        main.join(child)
    assert main.ids == (1, 2)


def test_a_child_that_emitted_nothing_brings_nothing() -> None:
    dag = ExecutionDAG("p", "t")
    main = chain(dag, 1)
    idle = main.fork()
    emit(dag, main)
    main.join(idle)
    assert main.ids == (1,)


def test_late_join_keeps_both() -> None:
    """1. fork 2. both emit 3. join: neither end comes before the other."""
    dag = ExecutionDAG("p", "t")
    main = chain(dag, 1)
    child = main.fork()
    emit(dag, child)
    emit(dag, main)
    main.join(child)
    assert main.ids == (1, 2)


def test_joining_twice_changes_nothing() -> None:
    dag = ExecutionDAG("p", "t")
    main = chain(dag, 1)
    child = main.fork()
    emit(dag, child)
    main.join(child)
    emit(dag, main)
    main.join(child)
    assert main.ids == (2,)


def test_joining_another_threads_child_twice_changes_nothing() -> None:
    dag = ExecutionDAG("p", "t")
    main = chain(dag, 1)
    shared, other = main.fork(), main.fork()
    emit(dag, shared)
    for _ in range(3):
        other.join(shared)
        emit(dag, other)
    assert [dag.node(n).parents for n in (2, 3, 4)] == [(1,), (2,), (3,)]


def test_join_across_threads_is_pruned_at_the_next_emission() -> None:
    """t2 waits for t1; main waits for both: only t2's node is a parent."""
    dag = ExecutionDAG("p", "t")
    main = chain(dag, 1)
    t1, t2 = main.fork(), main.fork()
    emit(dag, t1)
    t2.join(t1)
    emit(dag, t2)
    main.join(t1)
    main.join(t2)
    assert main.prune(dag) == (2,)


def test_overlapping_emissions_of_one_thread_both_stay() -> None:
    dag = ExecutionDAG("p", "t")
    main = chain(dag, 1)
    parents = main.prune(dag)
    for _ in range(2):
        dag.add(NodeKind.CALL, "m", "main", parents, 0.0)
    for node_id in (1, 2):
        dag.finish(node_id, 0.0)
        main.advance(node_id, parents)
    assert main.ids == (1, 2)


def test_a_node_that_ends_after_a_join_supersedes_its_parents_only() -> None:
    """1. main forks a child, and emits. 2. It emits again, and waits for the child meanwhile."""
    dag = ExecutionDAG("p", "t")
    main = Frontier()
    child = main.fork()
    emit(dag, main)
    emit(dag, child)
    node = dag.add(NodeKind.CALL, "m", "main", main.prune(dag), 0.0)
    main.join(child)
    dag.finish(node.id, 0.0)
    main.advance(node.id, node.parents)
    assert main.ids == (1, 2)


def test_include_names_nodes_by_hand() -> None:
    dag = ExecutionDAG("p", "t")
    main = chain(dag, 2)
    other = chain(dag, 1)
    main.include([0, *other.ids])
    assert main.prune(dag) == (1, 2)


def test_grown_views_are_shared_until_something_changes() -> None:
    main = Frontier([3, 1])
    first, second = main.fork(), main.fork()
    assert first.ids is second.ids is main.ids
    assert main.ids == (1, 3)


def test_ten_thousand_in_a_row_look_at_nothing() -> None:
    dag = Counting("p", "t")
    frontier = Frontier()
    for _ in range(10_000):
        emit(dag, frontier)
    # add looks at the one parent, finish at the node itself.
    assert dag.looked <= 2 * 10_000
    assert frontier.ids == (9999,)
    check_integrity(dag)


def test_ten_thousand_children_in_a_row_look_at_nothing() -> None:
    dag = Counting("p", "t")
    main = Frontier()
    for _ in range(10_000):
        child = main.fork()
        emit(dag, child)
        main.join(child)
    assert dag.looked <= 2 * 10_000
    assert main.ids == (9999,)


def test_wide_fan_out_and_join_look_at_each_edge_once() -> None:
    dag = Counting("p", "t")
    main = Frontier()
    emit(dag, main)
    for layer in range(3):
        children = [main.fork() for _ in range(1000)]
        for child in children:
            emit(dag, child)
        for child in children:
            main.join(child)
        assert len(main.ids) == 1000
        assert main.ids[0] == 1 + 1000 * layer
    # Parents are looked at once per layer, and each node once at its end.
    assert dag.looked <= 3 * (1000 + 1000) + 1 + 1000


def test_threads_do_not_keep_each_other_alive() -> None:
    first = Frontier()
    gone = weakref.ref(first)
    frontier = first
    for _ in range(100_000):
        frontier = frontier.fork()
    del first
    gc.collect()
    assert gone() is None


def test_maximal_keeps_an_ancestor_beyond_its_budget() -> None:
    """A redundant edge is harmless; a search of the whole program is not."""
    dag = Counting("p", "t")
    chain(dag, 10_000)
    dag.looked = 0
    assert maximal([9_000, 9_999], dag, budget=100) == (9_000, 9_999)
    assert dag.looked <= 2 * (100 + 4 * 2) + 2
    assert maximal([9_000, 9_999], dag, budget=2_000) == (9_999,)


def test_maximal_of_equals_looks_no_further() -> None:
    dag = Counting("p", "t")
    root = chain(dag, 500)
    leaves = []
    for _ in range(100):
        leaf = root.fork()
        leaves.append(emit(dag, leaf))
    dag.looked = 0
    assert maximal(leaves, dag) == tuple(leaves)
    assert dag.looked == 100


@settings(max_examples=50, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_what_comes_last_and_which_calls_came_before(rng: random.Random, size: int) -> None:
    """Against all ancestors of every node, of which a call hides those of its own."""
    dag = ExecutionDAG("p", "t")
    before: list[set[int]] = []
    calls: list[set[int]] = []
    for number in range(size):
        parents = tuple(rng.sample(range(number), min(number, rng.choice([0, 1, 1, 2, 4]))))
        kind = rng.choice(list(NodeKind))
        dag.add(kind, "m", "main", parents, 0.0)
        dag.finish(number, 0.0)
        before.append(set(parents).union(*(before[parent] for parent in parents)))
        above = set[int]().union(*(calls[parent] for parent in parents))
        calls.append({number} if kind is NodeKind.CALL else above)
    for _ in range(5):
        ids = rng.sample(range(size), rng.randint(0, size))
        hidden = set[int]().union(*(before[node_id] for node_id in ids))
        assert maximal([*ids, *ids], dag, 10**6) == tuple(sorted(set(ids) - hidden))
        found = set[int]().union(*(calls[node_id] for node_id in ids))
        assert calls_before(tuple(ids), dag) == tuple(sorted(found))


class Threads:
    """Threads that fork, emit and join at random, each with the set of all nodes before its now."""

    def __init__(self) -> None:
        self.dag = ExecutionDAG("p", "t")
        self.threads: list[tuple[Frontier, set[int]]] = [(Frontier(), set())]
        self.before: list[set[int]] = []
        self.joined: set[tuple[int, int]] = set()
        self.open: list[tuple[int, int, tuple[int, ...]]] = []

    def last(self, known: set[int]) -> tuple[int, ...]:
        """The known nodes that come before no other known one."""
        return tuple(sorted(n for n in known if not any(n in self.before[m] for m in known)))

    def do(self, event: str, one: int, other: int) -> None:
        one, other = one % len(self.threads), other % len(self.threads)
        frontier, known = self.threads[one]
        if event == "fork":
            self.threads.append((frontier.fork(), set(known)))
        elif event == "emit":
            assert frontier.prune(self.dag) == self.last(known)
            node_id = emit(self.dag, frontier)
            assert self.dag.node(node_id).parents == self.last(known)
            self.before.append(set(known))
            known.add(node_id)
        elif event == "begin":
            parents = frontier.prune(self.dag)
            assert parents == self.last(known)
            self.open.append(
                (one, self.dag.add(NodeKind.CALL, "m", "main", parents, 0.0).id, parents)
            )
            self.before.append(set(known))
        elif event == "finish" and self.open:
            self.finish(*self.open.pop(other % len(self.open)))
        elif event == "include":
            unfinished = {node_id for _, node_id, _ in self.open}
            ids = [n for n in range(len(self.dag)) if n not in unfinished][other : other + 2]
            frontier.include(ids)
            known |= {n for node_id in ids for n in (node_id, *self.before[node_id])}
        elif event == "join" and one != other and (one, other) not in self.joined:
            self.joined.add((one, other))
            frontier.join(self.threads[other][0])
            known |= self.threads[other][1]

    def finish(self, thread: int, node_id: int, parents: tuple[int, ...]) -> None:
        """A node ends beside which its thread may have emitted, or waited for, others."""
        frontier, known = self.threads[thread]
        self.dag.finish(node_id, 0.0)
        frontier.advance(node_id, parents)
        known.add(node_id)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["fork", "emit", "begin", "finish", "join", "join", "include"]),
            st.integers(0, 5),
            st.integers(0, 5),
        ),
        min_size=10,
        max_size=50,
    )
)
def test_a_thread_comes_after_all_that_it_knows_of(story: list[tuple[str, int, int]]) -> None:
    """What it emits next has the last of these for parents, whoever told it of them."""
    threads = Threads()
    for event in story:
        threads.do(*event)
    for frontier, known in threads.threads:
        assert frontier.prune(threads.dag) == threads.last(known)
