"""The paper's toy figures as decisions, each with the conventions that give its numbers.

Common to all: time is in decode steps; a program's waiting is its latency minus the work
on its own critical path; the best B calls run in each step (Algorithm 1, lines 32-39);
preempted calls, the worst first, go to the tail of their level; calls that end are
replaced by their successors before others are demoted; a call keeps the full quantum of
the level that it enters; levels end at the running sum of the quanta; no promotion.
"""

from __future__ import annotations

import math

import pytest

from agentrt.scheduler import SchedulerConfig
from agentrt.simulator.steps import ToyCall, ToyEngine, ToyProgram

FIGURE_2 = [
    ToyProgram.chain("A", [4, 3, 1, 1]),
    ToyProgram.chain("B", [3, 3, 4]),
    ToyProgram.chain("C", [1, 2]),
    ToyProgram.chain("D", [4]),
]


def toy_config(policy: str, quanta: tuple[float, ...]) -> SchedulerConfig:
    return SchedulerConfig(
        policy=policy,
        quanta=quanta,
        beta=math.inf,
        min_residency_steps=0,
        min_remaining_tokens=0,
    )


@pytest.mark.parametrize(
    ("policy", "quanta", "waiting"),
    [
        ("fcfs", (1,), 18),
        # The paper does not give the quanta of its figure. With these, A and B lose the
        # engine to C and D as drawn, and D waits for the later calls of A and B.
        ("mlfq", (1, 2), 18),
        ("plas", (2, 2, 2), 12),
        # Programs without parallel calls: the longest path is the sum.
        ("atlas", (2, 2, 2), 12),
    ],
)
def test_figure_2(policy: str, quanta: tuple[float, ...], waiting: int) -> None:
    result = ToyEngine(toy_config(policy, quanta), batch=2).run(FIGURE_2)
    assert result.waiting(FIGURE_2) == waiting


def test_figure_2_fcfs_is_blocked_at_the_head_of_the_line() -> None:
    result = ToyEngine(toy_config("fcfs", (1,)), batch=2).run(FIGURE_2)
    # C and D start only as A's and B's first calls end, at 3 and 4, as drawn.
    assert result.timeline[2] == ["A0", "B0"]
    assert result.timeline[3] == ["A0", "C0"]
    assert result.timeline[4] == ["C1", "D0"] or "D0" in result.timeline[4]


@pytest.mark.parametrize(("policy", "waiting_of_b"), [("mlfq", 5), ("atlas", 3)])
def test_figure_19(policy: str, waiting_of_b: int) -> None:
    """Two-way parallel short calls against one long one, one slot, quanta (2, inf).

    1. A starts two calls of one step; B starts one of three.
    2. A's first call leads to one of one step, and that to one of two.
    3. Under MLFQ each of A's later calls interrupts B; under ATLAS they rank behind.
    """
    a = ToyProgram("A", (ToyCall(1), ToyCall(1), ToyCall(1, (0,)), ToyCall(2, (2,))))
    b = ToyProgram.chain("B", [3])
    result = ToyEngine(toy_config(policy, (2,)), batch=1).run([a, b])
    assert result.ends["B"] - b.ideal == waiting_of_b


def test_plas_and_atlas_differ_where_calls_are_parallel() -> None:
    """A wide program is charged for its width by PLAS' sum, not by ATLAS' path."""
    wide = ToyProgram("W", (*(ToyCall(2) for _ in range(4)), ToyCall(4, (0, 1, 2, 3))))
    other = ToyProgram.chain("O", [3, 3, 3])

    def end_of_wide(policy: str) -> int:
        engine = ToyEngine(toy_config(policy, (2, 2, 2, 2)), batch=1)
        return engine.run([wide, other]).ends["W"]

    assert end_of_wide("atlas") < end_of_wide("plas")
