"""What the step simulator keeps of a program under way, and of each of its calls."""

from __future__ import annotations

from dataclasses import dataclass

from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.router import Trip
from agentrt.scheduler.table import ProgramRow


@dataclass(slots=True, eq=False)
class Live:
    """A program under way: what its calls wait for, and their critical paths so far."""

    shape: ProgramShape
    row: ProgramRow
    children: list[list[int]]
    parents_left: list[int]
    path_s: list[float]
    unfinished: int
    left_s: float
    waiting_s: float = 0.0
    preemptions: int = 0

    @classmethod
    def of(cls, shape: ProgramShape, row: ProgramRow, step_s: float) -> Live:
        children: list[list[int]] = [[] for _ in shape.calls]
        for index, call in enumerate(shape.calls):
            for parent in call.after:
                children[parent].append(index)
        parents = [len(call.after) for call in shape.calls]
        n = len(shape.calls)
        return cls(shape, row, children, parents, [0.0] * n, n, shape.output_tokens * step_s)


@dataclass(slots=True, eq=False)
class Job:
    """What the queues carry for us: a call's place in its program, its steps, its replica."""

    live: Live
    index: int
    left: int
    settled_at: int = 0
    stamp: int = 0
    trip: Trip | None = None

    @property
    def ends_at(self) -> int:
        """The step at which it has nothing left, if it goes on running."""
        return self.settled_at + self.left


def fresh_tokens(program: ProgramShape, call: CallShape) -> int:
    """What of a prompt no earlier call of the program has computed."""
    if call.extends is None:
        return call.prompt_tokens
    parent = program.calls[call.extends]
    return max(1, call.prompt_tokens - parent.prompt_tokens - parent.output_tokens)
