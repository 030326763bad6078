"""The paper's toy figures as decisions. Conventions: `agentrt.lab.studies.figures`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentrt.errors import ConfigError
from agentrt.lab.studies.figures import (
    FIGURE_2,
    FIGURE_9,
    FIGURE_19,
    Toy,
    chain,
    critical_path_order,
    makespan,
    search,
    toy,
)


@pytest.mark.parametrize(
    ("figure", "policy", "waiting"),
    [
        (FIGURE_2, "fcfs", 18),
        (FIGURE_2, "mlfq", 18),
        (FIGURE_2, "plas", 12),
        # Programs without parallel calls: the longest path is the sum.
        (FIGURE_2, "atlas", 12),
        # 1. A starts two calls of one step; B starts one of three.
        # 2. A's first call leads to one of one step, and that to one of two.
        # 3. Under MLFQ each of A's later calls interrupts B; under ATLAS they rank behind.
        (FIGURE_19, "mlfq", 5),
        (FIGURE_19, "atlas", 3),
    ],
)
def test_waiting(figure: Toy, policy: str, waiting: int) -> None:
    assert figure.run(policy).waiting == waiting


def test_figure_2_orders_the_policies_alike_under_one_common_convention() -> None:
    common = replace(FIGURE_2, quanta={}, other_quanta=(1, 2))
    assert [common.run(policy).waiting for policy in ("fcfs", "mlfq", "plas")] == [18, 18, 14]


def test_the_convention_is_told_with_the_number() -> None:
    told = FIGURE_2.run("mlfq").to_dict()
    assert list(told) == ["policy", "waiting", "convention"]
    assert told["convention"]["quanta"] == [1, 2, None]
    assert FIGURE_2.convention("fcfs")["quanta"] is None
    assert FIGURE_19.convention("atlas")["counted"] == ["B"]


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown policy 'lifo'"):
        FIGURE_2.run("lifo")


def test_figure_9() -> None:
    found = search()
    assert (found.best, found.worst) == (11, 14)
    assert found.orders == 720
    # No schedule at all is shorter than the critical path.
    assert found.critical_first == FIGURE_9.ideal_s(1.0) == 11
    assert critical_path_order(FIGURE_9) == (0, 3, 1, 2, 4, 5)


def test_an_order_runs_its_first_ready_calls() -> None:
    fork = toy("P", (1, ()), (2, (0,)), (1, (0,)))
    assert makespan(fork, (2, 1, 0), 1) == 4
    assert makespan(fork, (2, 1, 0), 2) == 3


def test_plas_and_atlas_differ_where_calls_are_parallel() -> None:
    """A wide program is charged for its width by PLAS' sum, not by ATLAS' path."""
    wide = toy("W", *((2, ()) for _ in range(4)), (4, (0, 1, 2, 3)))
    other = chain("O", 3, 3, 3)

    def end_of_wide(policy: str) -> int:
        one = replace(FIGURE_19, programs=(wide, other), counted=("W",), other_quanta=(2,) * 4)
        return one.run(policy).ends["W"]

    assert end_of_wide("atlas") < end_of_wide("plas")
