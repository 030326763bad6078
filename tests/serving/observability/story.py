"""Random histories of programs, written into a registry one event at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from hypothesis import strategies as st

from agentrt.errors import InterruptExpiredError
from agentrt.graph import Interrupt, Node, NodeKind, Progress
from agentrt.request import CallReport
from agentrt.runtime.run import Run, RunRegistry, RunState
from agentrt.serving.observability.program_log import ProgramLog
from agentrt.tracking.scope import Scope

TENANTS = ("ann", "bob")
TYPES = ("react", "tree")
ENDS = (RunState.DONE, RunState.FAILED, RunState.CANCELLED)

Deed = tuple[str, int]
"""What happens, and a number that says to whom and how."""

DEEDS = ("open", "call", "call", "tool", "human", "event", "tell", "end", "end", "end", "close")
deeds = st.lists(st.tuples(st.sampled_from(DEEDS), st.integers(0, 10_000)), max_size=60)


class Story:
    """Does deeds in a ``registry`` of its own, which a ``log`` follows. ``runs`` are all programs
    that there ever were.
    """

    def __init__(self) -> None:
        ticks = count()
        self.registry = RunRegistry(clock=lambda: next(ticks) / 8)
        self.log = ProgramLog(self.registry)
        self.log.open()
        self.runs: list[Run] = []
        self._open: list[tuple[Run, Scope, Node]] = []

    def tell(self, deeds: Sequence[Deed]) -> None:
        """Do them, in order. What cannot be done now is left out."""
        for kind, number in deeds:
            self.do(kind, number)

    def do(self, kind: str, number: int) -> None:
        """One deed."""
        live = list(self.registry.runs.values())
        if kind == "open":
            self._begin(number)
        elif kind == "end" and self._open:
            self._end(*self._open.pop(number % len(self._open)), number)
        elif kind == "close" and live:
            self.registry.close(live[number % len(live)], ENDS[number % len(ENDS)])
        elif kind == "tell" and self._open:
            self._tell(*self._open[number % len(self._open)], number)
        elif kind in ("call", "tool", "human", "event") and live:
            self._emit(kind, live[number % len(live)])

    def _begin(self, number: int) -> None:
        tenant, type = TENANTS[number % 2], TYPES[number // 2 % 2]
        self.runs.append(self.registry.open(type, tenant=tenant, session=f"s{number % 3}"))

    def _emit(self, kind: str, run: Run) -> None:
        scope = Scope(run, run.type)
        if kind == "call":
            node = self.registry.begin_call(run, scope, "llm")
        else:
            asked = Interrupt("mqtt", {"n": 1})
            node = self.registry.begin_interrupt(run, scope, NodeKind(kind), f"a {kind}", (), asked)
        self._open.append((run, scope, node))

    def _tell(self, run: Run, scope: Scope, node: Node, number: int) -> None:
        if node.kind is NodeKind.CALL:
            return
        if number % 3 == 0:
            self.registry.interrupt_waits(run, node, f"for one of {number} slots")
        elif number % 3 == 1:
            self.registry.interrupt_starts(run, node, number % 5, 2.0)
        else:
            self.registry.interrupt_progress(run, node, Progress(number % 7, 7, "looking"))

    def _end(self, run: Run, scope: Scope, node: Node, number: int) -> None:
        error: Exception | None = ValueError("no") if number % 5 == 0 else None
        if number % 5 == 1 and node.kind is not NodeKind.CALL:
            error = InterruptExpiredError("late")
        if node.kind is not NodeKind.CALL:
            self.registry.end_interrupt(run, scope, node, error)
            return
        cancelled = number % 7 == 0
        report = CallReport(
            service_s=number % 11 / 4,
            waiting_s=number % 3 / 4,
            steps=number % 11,
            preemptions=number % 2,
            prompt_tokens=number % 100,
            cached_tokens=number % 100 // 2,
            output_tokens=number % 50,
        )
        self.registry.end_call(run, scope, node, report, cancelled=cancelled, error=error)
