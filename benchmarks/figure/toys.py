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
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrt.scheduler import SchedulerConfig
from agentrt.scheduler.policies import policy_class
from tests.lab.toys import ToyCall, ToyEngine, ToyProgram

_COMMON = {
    "time": "decode steps, all alike",
    "waiting": "latency minus the work on the program's own critical path",
    "preemption": "at any step; the victim goes to the tail of its level",
    "order": "arrivals and successors before demotions; no promotion",
    "levels": "they end at the running sum of the quanta; a call keeps a full quantum",
}


@dataclass(frozen=True, slots=True)
class Toy:
    """A toy of the paper: what runs, on how many slots, whose waiting is counted.

    ``quanta`` (steps) are by policy, since the paper gives none; other policies have
    ``other_quanta``. ``paper`` are the waiting times that the paper states, by
    policy in its order.
    """

    figure: int
    programs: tuple[ToyProgram, ...]
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
        ran = ToyEngine(self.config(policy), self.batch).run(self.programs)
        counted = [one for one in self.programs if one.name in self.counted]
        return ToyRun(self, policy, ran.waiting(counted), ran.ends)


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
    programs=(
        ToyProgram.chain("A", (4, 3, 1, 1)),
        ToyProgram.chain("B", (3, 3, 4)),
        ToyProgram.chain("C", (1, 2)),
        ToyProgram.chain("D", (4,)),
    ),
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
    programs=(
        ToyProgram("A", (ToyCall(1), ToyCall(1), ToyCall(1, (0,)), ToyCall(2, (2,)))),
        ToyProgram.chain("B", (3,)),
    ),
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
