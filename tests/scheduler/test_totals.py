"""What goes from one history to another: programs' totals, and where they came by."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agentrt.scheduler import ProcessTable, ProgramRow, ProgramTotals, SchedulerConfig, Visit
from agentrt.scheduler.history import _VISITS, History
from agentrt.scheduler.policies import make_policy, policy_names


def served(history: History, nodes: int) -> ProgramRow:
    """A program that asked at so many nodes, after two seconds of service each."""
    row = ProcessTable().start_program("p", "t", 0.0, tenant="acme", session="monday")
    for number in range(nodes):
        history.expect(row, f"node {number}", row.path_s)
        row.attained_s += 2.0
        row.service_s = row.path_s = row.attained_s
        row.finished_calls += 1
    return row


def test_a_row_and_its_totals_say_the_same() -> None:
    row = served(History(), 3)
    row.size_hint = 40.0
    totals = ProgramTotals.of(row)
    assert totals[:5] == ("p", "t", "acme", "monday", 40.0)
    assert (totals.service_s, totals.finished_calls, totals.visits) == (6.0, 3, ())
    assert ProgramTotals.of(totals.row()) == totals


def test_another_history_learns_what_the_program_s_own_does() -> None:
    own, other = History(), History()
    row = served(own, 6)
    totals = ProgramTotals.of(row)._replace(visits=tuple(own.visits(row)))
    assert len(totals.visits) > 6
    own.learn(row)
    other.note(totals.row(), totals.visits)
    other.learn(totals.row())
    assert other.to_dict() == own.to_dict()
    assert not other._visits


def test_what_is_noted_elsewhere_is_bounded() -> None:
    history, row = History(), served(History(), 1)
    history.note(row, [Visit(age, "what", 1.0) for age in range(1000)])
    assert len(history.visits(row)) == _VISITS


@pytest.mark.parametrize("hint", ["40", [1], None, -1.0, math.nan, math.inf])
def test_what_is_no_hint_counts_as_none(hint: Any) -> None:
    """Whatever a program was started with."""
    history = History()
    row = served(history, 2)
    row.size_hint = hint
    history.learn(row)
    assert not history.to_dict()["hints"]


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_can_be_told_of_programs_it_never_had(name: str) -> None:
    policy = make_policy(SchedulerConfig(name))
    policy.learn(ProgramTotals("p", "t", service_s=4.0), 1.0)
    learned = policy.history is not None and len(policy.history) > 0
    assert learned == policy.learns == (name == "adaptive")
