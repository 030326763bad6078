"""The benchmark of the scheduler's CPU time: what runs and what is counted, never how fast."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import pairwise

import pytest

from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.lab.runs.contenders import contender, contenders
from benchmarks import scheduler as command
from benchmarks.__main__ import call
from benchmarks.scheduler import CASES, METHODS, LoadedScheduler, measure

pytestmark = pytest.mark.engine


def test_programs_end_and_others_take_their_place() -> None:
    ended = {}
    for case in ("stock", "fcfs"):
        load = LoadedScheduler(contender(case), 2, 1, 0)
        figures = load.run(500)
        ended[case] = figures["ends"]
        assert len(load.engine.requests) == 3
        assert figures["step_us"] == pytest.approx(sum(figures[f"{name}_us"] for name in METHODS))
        if case == "fcfs":
            assert isinstance(load.engine.scheduler, ProgramScheduler)
            assert len(load.engine.scheduler.table) == 3
            assert figures["control_us"] > 0
    assert ended["stock"] == ended["fcfs"] > 0


def test_cases_alternate_and_are_compared_with_stock() -> None:
    options = {"seed": 0, "steps": 5, "repeat": 3}
    measured = list(measure(contenders(["stock", "adaptive"]), 2, 3, options))
    names = [name for name, _ in measured]
    assert sorted(names) == ["adaptive"] * 3 + ["stock"] * 3
    assert names[:2] != names[2:4], "who goes first changes"
    for (name, mine), (other, theirs) in list(pairwise(measured))[::2]:
        figures = {name: mine, other: theirs}
        ours, stock = figures["adaptive"], figures["stock"]
        assert ours["step_to_stock"] == ours["step_us"] / stock["step_us"]
        assert ours["added_us"] == ours["step_us"] - stock["step_us"]
        assert ours["functions_to_stock"] == ours["functions"] / stock["functions"] < 1


def test_all_cases_name_settings() -> None:
    assert all(contender(case).config for case in CASES[1:])


def test_a_benchmark_that_is_stopped_prints_its_table_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(*asked: object) -> Iterator[tuple[str, dict[str, float]]]:
        yield "stock", {"step_us": 7.0}
        signal.raise_signal(signal.SIGINT)
        yield "stock", {"step_us": 9.0}

    monkeypatch.setattr(command, "measure", measure)
    sizes = ["--policy", "fcfs", "--running", "2", "--waiting", "3,4"]
    assert call(["scheduler", *sizes]) == 128 + signal.SIGINT
    said = capsys.readouterr()
    assert "| 2       | 3       | stock | 8         |" in said.out
    assert "interrupted" in said.err
