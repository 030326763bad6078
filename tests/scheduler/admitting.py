"""An engine for tests of admission: calls arrive, begin when they may, grow, and end."""

from __future__ import annotations

from collections import Counter
from typing import Any

from agentrt.scheduler import ProgramTotals, QueuedCall, SchedulerConfig, SchedulerCore
from agentrt.scheduler.admission import Admission, Capacity
from agentrt.scheduler.admission.memory import WorkingSet
from agentrt.scheduler.events import (
    CallArrived,
    CallFinished,
    CallStarted,
    InterruptEnded,
    InterruptStarted,
    ProgramEnded,
    StepFinished,
)
from agentrt.scheduler.state import CallState

BLOCK = 16
KIND = ("default", "t")
TOKEN_S = 1 / 1024
"""What a token of a prompt takes in `Counted`."""
WORTH_S = 100 * BLOCK * TOKEN_S
"""What its whole cache takes to compute anew."""


class Admitting:
    """Calls are named after their programs: 'a/0' is the first of program 'a'.

    ``contexts`` are the computed tokens of each program, with which its next call begins;
    ``free`` is the number of free blocks of the cache; by default all blocks are free.
    """

    def __init__(self, admission: str, *, blocks: int = 100, slots: int = 8, **more: Any) -> None:
        self.config = SchedulerConfig(**{"policy": "fcfs", "admission": admission, **more})
        capacity = Capacity(blocks, BLOCK, slots)
        self.core = SchedulerCore(self.config, slots=slots, capacity=capacity)
        self.table = self.core.table
        self.learned = self.core.learned
        self.running: list[QueuedCall] = []
        self.contexts: dict[str, int] = {}
        self.slots, self.now, self._named = slots, 0.0, 0

    @property
    def admission(self) -> Admission:
        assert self.core.admission is not None
        return self.core.admission

    @property
    def working(self) -> WorkingSet:
        assert isinstance(self.admission, WorkingSet)
        return self.admission

    def inside(self) -> set[str]:
        return {row.program_id for row in self.table if row.resident}

    def outside(self) -> set[str]:
        """The calls that are not admitted."""
        calls = self.core.calls.values()
        return {call.call_id for call in calls if call.state is CallState.NOT_ADMITTED}

    def arrive(
        self, program: str, tokens: int, type: str = "t", *, fresh: bool = False, beside: int = 0
    ) -> str:
        """A call adds ``tokens`` of prompt to its program's context, or, with ``fresh``, shares
        none of it.

        Its first ``beside`` tokens are shared with another call of the program that is in the
        engine now.
        """
        row = self.table.get(program) or self.table.start_program(program, type, self.now)
        call_id, known = f"{program}/{self._named}", 0 if fresh else self.contexts.get(program, 0)
        self._named += 1
        call = QueuedCall(call_id, row, None, None, self.now, prompt_tokens=known + tokens)
        call.known_tokens, call.beside_tokens = known, beside
        self.core.handle(CallArrived(call, self.now))
        self.core.queue.put(call)
        return call_id

    def step(self, seconds: float = 1.0) -> list[str]:
        """Admit waiting programs, fill the slots, let time pass, and return the begun calls."""
        self.let_in(len(self.running))
        began = []
        while len(self.running) < self.slots and self.core.queue.head() is not None:
            call = self.core.queue.take()
            call.cached_tokens = self.contexts.get(call.program.program_id, 0)
            self.core.handle(CallStarted(call, self.now))
            self.running.append(call)
            began.append(call.call_id)
        for call in self.running:
            self.core.handle(StepFinished([call.call_id], seconds, self.now))
        self.now += seconds
        return began

    def let_in(self, running: int = 1, *, check: bool = True) -> None:
        self.core.admit(self.now, running)
        if check:
            check_sums(self.core.admission)

    def end(self, call_id: str, output: int = 16) -> None:
        """End a call in any state, with this number of output tokens."""
        call = self.core.calls[call_id]
        if call in self.running:
            self.running.remove(call)
            call.computed_tokens = call.prompt_tokens + output
            self.contexts[call.program.program_id] = call.computed_tokens
        self.core.handle(CallFinished(call, self.now))

    def begins(self, program: str, kind: str = "tool", name: str = "grep") -> None:
        """A program waits for a tool of this name, or for a human."""
        if (row := self.table.get(program)) is not None:
            self.core.handle(InterruptStarted(row, kind, name, self.now))

    def answered(self, program: str, kind: str = "tool") -> None:
        row = self.table.get(program)
        if row is not None and (row.humans if kind == "human" else row.tools):
            self.core.handle(InterruptEnded(row, kind, self.now))

    def end_program(self, program: str) -> None:
        """A program ends, or is cancelled."""
        row = self.table.get(program)
        assert row is not None
        self.core.handle(ProgramEnded(ProgramTotals.of(row), self.now))


def held(working: WorkingSet) -> int:
    """Blocks that the residents without calls claim."""
    return sum(row.claim for row in working.residents if not row.queued)


class Counted(Admitting):
    """A working set over 100 blocks of 16 tokens.

    The lengths of programs are in blocks: a call claims the blocks of its prompt and one block for
    its rest, and nothing for its output, which is known to be empty.
    """

    def __init__(self, **more: Any) -> None:
        super().__init__("memory", **more)
        self.learned.call_ended(KIND, 0)
        self.learned.costs.step(0.0, 1, 1)
        for _ in range(3):
            self.learned.costs.step(1024 * TOKEN_S, 1025, 1)

    def wants(self, program: str, blocks: int, type: str = "t") -> str:
        return self.arrive(program, (blocks - 1) * BLOCK, type)


def check_sums(admission: Admission | None) -> None:
    """Check that a working set's sums are those of its residents."""
    if not isinstance(admission, WorkingSet):
        return
    calling = [row for row in admission.residents if row.queued]
    assert admission._needed == sum(row.claim - row.growth for row in calling)
    kept = [row for row in admission.residents if row not in admission._due]
    assert admission._kept == sum(row.claim - row.growth for row in kept)
    assert admission._growth == sum(row.growth for row in admission.residents)
    assert admission._due_claim == sum(row.claim for row in admission._due)
    assert admission.claimed == admission._shared + sum(r.claim for r in admission.residents)
    waiting = [call.program.kind for call in admission._by_age]
    assert admission._kinds == Counter([*(row.kind for row in admission.residents), *waiting])


def full(**more: Any) -> Counted:
    """60 of 100 blocks are claimed, and the next program in the order needs 60."""
    engine = Counted(**more)
    engine.wants("a", 60)
    engine.step()
    engine.wants("large", 60)
    return engine
