"""The process table, the settings and the policies: events in, rows and errors out."""

from __future__ import annotations

import json
import math

import pytest

from agentrt.errors import ConfigError, InvariantError
from agentrt.request import CallReport
from agentrt.scheduler import (
    LevelQueues,
    ProcessTable,
    ProgramState,
    ProgramTotals,
    SchedulerConfig,
    make_policy,
    policy_names,
)


def test_a_row_and_its_totals_say_the_same() -> None:
    row = ProcessTable().start_program("p", "t", 0.0, tenant="acme", session="monday")
    row.size_hint, row.service_s, row.path_s, row.finished_calls = 40.0, 6.0, 5.0, 3
    totals = ProgramTotals.of(row)
    assert totals[:6] == ("p", "t", "acme", "monday", 40.0, 6.0)
    assert ProgramTotals.of(totals.row()) == totals


def test_a_rows_metrics_follow_its_calls() -> None:
    table = ProcessTable()
    row = table.start_program("p", "chat", now=0)
    table.call_arrived(row, "c1", now=1)
    table.call_arrived(row, "c2", now=2)
    assert (row.calls, row.last_arrival) == ({"c1": 1, "c2": 2}, 2)
    table.call_ended(row, "c1", 5, 0.0, CallReport(service_s=3, waiting_s=1, output_tokens=7))
    table.call_ended(row, "c2", 6, 0.0, CallReport(service_s=2, waiting_s=4))
    assert (row.service_s, row.path_s, row.waiting_s) == (5, 3, 5), "a sum, a path, a sum"
    assert (row.finished_calls, row.usage.output_tokens, row.last_completion) == (2, 7, 6)
    table.call_arrived(row, "c3", now=7)
    table.call_ended(row, "c3", 9, 3.0, CallReport(service_s=4))
    assert row.path_s == 7, "p(c) = 3 of its parent, and its own 4"


def test_without_edges_the_path_grows_from_the_scalar() -> None:
    table = ProcessTable()
    row = table.start_program("p", "chat", now=0)
    for _ in range(2):
        table.call_ended(row, "c", 1, None, CallReport(service_s=2))
    assert row.path_s == 4


def test_the_state_says_what_a_program_does() -> None:
    table = ProcessTable()
    row = table.start_program("p", "chat", now=0)
    table.interrupt_started(row, 1, human=True)
    assert row.state(2, 100) is ProgramState.WAITING_FOR_HUMAN
    table.interrupt_started(row, 2, human=False)
    assert row.state(2, 100) is ProgramState.IN_TOOL
    table.call_arrived(row, "c", 3)
    assert row.state(3, 100) is ProgramState.RUNNING
    table.call_ended(row, "c", 4, None, CallReport())
    table.interrupt_ended(row, 5, human=False, seconds=3)
    table.interrupt_ended(row, 6, human=True, seconds=5)
    assert row.interrupt_s == 8
    assert row.state(50, 100) is ProgramState.RUNNING
    assert row.state(106, 100) is ProgramState.STALE


def test_stale_programs_are_those_unheard_of_with_nothing_active() -> None:
    table = ProcessTable()
    silent = table.start_program("silent", "t", now=0)
    busy = table.start_program("busy", "t", now=0)
    table.call_arrived(busy, "c", now=1)
    table.start_program("fresh", "t", now=90)
    assert table.stale(100, 50) == [silent]


def test_a_program_is_live_once() -> None:
    table = ProcessTable()
    table.start_program("p", "t", now=0)
    with pytest.raises(InvariantError, match="already"):
        table.start_program("p", "t", now=1)
    assert table.end_program("p") is not None
    assert table.end_program("p") is None
    assert len(table) == 0


def test_an_event_after_the_end_does_not_bring_a_row_back() -> None:
    table = ProcessTable()
    row = table.start_program("p", "t", now=0)
    table.call_arrived(row, "c", 1)
    table.end_program("p")
    table.call_ended(row, "c", 2, None, CallReport(service_s=1))
    assert "p" not in table


def test_service_elsewhere_counts_here() -> None:
    table = ProcessTable()
    row = table.start_program("p", "t", now=0)
    table.catch_up(row, 5, 4, 3)
    table.catch_up(row, 1, 1, 1)
    assert (row.service_s, row.path_s, row.waiting_s) == (5, 4, 3)


def level_under(policy: str, path_s: float | None) -> int:
    """The first level, of one second each, of a call in a program of service 9 and path 6."""
    row = ProcessTable().start_program("p", "t", now=0)
    row.service_s, row.path_s = 9, 6
    queues = LevelQueues(SchedulerConfig(policy=policy, quanta=(1,) * 20))
    return queues.add("c", row, None, path_s, now=0).level


@pytest.mark.parametrize(
    ("policy", "level"),
    [("fcfs", 0), ("mlfq", 0), ("plas", 9), ("atlas", 2), ("atlas-scalar", 6)],
)
def test_what_each_policy_ranks_by(policy: str, level: int) -> None:
    assert level_under(policy, 2.0) == level


def test_atlas_falls_back_to_the_scalar() -> None:
    assert level_under("atlas", None) == 6


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown policy 'lifo'; known: atlas, .*fcfs"):
        make_policy(SchedulerConfig(policy="lifo"))
    assert policy_names()[0] == "atlas"


def test_settings_survive_json() -> None:
    config = SchedulerConfig(policy="plas", quanta=(1, 2.5), beta=math.inf)
    assert SchedulerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"quanta": (1, 0)}, "quanta must be positive"),
        ({"beta": 0}, "beta must be positive"),
        ({"max_promoted": -1}, "max_promoted must not be negative"),
        ({"stale_after_s": 0}, "stale_after_s must be positive"),
    ],
)
def test_bad_settings_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SchedulerConfig(**values)  # type: ignore[arg-type]


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown scheduler setting 'colour'"):
        SchedulerConfig.from_dict({"colour": 1})


def test_levels_end_at_the_running_sum() -> None:
    config = SchedulerConfig(quanta=(1, 2, 4))
    assert config.level_ends == (1, 3, 7, math.inf)
    assert config.level_quanta == (1, 2, 4, math.inf)
