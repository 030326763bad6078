"""`benchmarks simulate` from end to end, at small sizes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agentrt.extras import install_command
from agentrt.lab.commands.progress import run_all
from benchmarks.__main__ import call
from tests.cli.conftest import check
from tests.cli.test_help import run

TINY = ("--programs", "20", "--max-num-seqs", "4", "--jobs", "1")


def told(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """What a command that succeeds writes to stdout."""
    assert call(["simulate", *map(str, args)]) == 0
    return capsys.readouterr().out


def told_json(capsys: pytest.CaptureFixture[str], *args: object) -> Any:
    return json.loads(told(capsys, *args))


# -- one setting -----------------------------------------------------------------------


def test_run_compares_to_the_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("run", "--workload", "react", "--load", "1.2", "--policy", "atlas,srpt", *TINY)
    text = told(capsys, *args, "--seeds", "2")
    assert "20 programs (react), arrivals: 1.2. 2 seeds (0-1): medians (least-most)." in text
    assert "4 batch slots; every step takes 25.00 ms" in text
    assert "| ratio to fcfs " in text
    found = told_json(capsys, *args, "--json")
    assert found["complete"]
    assert [cell["policy"] for cell in found["cells"]] == ["fcfs", "atlas", "srpt"]
    base = found["cells"][0]["measures"]
    assert base["mean_s"]["ratio"] == 1
    shares = sum(base[f"{name}_share"]["median"] for name in ("waiting", "service", "tool"))
    assert shares == pytest.approx(1)


def test_run_with_and_without_hints(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("run", "--workload", "react", "--policy", "plas,plas+hints", *TINY)
    found = told_json(capsys, *args, "--hints", "0.7", "--json")
    assert [cell["policy"] for cell in found["cells"]] == ["fcfs", "plas", "plas+hints"]
    assert found["settings"]["hints"] == 0.7
    assert "size hints have a correlation of 0.5" in told(capsys, *args)


@pytest.mark.engine
def test_run_on_the_virtual_engine(capfd: pytest.CaptureFixture[str]) -> None:
    args = ("run", "--workload", "react", "--programs", "4", "--jobs", "1", "--policy", "plas")
    found = told_json(capfd, *args, "--depth", "virtual", "--kv-blocks", "9000", "--json")
    assert found["settings"]["kv_blocks"] == 9000
    assert [cell["policy"] for cell in found["cells"]] == ["fcfs", "plas"]


def test_run_of_a_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(SESSIONS, encoding="utf-8")
    found = told_json(
        capsys,
        "run",
        "--workload",
        log,
        "--policy",
        "atlas",
        *("--max-num-seqs", "1", "--jobs", "1"),
        "--json",
    )
    assert {cell["workload"] for cell in found["cells"]} == {"log"}
    assert {cell["arrivals"] for cell in found["cells"]} == {"recorded"}


SESSIONS = """\
{"id": "a", "start": 0, "calls": [{"t": 0, "in": 9, "out": 40}]}
{"id": "b", "start": 1, "calls": [{"t": 0, "in": 9, "out": 80}]}
"""


# -- grids -----------------------------------------------------------------------------


def test_sweep_ends_with_json_and_draws(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = told(
        capsys,
        *("sweep", "--workload", "react,chat", "--load", "0.8,1.2,b0.8", "--seeds", 2),
        *("--policy", "atlas", *TINY, "--json", "--plot", tmp_path / "out.png"),
    )
    found = json.loads(text.splitlines()[-1])
    assert len(found["cells"]) == 2 * 3 * 2
    assert found["settings"]["batch"] == 4
    assert text.count("| atlas ") == 2 * 3
    assert (tmp_path / "out.png").stat().st_size


def test_sweep_of_traces(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    logs = [tmp_path / name for name in ("one.jsonl", "two.jsonl")]
    for log in logs:
        log.write_text(SESSIONS, encoding="utf-8")
    args = (
        "sweep",
        "--workload",
        logs[0],
        "--workload",
        logs[1],
        "--output-scale",
        "0.5",
        "--load",
        "0.9",
        "--json",
    )
    size = ("--seeds", 2, "--max-num-seqs", 1, "--jobs", 1)
    assert call([str(word) for word in ("simulate", *args, *size)]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out.splitlines()[-1])["cells"]
    assert [cell["workload"] for cell in found[::5]] == ["one", "two"]
    assert {cell["programs"] for cell in found} == {2}
    assert "outputs x 0.5" in err
    many = json.loads(told(capsys, *args, *size, "--programs", 5).splitlines()[-1])["cells"]
    assert {cell["programs"] for cell in many} == {5}


def test_sweep_of_a_trace_tells_that_its_programs_sleep(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "sessions.jsonl"
    calls = [{"t": t, "in": 9, "out": 40, "stop": "tool_use", "gap": t} for t in (0, 900)]
    log.write_text(json.dumps({"id": "a", "calls": calls}), encoding="utf-8")
    args = ["sweep", "--workload", str(log), "--load", "0.9", "--programs", "9", "--seeds", "1"]
    assert call(["simulate", *args, "--jobs", "1"]) == 0
    assert "sessions at 0.9: programs pause between their calls" in capsys.readouterr().err
    assert call(["simulate", *args, "--jobs", "1", "--gap-scale", "0", "--max-num-seqs", "1"]) == 0
    assert "sleep" not in capsys.readouterr().err


def test_offline_compares_makespans(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(
        capsys,
        *("sweep", "--workload", "react", "--offline", "--programs", "10,20", "--seeds", "1"),
        *("--policy", "atlas", "--max-num-seqs", "4", "--jobs", "1"),
    )
    assert "| programs at once |" in text
    assert "| makespan / fcfs |" in text


def test_a_signal_keeps_what_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> Any:
        yield from run_all(*args)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("agentrt.lab.commands.progress.run_all", interrupted)
    args = ["sweep", "--workload", "react", "--load", "0.9", "--seeds", "1", *TINY, "--json"]
    assert call(["simulate", *args]) == 130
    out, err = capsys.readouterr()
    assert len(json.loads(out.splitlines()[-1])["cells"]) == 5
    assert err == "interrupted; 5 of 5 runs were finished\n"


def test_ctrl_c_leaves_no_process_behind() -> None:
    command = [sys.executable, "-m", "benchmarks", "simulate", "sweep", "--workload", "lats"]
    args = ["--load", "0.9", "--programs", "1000", "--jobs", "2"]
    with subprocess.Popen(
        [*command, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        while len(_group(process.pid)) < 3 and process.poll() is None:  # itself and two workers
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert err.decode().splitlines()[-1] == "interrupted; 0 of 15 runs were finished"
    assert _group(process.pid) == []


def _group(leader: int) -> list[int]:
    """The command and its workers, of a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text(encoding="utf-8").rpartition(")")[2].split()[:3]
            line = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        # One that is just ending has no command line any more; Python's tracker of
        # semaphores ends after us.
        ours = b"spawn_main" in line or b"benchmarks" in line
        if int(group) == leader and state != "Z" and ours:
            found.append(int(stat.parent.name))
    return found


