"""Figure 9: what the order of calls does to one program's makespan, by trying all orders.

The paper's caption calls 14 the best makespan and 11 the worst; its text has it the right
way round: without regard to the critical path the makespan grows from 11 to 14. The drawing
gives no lengths that one could take over, so the DAG here is ours: a critical path of 11
steps beside two calls that can hold it up for 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any

from agentrt.lab.studies.toys import ToyCall, ToyProgram

FIGURE_9 = ToyProgram(
    "P",
    (
        ToyCall(2),
        ToyCall(3, (0,)),
        ToyCall(3, (0,)),
        ToyCall(3, (0,)),
        ToyCall(3, (3,)),
        ToyCall(3, (1, 2, 4)),
    ),
)
"""0 forks into 1, 2 and 3; 4 follows 3; 5 joins 1, 2 and 4. Its critical path is 0, 3, 4, 5."""

FIGURE_9_BATCH = 2


@dataclass(frozen=True, slots=True)
class Schedule:
    """A program run under a fixed order of its calls: which ran in each step, as 'P0', …"""

    order: tuple[int, ...]
    timeline: list[list[str]]

    @property
    def makespan(self) -> int:
        """Steps from start to end."""
        return len(self.timeline)


@dataclass(frozen=True, slots=True)
class Search:
    """What all orders of a program's calls come to.

    ``critical_first`` follows the longest path of work still to come, the longest first.
    """

    program: ToyProgram
    batch: int
    orders: int
    best: Schedule
    worst: Schedule
    critical_first: Schedule

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values, for ``--json``."""
        return {
            "figure": 9,
            "best": self.best.makespan,
            "worst": self.worst.makespan,
            "critical_path_first": self.critical_first.makespan,
            "critical_path": self.program.ideal,
            "convention": {
                "batch": self.batch,
                "orders_tried": self.orders,
                "critical_path_first": list(self.critical_first.order),
                "worst": list(self.worst.order),
                "calls": [{"steps": c.steps, "after": list(c.after)} for c in self.program.calls],
                "time": "decode steps, all alike; the first ready calls of the order run",
                "note": "The caption in the paper swaps best and worst; the DAG is ours.",
            },
        }


@cache
def search(program: ToyProgram = FIGURE_9, batch: int = FIGURE_9_BATCH) -> Search:
    """Run the program under every order of its calls, and keep the best and the worst."""
    orders = list(permutations(range(len(program.calls))))
    schedules = [in_order(program, order, batch) for order in orders]
    return Search(
        program,
        batch,
        len(orders),
        min(schedules, key=lambda s: s.makespan),
        max(schedules, key=lambda s: s.makespan),
        in_order(program, critical_path_order(program), batch),
    )


def in_order(program: ToyProgram, order: Sequence[int], batch: int) -> Schedule:
    """In each step the first ``batch`` calls of the order run whose parents are done."""
    left = [call.steps for call in program.calls]
    timeline: list[list[str]] = []
    while any(left):
        ready = [i for i in order if left[i] and not any(left[p] for p in program.calls[i].after)]
        running = ready[:batch]
        for index in running:
            left[index] -= 1
        timeline.append([f"{program.name}{index}" for index in sorted(running)])
    return Schedule(tuple(order), timeline)


def critical_path_order(program: ToyProgram) -> tuple[int, ...]:
    """Calls by the longest path of steps from their start to the program's end."""
    to_end = [call.steps for call in program.calls]
    for index in reversed(range(len(program.calls))):
        for parent in program.calls[index].after:
            to_end[parent] = max(to_end[parent], program.calls[parent].steps + to_end[index])
    return tuple(sorted(range(len(to_end)), key=lambda i: (-to_end[i], i)))
