"""Nodes by themselves: how far an interrupt is, in words, and a copy that stands still."""

from __future__ import annotations

import pytest

from agentrt.errors import InvariantError
from agentrt.graph import ExecutionDAG, Interrupt, NodeKind, NodeState, Progress


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (Progress(3.0), "3"),
        (Progress(3.0, 10.0), "3/10"),
        (Progress(0.5, 1.0, "drilling"), "0.5/1 drilling"),
        (Progress(2.0, message="boxes"), "2 boxes"),
    ],
)
def test_progress_in_words(progress: Progress, words: str) -> None:
    assert str(progress) == words


def test_an_interrupt_in_words() -> None:
    asked = Interrupt("thread")
    assert str(asked) == ""
    asked.progress = Progress(1.0, 2.0)
    asked.attempt = 1
    assert str(asked) == "1/2"
    asked.attempt = 2
    assert str(asked) == "attempt 2, 1/2"
    asked.progress = None
    assert str(asked) == "attempt 2"


def test_a_copy_stays_as_it_was() -> None:
    dag = ExecutionDAG("p", "demo")
    node = dag.add(NodeKind.TOOL, "drill", "main", (), 1.0)
    node.interrupt = Interrupt("thread", attempt=1)
    copy = node.copy()
    assert copy == node
    node.interrupt.attempt, node.name = 2, "mill"
    assert copy.interrupt is not None
    assert (copy.name, copy.interrupt.attempt) == ("drill", 1)
    assert dag.add(NodeKind.CALL, "m", "main", (), 2.0).copy().interrupt is None


def test_a_program_that_asks_on_leaves_its_questions_open() -> None:
    dag = ExecutionDAG("p", "demo")
    kinds = (NodeKind.HUMAN, NodeKind.TOOL, NodeKind.HUMAN)
    nodes = [dag.add(kind, "n", "main", (), 1.0) for kind in kinds]
    dag.start(nodes[2].id, 2.0)
    assert dag.close(3.0, NodeState.INTERRUPTED) == tuple(nodes)
    ends = [NodeState.INTERRUPTED, NodeState.CANCELLED, NodeState.INTERRUPTED]
    assert [node.state for node in nodes] == ends
    with pytest.raises(InvariantError, match="cannot close program p as done: it is interrupted"):
        dag.close(4.0, NodeState.DONE)
