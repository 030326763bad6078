"""The process table, the settings and the policies: events in, rows and errors out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.errors import ConfigError, InvariantError
from agentrt.graph import NodeKind
from agentrt.request import CallReport
from agentrt.scheduler import (
    EngineProgram,
    ProcessTable,
    ProgramState,
    ProgramTotals,
    QueuedCall,
    SchedulerConfig,
    SchedulerCore,
    make_policy,
    policy_names,
)
from agentrt.scheduler.events import CallArrived
from agentrt.scheduler.table import last_heard, state_of


def test_a_row_and_its_totals_agree() -> None:
    row = ProcessTable(EngineProgram).start_program("p", "t", 3.0, tenant="acme", session="monday")
    row.size_hint, row.service_s = 40.0, 6.0
    assert (row.session, last_heard(row)) == ("monday", 3.0)
    totals = ProgramTotals.of(row)
    assert tuple(totals) == ("p", "t", "acme", 40.0, 6.0)
    assert ProgramTotals.of(totals.row()) == totals


def test_a_program_is_live_once() -> None:
    table = ProcessTable(EngineProgram)
    table.start_program("p", "t", now=0)
    with pytest.raises(InvariantError, match="already"):
        table.start_program("p", "t", now=1)
    assert table.end_program("p") is not None
    assert table.end_program("p") is None
    assert len(table) == 0


def test_service_in_other_tables_counts() -> None:
    """1. The values of the runtime raise every sum. 2. They never lower a sum."""
    table = ProcessTable(EngineProgram)
    row = table.start_program("p", "t", now=0)
    row.catch_up(2)
    assert (row.service_s, row.attained_s, row.path_s, row.waiting_s) == (2, 2, 0, 0)
    row.catch_up(5, 4, 3)
    assert (row.service_s, row.attained_s, row.path_s, row.waiting_s) == (5, 5, 4, 3)
    row.attained_s = 9
    row.catch_up(1, 1, 1)
    row.catch_up(1)
    row.catch_up(6, 4, 3)
    assert (row.service_s, row.attained_s, row.path_s, row.waiting_s) == (6, 9, 4, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"program_id": "q"}, "the row of q has the key p"),
        ({"tools": -1}, "program p has ended more interrupts"),
        ({"humans": -1}, "program p has ended more interrupts"),
        ({"events": -1}, "program p has ended more interrupts"),
        ({"path_s": 0.1}, "program p has a path longer"),
    ],
)
def test_the_integrity_check_detects_faults(change: dict[str, Any], message: str) -> None:
    table = ProcessTable(EngineProgram)
    row = table.start_program("p", "t", now=0)
    table.check_integrity()
    for name, value in change.items():
        setattr(row, name, value)
    with pytest.raises(InvariantError, match=message):
        table.check_integrity()


# -- against a log ---------------------------------------------------------------------


@dataclass
class Log:
    """All events of a program, which are summed up again for every question."""

    started_at: float
    heard: list[float] = field(default_factory=list)
    calls: dict[str, float] = field(default_factory=dict)
    ended: list[CallReport] = field(default_factory=list)
    paths_s: list[float] = field(default_factory=lambda: [0.0])
    interrupts: list[NodeKind] = field(default_factory=list)
    answered_s: float = 0.0

    def state(self, now: float, stale_after_s: float) -> ProgramState:
        if not self.calls and NodeKind.TOOL in self.interrupts:
            return ProgramState.IN_TOOL
        if not self.calls and NodeKind.EVENT in self.interrupts:
            return ProgramState.WAITING_FOR_EVENT
        if not self.calls and self.interrupts:
            return ProgramState.WAITING_FOR_HUMAN
        silent_s = now - max([self.started_at, *self.heard])
        if not self.calls and silent_s >= stale_after_s:
            return ProgramState.STALE
        return ProgramState.RUNNING


class Tables:
    """The real table, and a log for each of its programs."""

    def __init__(self) -> None:
        self.table = ProcessTable(EngineProgram)
        self.logs: dict[str, Log] = {}
        self.now = 0.0

    def do(self, event: str, name: str, number: int, seconds: float) -> None:
        self.now += seconds
        row, log = self.table.get(name), self.logs.get(name)
        if row is None or log is None:
            self.table.start_program(name, "t", self.now)
            self.logs[name] = Log(self.now)
        elif event == "arrive":
            self.table.call_arrived(row, f"c{self.now}/{number}", self.now)
            log.calls[f"c{self.now}/{number}"] = self.now
            log.heard.append(self.now)
        elif event == "end" and log.calls:
            self.end(row, log, list(log.calls)[number % len(log.calls)], number)
        elif event == "ask":
            kind = (NodeKind.HUMAN, NodeKind.TOOL, NodeKind.EVENT)[number % 3]
            self.table.interrupt_started(row, self.now, kind)
            log.interrupts.append(kind)
            log.heard.append(self.now)
        elif event == "answer" and log.interrupts:
            kind = log.interrupts.pop(number % len(log.interrupts))
            self.table.interrupt_ended(row, self.now, kind, seconds=number)
            log.answered_s += number
            log.heard.append(self.now)
        elif event == "leave":
            assert self.table.end_program(name) is row
            del self.logs[name]

    def end(self, row: EngineProgram, log: Log, call_id: str, number: int) -> None:
        report = CallReport(service_s=number, waiting_s=number / 4, prompt_tokens=number)
        path_s = None if number % 2 else max(log.paths_s) / 2
        times = report.service_s, report.waiting_s
        self.table.call_ended(row, call_id, self.now, path_s, *times, report)
        del log.calls[call_id]
        log.ended.append(report)
        log.paths_s.append((max(log.paths_s) if path_s is None else path_s) + number)
        log.heard.append(self.now)

    def compare(self) -> None:
        self.table.check_integrity()
        assert {row.program_id for row in self.table} == set(self.logs)
        for row in self.table:
            log = self.logs[row.program_id]
            assert row.calls == log.calls
            assert last_heard(row) == max([log.started_at, *log.heard])
            counts = tuple(
                map(log.interrupts.count, (NodeKind.TOOL, NodeKind.HUMAN, NodeKind.EVENT))
            )
            assert (row.tools, row.humans, row.events) == counts
            assert row.finished_calls == len(log.ended)
            assert row.service_s == sum(report.service_s for report in log.ended)
            assert row.waiting_s == sum(report.waiting_s for report in log.ended)
            assert row.usage.prompt_tokens == row.service_s
            assert row.path_s == max(log.paths_s)
            assert row.interrupt_s == log.answered_s
            assert state_of(row, self.now, 2.0) is log.state(self.now, 2.0)
        stale = [n for n, log in self.logs.items() if log.state(self.now, 2.0) == "stale"]
        assert sorted(row.program_id for row in self.table.stale(self.now, 2.0)) == sorted(stale)


@settings(max_examples=70, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["arrive", "arrive", "end", "end", "ask", "answer", "leave"]),
            st.sampled_from("abc"),
            st.integers(0, 4),
            st.sampled_from([0.0, 0.25, 0.5, 1.0]),
        ),
        min_size=10,
        max_size=60,
    )
)
def test_rows_agree_with_their_logs(story: list[tuple[str, str, int, float]]) -> None:
    tables = Tables()
    for event in story:
        tables.do(*event)
        tables.compare()


def level_under(policy: str, path_s: float | None) -> int:
    """Return the first level of a call in a program of service 9 and path 6. Each level lasts one
    second.
    """
    row = ProcessTable(EngineProgram).start_program("p", "t", now=0)
    row.service_s, row.path_s = 9, 6
    core = SchedulerCore(SchedulerConfig(policy=policy, quanta=(1,) * 20))
    call = QueuedCall("c", row, None, path_s, 0.0)
    core.handle(CallArrived(call, 0.0))
    return call.level


@pytest.mark.parametrize(
    ("policy", "level"),
    [("fcfs", 0), ("mlfq", 0), ("plas", 9), ("atlas", 2), ("atlas-scalar", 6)],
)
def test_the_rank_of_each_policy(policy: str, level: int) -> None:
    assert level_under(policy, 2.0) == level


def test_an_infinite_rank_is_in_the_last_level() -> None:
    assert level_under("atlas", math.inf) == 20


def test_atlas_falls_back_to_the_scalar() -> None:
    assert level_under("atlas", None) == 6


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown policy 'lifo'; available: atlas, .*fcfs"):
        make_policy(SchedulerConfig(policy="lifo"))
    assert policy_names()[0] == "atlas"


def test_an_ended_row_does_not_replace_another_row() -> None:
    table = ProcessTable(EngineProgram)
    ended = table.start_program("p", "t", 0.0)
    table.call_arrived(ended, "c", 1.0)
    table.end_program("p")
    row = table.start_program("p", "t", 2.0)
    table.call_ended(ended, "c", 3.0, None, 1.0, 0.0)
    assert (list(table), ended.service_s) == ([row], 1.0)
