"""``benchmarks policies`` from end to end: a small comparison, and bad input."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import call
from tests.cli.conftest import check

SMALL = (
    *("--virtual", "--workload", "mixed", "--scale", "0.05", "--programs", "3", "--calls", "4"),
    *("--rate", "1x,3x", "--max-num-seqs", "2", "--jobs", "1", "--seeds", "2"),
)


@pytest.mark.engine
def test_a_small_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawing = ("--plot", str(tmp_path / "curves.png"))
    policies = ("--policy", "priority-path,fcfs,fcfs+cost,atlas,atlas+cost")
    flags = ("--", "--num-gpu-blocks-override", "512")
    assert call(["policies", *SMALL, *policies, *drawing, "--json", *flags]) == 0
    out, _ = capsys.readouterr()
    *text, line = out.splitlines()
    head = text[0]
    assert "**Virtual time**" in head
    assert "Engine: 2 batch slots, 512 KV blocks" in "\n".join(text[:4])
    assert "prompts x 0.05" in "\n".join(text[:5])
    told = json.loads(line)
    assert told["time"] == "virtual"
    names = ["stock", "priority-path", "fcfs", "fcfs+cost", "atlas", "atlas+cost"]
    assert [cell["policy"] for cell in told["cells"]] == names * 2
    assert [cell["arrivals"] for cell in told["cells"]] == ["1"] * 6 + ["3"] * 6
    for cell in told["cells"]:
        if cell["policy"] in ("stock", "fcfs"):
            ratios = {found["ratio"] for found in cell["measures"].values()} - {None}
            assert ratios == {1.0}, "our fcfs is stock, whatever is measured"
        assert cell["measures"]["cpu_us"]["median"] is None, "nothing is timed in virtual time"
        assert cell["measures"]["prefix_hit_share"]["median"] > 0
        assert len(cell["by_seed"]["mean_s"]) == 2
    assert {row["policy"] for row in told["equal_latency"]} == set(names)
    assert {row["measure"] for row in told["equal_latency"]} == {
        "token_latency_s",
        "token_p95_s",
        "token_p99_s",
    }
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--virtual", "--policy", "lifo"], ["unknown policy 'lifo'", "priority-path", "atlas"]),
        (["--virtual", "--policy", "priority"], ["'priority'", "priority-service"]),
        (["--virtual", "--policy", "atlas+mru"], ["unknown policy 'atlas+mru'", "fcfs+cost"]),
        (["--policy", "srpt"], ["'srpt' runs in virtual time only"]),
        (["--policy", "stock+ample"], ["'stock+ample'", "python -m benchmarks memory"]),
        (["--virtual", "--rate", "fast"], ["--rate 'fast'", "0.5", "0.9x"]),
        (["--virtual", "--rate", "0x"], ["--rate '0x'", "0.9x"]),
        (["--virtual", "--rate", "1,2x"], ["--rate '1,2x'", "programs per second", "shares"]),
        (["--rate", "0.5", "--burst", "4"], ["--rate and --burst", "one of them"]),
        (["--programs", "3", "--burst", "4"], ["--burst and --programs", "one of them"]),
        (["--model", "m", "--model-shape", "tiny"], ["--model and --model-shape"]),
        (["--virtual", "--model", "m"], ["--model", "--virtual has no model"]),
        (["--step-time", "s.json"], ["--step-time", "--virtual"]),
        (["--virtual", "--step-time", "no.json"], ["no.json", "agentrt calibrate"]),
        (["--virtual", "--workload", "tea"], ["'tea'", "chat"]),
        (["--virtual", "--seeds", "0"], ["'--seeds'", "x>=1"]),
        (["--virtual", "--scale", "0"], ["'--scale'", "x>0"]),
        (["--virtual", "--plot", "curves.txt"], ["--plot", ".png"]),
        (["--model-shape", "huge"], ["'huge'", "llama-8b, small, tiny"]),
        (["--model", "./no/such"], ["./no/such", "no such folder"]),
        (["--virtual", "--", "--dtype", "half"], ["'--dtype'", "--max-num-seqs"]),
        (["--virtual", "--", "--max-num-seqs", "x"], ["--max-num-seqs 'x'", "at least 1"]),
        (["--virtual", "--", "--max-num-seqs"], ["--max-num-seqs ''", "at least 1"]),
        (["--virtual", "0.9"], ["0.9", "python -m benchmarks policies --help"]),
        (["--vitual"], ["--vitual", "--virtual"]),
        (["memory", "--workload", "chart"], ["unknown workload 'chart'", "chat"]),
        (["memory", "--memory", "x"], ["--memory 'x'", "0.25"]),
        (["memory", "--policy", "adaptive+lots"], ["'adaptive+lots'", "adaptive+memory"]),
        (["memory", "--policy", "cap:0"], ["unknown policy 'cap:0'", "cap:N"]),
        (["memory", "--trace", "none.jsonl"], ["the file 'none.jsonl' does not exist"]),
    ],
)
def test_bad_input(args: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    check(capsys, call([*args] if args[:1] == ["memory"] else ["policies", *args]), *words)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["policies", "--help"]) == 0
    text = capsys.readouterr().out
    for words in ("--workload", "--model-shape", "--plot", "--virtual", "[-- VLLM_FLAGS]"):
        assert words in text
    assert "Exit codes: 0" in text


def test_nothing_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["policies"]) == 2
    out, err = capsys.readouterr()
    assert "--workload" in out + err


def test_ctrl_c_keeps_what_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs that were done are told of; then the exit code says what ended the rest."""
    from agentrt.cli.faults import StoppedError
    from agentrt.lab.commands import progress
    from agentrt.lab.runs.grid import RunSpec
    from benchmarks.summaries import FullSummary, TypedResult

    summary = FullSummary(10, 4.0, 3.0, 8.0, 9.0, 2.0, 0.1, 50.0, 0.2, 0.5, 0.5, 0.0, 0)

    def stopped(specs: list[RunSpec], jobs: int | None, do: Any) -> Any:
        error = StoppedError(2, "interrupted; 1 of 8 runs were finished")
        return {specs[0]: TypedResult(specs[0], summary)}, error

    monkeypatch.setattr(progress, "do_all", stopped)
    assert call(["policies", *SMALL]) == 130
    out, err = capsys.readouterr()
    assert "| 1    | stock  |" in out
    assert "interrupted; 1 of 8 runs" in err


RESULTS = (Path(__file__).parents[2] / "docs" / "results").glob("*.md")
PAGES = "".join(page.read_text(encoding="utf-8") for page in RESULTS)
COMMANDS = re.findall(r"`python -m benchmarks ((?:policies|memory) [^`]*)`", PAGES)


@pytest.mark.parametrize("line", COMMANDS)
def test_what_the_benchmarks_show_is_understood(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the measurement, which would take a while."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"id": "a", "calls": [{"t": 0, "in": 9, "out": 4}]}', encoding="utf-8")

    def stopped(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr("benchmarks.memory.command.Memory", stopped)
    monkeypatch.setattr("benchmarks.policies.command.measure_virtual", stopped)
    monkeypatch.setattr("benchmarks.policies.real.measure", stopped)
    assert call(shlex.split(line.replace(" FILE", f" {trace}"))) == 130
