"""``benchmarks paper`` on a case that can be worked out by hand, and bad input."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentrt.lab.engine.step_time import StepTimeModel
from benchmarks.__main__ import call
from tests.cli.conftest import check

OPTIONS = (
    "--programs",
    "2",
    "--scale",
    "1",
    "--max-num-seqs",
    "1",
    "--kv-blocks",
    "64",
    "--jobs",
    "1",
    "--json",
)
ALONE, TOGETHER = 1e-6, 1e6
"""Loads under which the programs never meet, and come at the same moment."""


def _dag(name: str, tokens: int) -> str:
    report = {"prompt_tokens": 1, "output_tokens": tokens}
    node = {"id": 0, "kind": "call", "parents": [], "created_at": 0.0, "report": report}
    return json.dumps({"version": 1, "program": {"id": name, "type": name}, "nodes": [node]})


@pytest.fixture
def case(tmp_path: Path) -> list[str]:
    """A program of 20 tokens before one of 1, on one slot, with a second for each step."""
    trace, times = tmp_path / "two.jsonl", tmp_path / "times.json"
    trace.write_text(f"{_dag('long', 20)}\n{_dag('short', 1)}\n", encoding="utf-8")
    times.write_text(StepTimeModel(1.0, 0.0, 0.0, 0.0).as_text())
    loads = f"{ALONE},{TOGETHER}"
    files = ("--workload", str(trace), "--step-time", str(times), "--load", loads)
    return ["paper", *files, *OPTIONS]


def _run(args: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, Any]:
    assert call(args) == 0
    *text, line = capsys.readouterr().out.splitlines()
    (panel,) = json.loads(line)["panels"]
    return "\n".join(text), panel


def _medians(cell: Any) -> dict[str, float]:
    return {name: found["median"] for name, found in cell["measures"].items()}


@pytest.mark.engine
@pytest.mark.parametrize(
    ("depth", "base", "short_s"), [((), "stock", 5.0), (("--quick",), "fcfs", 1.0)]
)
def test_a_case_worked_out_by_hand(
    depth: tuple[str, ...],
    base: str,
    short_s: float,
    case: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    policies = ("--policy", "stock,adaptive,srpt")
    text, panel = _run([*case, *depth, *policies], capsys)
    assert panel["unloaded_s_per_token"] == pytest.approx(1.0)
    cells = {(float(cell["arrivals"]), cell["policy"]): _medians(cell) for cell in panel["cells"]}
    for policy in (base, "adaptive", "srpt"):
        assert cells[ALONE, policy]["token_latency_s"] == pytest.approx(1.0)
    # In the order of arrival: 20 seconds for 20 tokens, and 21 for one.
    first_come = cells[TOGETHER, base]
    assert first_come["token_latency_s"] == pytest.approx((20 / 20 + 21 / 1) / 2, rel=1e-4)
    assert first_come["mean_s"] == pytest.approx((20 + 21) / 2, rel=1e-4)
    assert first_come["makespan_s"] == pytest.approx(21, rel=1e-4)
    # Who knows lets the long one give way after four steps, in which a call is safe; in the
    # simulator both come in the same step, and it waits. 21 seconds for 20 tokens.
    knowing = cells[TOGETHER, "srpt"]
    assert knowing["token_latency_s"] == pytest.approx((21 / 20 + short_s / 1) / 2, rel=1e-4)
    assert knowing["makespan_s"] / first_come["makespan_s"] == pytest.approx(1.0, rel=1e-4)
    by_type = {
        name: {c["policy"]: _medians(c) for c in found if float(c["arrivals"]) == TOGETHER}
        for name, found in panel["by_type"].items()
    }
    assert by_type["short"][base]["token_latency_s"] == pytest.approx(21.0, rel=1e-4)
    assert by_type["long"]["srpt"]["mean_s"] == pytest.approx(21.0, rel=1e-4)
    # 1 second a token alone and 11 together: twice the unloaded latency is a tenth of the way.
    carried = {(one["times"], one["policy"]): one for one in panel["equal_latency"]}
    assert carried[2.0, base]["loads"] == pytest.approx([TOGETHER / 10], rel=1e-4)
    assert carried[3.0, base]["loads"] == pytest.approx([TOGETHER / 5], rel=1e-4)
    assert carried[5.0, "srpt"]["loads"] == [TOGETHER], "it is below 5 at the highest load"
    assert carried[5.0, "srpt"]["bound"] == "≥"
    assert carried[5.0, "srpt"]["ratio"] == pytest.approx(2.5, rel=1e-4)
    assert re.search(r"\| 5x +\| 40000[01] +\| .*≥2.50", text)


def test_each_panel_has_at_least_one_program(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--programs", "1", "--policy", "atlas", "--load", "1"]
    assert call(["paper", "--quick", *few, "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "**LATS, 1 programs**" in printed
    assert "**Mixed, half as many programs, 1 programs**" in printed


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--policy", "lifo"], ["unknown policy 'lifo'", "srpt"]),
        (["--quick", "--policy", "priority-path"], ["'priority-path'", "adaptive"]),
        (["--workload", "tea"], ["'tea'", "chat"]),
        (["--load", "fast"], ["'fast'", "0.9"]),
        (["--load", "b0.8"], ["b0.8", "bursts are not allowed"]),
        (["--plot", "curves.txt"], ["--plot", ".png"]),
        (["--step-time", "no.json"], ["no.json", "agentrt calibrate"]),
    ],
)
def test_bad_input(args: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    check(capsys, call(["paper", *args]), *words)
