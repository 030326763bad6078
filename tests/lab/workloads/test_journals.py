"""Journals as programs: edges, gaps, choices, token ids, and what is not whole."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentrt.errors import ConfigError
from agentrt.journal.schema import Change, EndRow, RecordedProgram, StartRow
from agentrt.journal.store import SQLiteStore
from agentrt.lab.workloads import journals
from agentrt.lab.workloads.journals import read_recording
from agentrt.lab.workloads.replay import Scales
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.lab.workloads.traces import read_programs


class Written:
    """A journal that is written row by row; times are seconds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Change] = []

    def program(
        self, began: float, ended: float | None, name: str = "p-1", attempt: int = 1
    ) -> None:
        row = (name, 1, "p", "acme", None, 0, "", "full", "", "{}", began)
        self.rows.append(RecordedProgram(*row))
        self.node("0", "program", began, ended, name, attempt=attempt)

    def node(
        self,
        place: str,
        kind: str,
        began: float,
        ended: float | None,
        program: str = "p-1",
        *,
        parents: str = "",
        account: Any = None,
        asked: Any = None,
        outcome: Any = None,
        state: str = "done",
        attempt: int = 1,
    ) -> None:
        told = [json.dumps(one) if one else "" for one in (asked, outcome, account)]
        start = (program, place, attempt, kind, f"the {kind}", "p/step", "", told[0], "", began)
        self.rows.append(StartRow(*start))
        if ended is not None:
            end = (program, place, attempt, state, len(self.rows), told[1], told[2], parents, ended)
            self.rows.append(EndRow(*end).marked())

    def call(self, place: str, began: float, ended: float, *more: str, **given: Any) -> None:
        account = {"prompt_tokens": 20, "output_tokens": 2, **given.pop("account", {})}
        self.node(place, "call", began, ended, *more, account=account, **given)

    def write(self) -> Path:
        with closing(SQLiteStore(self.path)) as store:
            store.write(self.rows)
        return self.path

    def only(self) -> ProgramShape:
        [program] = read_recording(self.write()).programs
        return program


@pytest.fixture
def journal(tmp_path: Path) -> Written:
    return Written(tmp_path / "j")


def test_what_lies_between_calls_becomes_gaps(journal: Written) -> None:
    """A call, a tool that fails and so names no parents, a call after it, and a tool at the end."""
    journal.program(10.0, 30.0)
    journal.call("0#0", 11.0, 12.0)
    journal.node("0#1", "tool", 12.5, 15.0, state="failed")
    journal.call("0#2", 16.0, 20.0, parents="?")
    journal.node("0#3", "tool", 21.0, 29.0, parents="0#2")
    program = journal.only()
    assert [(one.after, one.gap_s, one.tool) for one in program.calls] == [
        ((), 1.0, ""),
        ((0,), 4.0, "the tool"),
    ]
    assert (program.tenant, program.tail_s, program.tail_tool) == ("acme", 10.0, "the tool")
    assert {one.node for one in program.calls} == {"step"}
    [outcome] = read_recording(journal.path).outcomes
    assert (outcome.latency_s, outcome.tool_s) == (20.0, 15.0)
    [scaled] = read_programs(journal.path, scales=Scales(gap=0.5)).programs
    assert ([one.gap_s for one in scaled.calls], scaled.tail_s) == ([0.5, 2.0], 5.0)


def test_choices_are_calls_beside_each_other(journal: Written) -> None:
    journal.program(0.0, 9.0)
    texts = [{"text": text} for text in ("a", "b", "c")]
    asked = {"messages": [{"role": "user", "content": "?"}], "n": 3}
    outcome = {"text": "a", "choices": {"$": "tuple", "value": texts}}
    account = {"prompt_tokens": 60, "output_tokens": 8, "service_s": 0.6, "steps": 3}
    journal.call("0#0", 0.0, 2.0, asked=asked, outcome=outcome, account=account)
    journal.call("0#1", 2.0, 3.0, parents="0#0")
    program = journal.only()
    assert [one.after for one in program.calls] == [(), (), (), (0, 1, 2)]
    # The report of a request with several answers has their sums.
    assert [one.prompt_tokens for one in program.calls] == [20, 20, 20, 20]
    assert [one.output_tokens for one in program.calls] == [3, 3, 2, 2]
    [recorded] = read_recording(journal.path).outcomes
    assert recorded.service_s == pytest.approx(0.6)
    first, *others = program.calls[:3]
    assert all(one.prompt_ids == first.prompt_ids for one in others)
    assert len({one.output_ids for one in program.calls[:3]}) == 3


def test_the_choices_of_an_endpoint_have_its_whole_prompt(journal: Written) -> None:
    """An endpoint counts the prompt once, and reports no steps."""
    journal.program(0.0, 9.0)
    outcome = {"text": "a", "choices": {"$": "tuple", "value": [{"text": "a"}, {"text": "b"}]}}
    account = {"prompt_tokens": 20, "output_tokens": 7, "service_s": 0.6}
    journal.call("0#0", 0.0, 2.0, asked={"n": 2}, outcome=outcome, account=account)
    journal.call("0#1", 2.0, 3.0, asked={"n": 2}, outcome={"text": "an engine that ignores n"})
    program = journal.only()
    assert [(one.prompt_tokens, one.output_tokens) for one in program.calls] == [
        (20, 4),
        (20, 3),
        (20, 2),
    ]


def test_recorded_token_ids_are_taken_as_they_are(journal: Written) -> None:
    journal.program(0.0, 9.0)
    ids, said = [*range(20)], {"token_ids": {"$": "tuple", "value": [7, 8]}}
    journal.call("0#0", 0.0, 2.0, asked={"prompt_token_ids": ids}, outcome=said)
    [call] = journal.only().calls
    assert (call.prompt_ids, call.output_ids) == ((tuple(ids),), (7, 8))


def test_what_is_not_whole_is_noted(journal: Written) -> None:
    """One program resumes after a pause, and one is open; a fork did not make what it came with."""
    journal.program(0.0, 9.0, attempt=2)
    journal.call("0#0", 1.0, 2.0)
    journal.program(3.0, None, "p-2")
    journal.call("0#0", 4.0, 5.0, "p-2")
    journal.program(20.0, 23.0, "p-1-fork-1")
    journal.call("0#0", 1.0, 2.0, "p-1-fork-1")
    journal.call("0#1", 21.0, 22.0, "p-1-fork-1", parents="0#0")
    trace = read_programs(journal.write())
    assert trace.notes == {journals.OPEN: 1, journals.PAUSED: 1}
    assert [(one.program_id, one.arrives_s) for one in trace.programs] == [
        ("p-1", 0.0),
        ("p-2", 3.0),
        ("p-1-fork-1", 20.0),
    ]
    [call] = trace.programs[2].calls
    assert (call.after, call.gap_s) == ((), 1.0)
    ended = read_recording(journal.path).outcomes
    assert [one.program_id for one in ended] == ["p-1", "p-1-fork-1"]


def test_without_a_call_there_is_nothing_to_replay(journal: Written) -> None:
    journal.program(0.0, 9.0)
    journal.node("0#0", "tool", 1.0, 2.0)
    with pytest.raises(ConfigError, match="no program in it made a call and ended"):
        read_recording(journal.write())
