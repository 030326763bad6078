"""The paper's toy figures as data: programs, conventions, and the numbers that come out.

The paper (Agentix, arXiv 2502.13965) draws its toys and leaves their conventions unsaid.
Ours, common to all: time is in decode steps; a program's waiting is its latency minus the
work on its own critical path; the best B calls run in each step (Algorithm 1, lines
32-39); preempted calls, the worst first, go to the tail of their level; calls that end are
replaced by their successors before others are demoted, and a policy that learns from programs'
ends learns from each at once; a call keeps the full quantum of the level that it enters; levels
end at the running sum of the quanta; no promotion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from agentrt.lab.backends.steps import Steps
from agentrt.lab.driver import drive
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.scheduler import SchedulerConfig
from agentrt.scheduler.policies import policy_class

_COMMON = {
    "time": "decode steps, all alike",
    "waiting": "latency minus the work on the program's own critical path",
    "preemption": "at any step; the victim goes to the tail of its level",
    "order": "arrivals and successors before demotions; no promotion",
    "levels": "they end at the running sum of the quanta; a call keeps a full quantum",
}


def toy(name: str, *calls: tuple[int, tuple[int, ...]]) -> ProgramShape:
    """A program of calls, each of so many steps after others."""
    shapes = (CallShape(steps, after=after, node="") for steps, after in calls)
    return ProgramShape(name, "toy", tuple(shapes))


def chain(name: str, *steps: int) -> ProgramShape:
    """A program of calls one after the other."""
    return toy(name, *((n, (i - 1,) if i else ()) for i, n in enumerate(steps)))


@dataclass(frozen=True, slots=True)
class Toy:
    """A toy of the paper: what runs, on how many slots, whose waiting is counted.

    ``quanta`` (steps) are by policy, since the paper gives none; other policies have
    ``other_quanta``. ``paper`` are the waiting times that the paper states, by
    policy in its order.
    """

    figure: int
    programs: tuple[ProgramShape, ...]
    batch: int
    counted: tuple[str, ...]
    other_quanta: tuple[float, ...]
    quanta: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    paper: Mapping[str, int] = field(default_factory=dict)
    note: str = ""

    def config(self, policy: str) -> SchedulerConfig:
        """The scheduler's settings under this figure's convention."""
        return SchedulerConfig(
            policy=policy,
            quanta=self.quanta.get(policy, self.other_quanta),
            beta=math.inf,
            lane=0.0,
            min_residency_steps=0,
            min_remaining_tokens=0,
        )

    def convention(self, policy: str) -> dict[str, Any]:
        """All that the paper leaves open and that we had to choose, as JSON-able values."""
        config = self.config(policy)
        # No level ever matters to a policy that serves in the order of arrival.
        quanta = [*config.quanta, None] if policy_class(policy).levelled else None
        chosen = {"batch": self.batch, "counted": list(self.counted), "quanta": quanta}
        return {**chosen, **_COMMON, "note": self.note}

    def run(self, policy: str) -> ToyRun:
        backend = Steps(self.config(policy), self.batch, 1.0, strict=True)
        outcomes = drive(backend, self.programs).outcomes
        ends = {one.program_id: int(one.ended_s) for one in outcomes}
        counted = [one for one in outcomes if one.program_id in self.counted]
        waiting = sum(int(one.latency_s - one.ideal_s) for one in counted)
        return ToyRun(self, policy, waiting, ends)


@dataclass(frozen=True, slots=True)
class ToyRun:
    """What came of a toy under a policy.

    ``waiting`` (steps) is that of the counted programs, ``ends`` is the step of each end.
    """

    toy: Toy
    policy: str
    waiting: int
    ends: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        convention = self.toy.convention(self.policy)
        return {"policy": self.policy, "waiting": self.waiting, "convention": convention}


FIGURE_2 = Toy(
    figure=2,
    programs=(chain("A", 4, 3, 1, 1), chain("B", 3, 3, 4), chain("C", 1, 2), chain("D", 4)),
    batch=2,
    counted=("A", "B", "C", "D"),
    other_quanta=(2, 2, 2),
    # With these, A and B lose the engine to C and D as drawn, and D waits for the later
    # calls of A and B.
    quanta={"mlfq": (1, 2)},
    paper={"fcfs": 18, "mlfq": 18, "plas": 12},
    note="No quanta that we tried (all up to 5 steps, 1 to 4 of them) give both 18 for mlfq "
    "and 12 for plas; with the quanta 1, 2 for both it is 18 and 14.",
)
"""Four programs of calls in a row, two slots: what FCFS and MLFQ do to short programs."""

FIGURE_19 = Toy(
    figure=19,
    # Under MLFQ each of A's later calls interrupts B; under ATLAS they rank behind.
    programs=(toy("A", (1, ()), (1, ()), (1, (0,)), (2, (2,))), chain("B", 3)),
    batch=1,
    counted=("B",),
    other_quanta=(2,),
    paper={"mlfq": 5, "atlas": 3},
    note="The paper does not give the lengths of the calls; these reproduce its waiting times. "
    "B's later calls are left out: what is counted is how long its first one waits.",
)
"""Two-way parallel short calls (A) against one long call (B), one slot."""

TOYS = {toy.figure: toy for toy in (FIGURE_2, FIGURE_19)}
"""Figures whose number is a waiting time."""


# -- figure 9: what the order of calls does to one program's makespan ------------------

# The paper's caption calls 14 the best makespan and 11 the worst; its text has it the right way
# round: without regard to the critical path the makespan grows from 11 to 14. The drawing gives no
# lengths that one could take over, so the DAG here is ours: a critical path of 11 steps beside two
# calls that can hold it up for 3.
FIGURE_9 = toy("P", (2, ()), (3, (0,)), (3, (0,)), (3, (0,)), (3, (3,)), (3, (1, 2, 4)))
"""0 forks into 1, 2 and 3; 4 follows 3; 5 joins 1, 2 and 4. Its critical path is 0, 3, 4, 5."""


@dataclass(frozen=True, slots=True)
class Search:
    """What all orders of a program's calls come to: makespans in steps.

    ``critical_first`` follows the longest path of work still to come, the longest first.
    """

    program: ProgramShape
    batch: int
    orders: int
    best: int
    worst: int
    worst_order: tuple[int, ...]
    critical_first: int

    @property
    def critical_path(self) -> int:
        return int(self.program.ideal_s(1.0))

    def to_dict(self) -> dict[str, Any]:
        calls = [{"steps": c.output_tokens, "after": list(c.after)} for c in self.program.calls]
        return {
            "figure": 9,
            "best": self.best,
            "worst": self.worst,
            "critical_path_first": self.critical_first,
            "critical_path": self.critical_path,
            "convention": {
                "batch": self.batch,
                "orders_tried": self.orders,
                "critical_path_first": list(critical_path_order(self.program)),
                "worst": list(self.worst_order),
                "calls": calls,
                "time": "decode steps, all alike; the first ready calls of the order run",
                "note": "The caption in the paper swaps best and worst; the DAG is ours.",
            },
        }


def search(program: ProgramShape = FIGURE_9, batch: int = 2) -> Search:
    """Run the program under every order of its calls, and keep the best and the worst."""
    orders = list(permutations(range(len(program.calls))))
    steps = {order: makespan(program, order, batch) for order in orders}
    worst = max(orders, key=lambda order: steps[order])
    critical = steps[critical_path_order(program)]
    best = min(steps.values())
    return Search(program, batch, len(orders), best, steps[worst], worst, critical)


def makespan(program: ProgramShape, order: Sequence[int], batch: int) -> int:
    """Steps to the end, if in each the first ``batch`` calls of the order run that are ready."""
    left = [call.output_tokens for call in program.calls]
    steps = 0
    while any(left):
        ready = [i for i in order if left[i] and not any(left[p] for p in program.calls[i].after)]
        for index in ready[:batch]:
            left[index] -= 1
        steps += 1
    return steps


def critical_path_order(program: ProgramShape) -> tuple[int, ...]:
    """Calls by the longest path of steps from their start to the program's end."""
    steps = [call.output_tokens for call in program.calls]
    to_end = list(steps)
    for index in reversed(range(len(steps))):
        for parent in program.calls[index].after:
            to_end[parent] = max(to_end[parent], steps[parent] + to_end[index])
    return tuple(sorted(range(len(steps)), key=lambda i: (-to_end[i], i)))
