"""The rank of whoever knows the laws of sizes, and no size."""

from __future__ import annotations

import pytest

from agentrt.lab.oracles import Laws
from agentrt.lab.workloads.arrivals import at_once
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.scheduler import EngineProgram, ProcessTable, SchedulerConfig
from benchmarks.workloads.generate import generate
from tests.lab.drives import simulate


def shape(seconds: int, hint: float | None = None) -> ProgramShape:
    return ProgramShape("p", "t", (CallShape(seconds),), hint_tokens=hint)


def row(attained_s: float, hint: float | None = None) -> EngineProgram:
    one = ProcessTable(EngineProgram).start_program("p", "t", 0.0)
    one.attained_s, one.size_hint = attained_s, hint
    return one


def laws(sizes: list[int], hint: float | None = None) -> Laws:
    known = Laws(step_s=1.0)
    for size in sizes:
        known.add(shape(size, hint))
    return known


def test_of_one_size_what_is_left_is_known() -> None:
    known = laws([100] * 40)
    assert known.cost_s(row(0.0)) == 100.0
    assert known.cost_s(row(51.2)) == pytest.approx(48.8)


def test_who_outlived_the_short_ones_costs_more_than_who_is_new() -> None:
    """Nine in ten end after 10 s. Found out at 10 s each, an end costs 100 / 9 s."""
    known = laws([10] * 90 + [1000] * 10)
    assert known.cost_s(row(0.0)) == pytest.approx(100 / 9)
    assert known.cost_s(row(12.8)) == pytest.approx(987.2)


def test_a_hint_has_a_law_of_its_own_once_it_has_programs() -> None:
    known = laws([10] * 40, hint=8.0)
    for _ in range(40):
        known.add(shape(1000, hint=800.0))
    assert known.cost_s(row(0.0, hint=8.0)) == 10.0
    assert known.cost_s(row(0.0, hint=800.0)) == 1000.0
    assert known.cost_s(row(0.0, hint=3.0)) == 20.0  # of all: half of them end at 10


def test_it_stands_between_who_knows_nothing_and_who_knows_all() -> None:
    programs = at_once(generate("graphs8", 200, 0))

    def mean_s(policy: str) -> float:
        done = simulate(programs, SchedulerConfig(policy=policy), batch=8, step_s=0.025)
        return done.summary().mean_s

    assert mean_s("srpt") < mean_s("gittins") < 0.6 * mean_s("fcfs")
