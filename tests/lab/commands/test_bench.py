"""`agentrt bench decisions`, `scheduler` and `memory` from end to end, at small sizes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from agentrt.cli.app import call
from agentrt.scheduler import policy_names
from tests.cli.test_bad_input import check
from tests.cli.test_help import run

DECISIONS = ("decisions", "--live", "5", "20", "--steps", "3", "--repeat", "2")


def test_decisions_of_all_policies(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["bench", *DECISIONS, "--json"]) == 0
    out, err = capsys.readouterr()
    *table, line = out.splitlines()
    costs = json.loads(line)
    assert {(cost["policy"], cost["live"]) for cost in costs} == {
        (name, live) for name in policy_names() for live in (5, 20)
    }
    assert costs[0]["decision_to_fcfs"] == 1.0, "the baseline comes first"
    parts = {f"{part}_us" for part in ("arrive", "choose", "end", "charge", "decision")}
    assert parts | {"policy", "live", "starts_a_step", "decision_to_fcfs"} == set(costs[0])
    assert sum(line.startswith("| adaptive") for line in table) in (0, 3), "two sizes, one growth"
    assert err.splitlines()[-1] == "repeat 2 of 2: 20 live programs"


def test_decisions_of_some_policies(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["bench", *DECISIONS, "--policies", "plas,mlfq", "atlas"]) == 0
    out = capsys.readouterr().out
    found = re.findall(r"^\| ([\w-]+) +\| 20 ", out, re.MULTILINE)
    assert found == ["fcfs", "plas", "mlfq", "atlas"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["decisions", "--live", "0"], ["--live '0'", "from 1 up"]),
        (["decisions", "--live", "10", "many"], ["--live 'many'", "from 1 up"]),
        (["decisions", "--policies", "lifo"], ["unknown policy 'lifo'", "plas"]),
        (["decisions", "--policies", "srpt"], ["unknown policy 'srpt'"]),
        (["decisions", "--repeat", "0"], ["'--repeat'", "x>=1"]),
        (["decisions", "--steps", "0"], ["'--steps'", "x>=1"]),
        (["memory", "--workload", "chart"], ["no workload is named 'chart'", "chat"]),
        (["memory", "--memory", "x"], ["--memory 'x'", "0.25"]),
        (["memory", "--contender", "adaptive+lots"], ["'adaptive+lots'", "adaptive+memory"]),
        (["memory", "--contender", "cap:0"], ["no contender is named 'cap:0'", "cap:N"]),
        (["memory", "--trace", "none.jsonl"], ["'none.jsonl' does not exist"]),
        (["scheduler", "--cases", "fcfs+mru"], ["named 'fcfs+mru': stock; or ours", "fcfs+cost"]),
        (["scheduler", "--running", "few"], ["--running 'few'", "from 1 up"]),
    ],
)
def test_bad_input(args: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    check(capsys, call(["bench", *args]), *words)


def test_ctrl_c(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("agentrt.lab.bench.decisions.measure", interrupted)
    assert call(["bench", *DECISIONS]) == 130
    out, err = capsys.readouterr()
    assert (out, err.split()) == ("", ["interrupted"])


def test_help_imports_nothing_heavy() -> None:
    assert run("bench", "decisions", "--help").stdout.splitlines()[-1] == "heavy:"


RESULTS = (Path(__file__).parents[3] / "docs" / "results").glob("*.md")
BENCHMARKS = "".join(page.read_text(encoding="utf-8") for page in RESULTS)


@pytest.mark.parametrize(
    "line", re.findall(r"`agentrt (bench (?:decisions|memory)[^`]*)`", BENCHMARKS)
)
def test_what_the_benchmarks_show_is_understood(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the measurement, which would take a while."""

    def stopped(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("agentrt.lab.bench.decisions.measure", stopped)
    monkeypatch.setattr("agentrt.lab.bench.memory.Memory", stopped)
    assert call(shlex.split(line.replace(" FILE", f" {__file__}"))) == 130