# -- bad input -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "--policy", "lifo"], ["unknown policy 'lifo'", "srpt"]),
        (["run", "--workload", "tea"], ["'tea'", "chat"]),
        (["run", "--load", "much"], ["load 'much'", "0.9", "b0.8"]),
        (["run", "--load", "-1"], ["load '-1'"]),
        (["run", "--load", "b3"], ["load 'b3'", "between 0.1 and 1.9"]),
        (["run", "--programs", "0"], ["'--programs'", "x>=1"]),
        (["run", "--seeds", "0"], ["'--seeds'", "x>=1"]),
        (["run", "--step-ms", "0"], ["'--step-ms'", "x>0"]),
        (["run", "--step-ms", "inf"], ["--step-ms", "inf is not finite"]),
        (["run", "--policy", "lifo+hints"], ["unknown policy 'lifo+hints'"]),
        (["run", "--policy", "stock"], ["'stock' needs vLLM's scheduler", "atlas"]),
        (["run", "--policy", "atlas+offload"], ["'atlas+offload' needs vLLM's scheduler", "atlas"]),
        (["run", "--policy", "plas", "--hints", "0.5"], ["--hints 0.5", "plas+hints"]),
        (["run", "--policy", "plas+hints", "--hints", "2"], ["'--hints'", "0<=x<=1"]),
        (["run", "--beta", "0"], ["beta", "positive"]),
        (["run", "--lane", "1.5"], ["lane", "share of the batch", "1.5"]),
        (["sweep", "--lane", "-1"], ["lane", "share of the batch"]),
        (["run", "--workload", "missing.jsonl"], ["missing.jsonl", "mooncake"]),
        (["run", "--depth", "deep"], ["'--depth'", "'virtual'"]),
        (["run", "--kv-blocks", "9"], ["--kv-blocks is for --depth virtual"]),
        (["run", "--step-time", "x.json"], ["--step-time is for --depth virtual"]),
        (["run", "--depth", "virtual", "--step-ms", "9"], ["--step-ms is for --depth steps"]),
        (["run", "--depth", "virtual", "--step-time", "x.json"], ["x.json", "calibrate"]),
        (["sweep", "--workload", "weka:missing.jsonl"], ["missing.jsonl"]),
        (["sweep", "--load", "0.8,b"], ["load 'b'"]),
        (["sweep", "--programs", "0"], ["--programs '0'"]),
        (["sweep", "--programs", "10,20"], ["--programs", "--offline"]),
        (["sweep", "--offline", "--load", "0.8"], ["--offline", "leave --load out"]),
        (["sweep", "--seeds", "0"], ["'--seeds'", "x>=1"]),
        (["sweep", "--plot", "x"], ["--plot 'x'", ".svg"]),
        (["sweep", "--plot", "nowhere/x.png"], ["folder 'nowhere' does not exist"]),
        (["routing", "--router", "x"], ["router 'x'", "cost"]),
        (["routing", "--router", "cost:margin"], ["'margin'", "NAME:option=number"]),
        (["routing", "--router", "cost:colour=1"], ["'cost'", "colour"]),
        (["routing", "--replicas", "0"], ["--replicas '0'"]),
        (["routing", "--policy", "x"], ["unknown policy 'x'"]),
        (["routing", "--workload", "x"], ["unknown workload 'x'"]),
        (["routing", "--kv-blocks", "9"], ["--kv-blocks is for --depth virtual"]),
        (["run", "--router", "cost"], ["--replicas N"]),
        (["sweep", "--replicas", "2", "--router", "x"], ["router 'x'"]),
    ],
)
def test_bad_input(
    args: list[str],
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    check(capsys, call(["simulate", *args]), *words)


def test_a_drawing_without_matplotlib(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code = call(["simulate", "sweep", "--plot", "x.png"])
    check(capsys, code, install_command("plot"))


@pytest.mark.parametrize("command", [[], ["run"], ["sweep"], ["routing"]])
def test_help_teaches_with_examples(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "Examples:\n    python -m benchmarks simulate" in told(capsys, *command, "--help")


def test_steps_need_no_engine() -> None:
    args = ("run", "--workload", "react", "--programs", "3", "--policy", "plas", "--jobs", "1")
    heavy = run("simulate", *args, "--json").stdout.splitlines()[-1]
    assert "vllm" not in heavy
    assert "torch" not in heavy


def test_help_imports_nothing_heavy() -> None:
    assert run("simulate", "sweep", "--help").stdout.splitlines()[-1] == "heavy:"


PAGE = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "line", re.findall(r"^python -m benchmarks (simulate .*)$", PAGE, re.MULTILINE)
)
def test_what_the_page_shows_is_understood(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the runs, which would take a while."""
    monkeypatch.chdir(tmp_path)
    progress = "agentrt.lab.commands.progress"
    monkeypatch.setattr(f"{progress}.do_all", lambda specs, jobs, do: ({}, None))
    assert call(shlex.split(line, comments=True)) == 0
