"""Any order of waits, starts, progress and ends leaves a legal DAG and a balanced table.

Interrupts of all kinds run beside calls, and some are told of after their own or their program's
end, as those of other frameworks and machines are.
"""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from agentrt.errors import InterruptExpiredError
from agentrt.graph import Interrupt, Node, NodeKind, NodeState, Progress, to_json
from agentrt.request import CallReport
from agentrt.runtime.events import Event, NodeChanged, NodeEnded, NodeStarted, notification_of
from agentrt.runtime.run import Run, RunRegistry, RunState
from agentrt.tracking.scope import Scope
from tests.graph.integrity import check_integrity

KINDS = [NodeKind.TOOL, NodeKind.HUMAN, NodeKind.EVENT]
ENDS = {
    NodeState.DONE: None,
    NodeState.FAILED: ValueError("odd"),
    NodeState.EXPIRED: InterruptExpiredError("late"),
    NodeState.CANCELLED: GeneratorExit(),
}
BEGIN = st.tuples(st.just("begin"), st.sampled_from(KINDS))
TELL = st.tuples(st.sampled_from(["wait", "start", "progress", "call"]), st.integers(0, 9))
END = st.tuples(st.sampled_from(list(ENDS)), st.integers(0, 9))


class Machine:
    """A program's interrupts in a registry, beside what each should be."""

    def __init__(self) -> None:
        ticks = count()
        self.registry = RunRegistry(clock=lambda: float(next(ticks)))
        self.events: list[Event] = []
        self.registry.listen(self.events.append)
        self.run: Run = self.registry.open("agent")
        self.scope = Scope(self.run, "agent")
        self.nodes: list[Node] = []
        self.open: list[Node] = []

    def begin(self, kind: NodeKind) -> None:
        asked = Interrupt("mqtt", {"n": len(self.nodes)}, key=str(len(self.nodes)))
        fork = self.scope.fork()
        node = self.registry.begin_interrupt(self.run, fork, kind, "x", (), asked)
        assert node.state is NodeState.RUNNING
        self.nodes.append(node)
        self.open.append(node)

    def tell(self, what: str, which: int) -> None:
        if what == "call":
            node = self.registry.begin_call(self.run, self.scope.fork(), "llm")
            self.registry.end_call(self.run, self.scope, node, CallReport(service_s=1.0))
            return
        if not self.nodes:
            return
        node = self.nodes[which % len(self.nodes)]
        state, was = node.state, len(self.events)
        if what == "wait":
            self.registry.interrupt_waits(self.run, node, f"for {which}")
            expected, shown = NodeState.WAITING, node.wait == f"for {which}"
        elif what == "start":
            self.registry.interrupt_starts(self.run, node, which, 2.0)
            expected, shown = NodeState.RUNNING, node.wait == ""
        else:
            self.registry.interrupt_progress(self.run, node, Progress(which))
            assert node.interrupt is not None
            expected, shown = state, node.interrupt.progress == Progress(which)
        if state.ended:  # what comes after its end changes nothing
            assert (node.state, len(self.events)) == (state, was)
        else:
            assert (node.state, shown) == (expected, True)

    def end(self, how: NodeState, which: int) -> None:
        if self.open:
            node = self.open.pop(which % len(self.open))
            self.registry.end_interrupt(self.run, self.scope, node, ENDS[how])
            assert node.state is how

    def check(self) -> None:
        row = self.run.row
        counts = {kind: sum(node.kind is kind for node in self.open) for kind in KINDS}
        assert [row.tools, row.humans, row.events] == list(counts.values())
        self.registry.table.check_integrity()
        check_integrity(self.run.dag)


@given(st.lists(BEGIN | TELL | END, max_size=40))
def test_any_order_gives_a_legal_dag_and_a_balanced_table(
    steps: list[tuple[object, object]],
) -> None:
    machine = Machine()
    for what, which in steps:
        if what == "begin":
            machine.begin(which)  # type: ignore[arg-type]
        elif isinstance(what, NodeState):
            machine.end(what, which)  # type: ignore[arg-type]
        else:
            machine.tell(what, which)  # type: ignore[arg-type]
        machine.check()
    left = list(machine.open)
    machine.registry.close(machine.run, RunState.CANCELLED)
    assert all(node.state is NodeState.CANCELLED for node in left)
    for node in left:  # their code hears of it only now
        machine.registry.end_interrupt(machine.run, machine.scope, node, GeneratorExit())
    machine.open.clear()
    machine.check()
    assert len(machine.registry.table) == 0
    kinds = [type(event) for event in machine.events]
    assert kinds.count(NodeStarted) == kinds.count(NodeEnded) == len(machine.run.dag)
    assert [node["state"] for node in to_json(machine.run.dag)["nodes"]] == [
        node.state.value for node in machine.run.dag.nodes()
    ]


def test_an_engine_hears_of_the_ends_alone_not_of_what_happens_between() -> None:
    """A tool elsewhere, an event and a tool of this process look the same to retention."""
    machine = Machine()
    machine.begin(NodeKind.TOOL)
    machine.tell("wait", 0)
    machine.tell("start", 0)
    machine.tell("progress", 0)
    machine.end(NodeState.DONE, 0)
    machine.begin(NodeKind.EVENT)
    machine.end(NodeState.EXPIRED, 0)
    assert sum(isinstance(event, NodeChanged) for event in machine.events) == 3
    told = [note for event in machine.events if (note := notification_of(event)) is not None]
    assert [note.kind for note in told] == ["tool", "returned"] * 2
