"""`agentrt run` on a real engine: what it prints, what it refuses, and what a kill leaves.

tests/engine/test_cli_process.py has it on a terminal.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agentrt.cli.app import call
from tests.doubles.tinymodel import tiny_model
from tests.engine.forked import forked_python, forks

pytest.importorskip("vllm")
pytestmark = pytest.mark.engine

START_S = 240
"""Loose: what is asserted is what happens, not how fast a busy machine is."""

GOOD = """
import asyncio
from agentrt import program

@program
async def good(ctx):
    first = await ctx.llm("Name a colour.", max_tokens=4)
    await asyncio.gather(*(ctx.llm(f"{first} {i}", max_tokens=4) for i in range(2)))
    return str(first)
"""
LONG = """
from agentrt import program

@program
async def long(ctx):
    while True:
        await ctx.llm("Count.", max_tokens=1900, ignore_eos=True)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


def put(folder: Path, source: str) -> str:
    path = folder / "prog.py"
    path.write_text(source)
    return str(path)


def wait_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 60
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)


def is_ours(line: str) -> bool:
    """No noise of vLLM, torch or the loading of weights."""
    return line.startswith("[") and " s] " in line


def test_json_of_two_instances(
    tmp_path: Path, model: str, capfd: pytest.CaptureFixture[str]
) -> None:
    graph = tmp_path / "graph.json"
    command = ["run", put(tmp_path, GOOD), "--model", model]
    code = call([*command, "--n", "2", "--max-num-seqs", "2", "--json", "--dag", str(graph)])
    out, err = capfd.readouterr()
    assert code == 0, err
    assert len(out.splitlines()) == 1
    value = json.loads(out)
    assert len(value["results"]) == 2
    for program in value["programs"]:
        assert program["state"] == "done"
        assert program["calls"] == 3
        assert 0 < program["critical_path_s"] <= program["service_s"]
    assert value["engine"]["table"] == {"runtime": 0, "engine": 0}
    assert value["engine"]["requests"] == 0
    assert value["engine"]["steps"] > 0
    assert len(json.loads(graph.read_text())) == 2
    assert all(map(is_ours, err.splitlines()))


def test_programs_are_compared_by_one_run(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is replayed with the engine's sizes: six calls and more on two slots."""
    words = ["--n", "6", "--max-num-seqs", "2", "--model", model, "--repeat", "3", "--json"]
    assert call(["compare", put(tmp_path, GOOD), *words]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    for order in ("stock", "agentrt"):
        assert [one["id"] for one in told[order]] == [f"good-{number}" for number in range(1, 7)]
        reasons = [{share["reason"] for share in one["reasons"]} for one in told[order]]
        assert all("decode" in one for one in reasons)
        assert any("queued" in one for one in reasons)


def check_last_line(told: str, *words: str) -> None:
    assert "Traceback" not in told
    last = told.splitlines()[-1]
    assert last.startswith("error: ")
    for word in words:
        assert word in last


def test_a_flag_that_vllm_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", put(tmp_path, GOOD), "--", "--no-such-flag", "1"]) == 2
    check_last_line(
        capsys.readouterr().err,
        "vLLM's options",
        "--no-such-flag",
        "'vllm serve --help=all'",
        "options of agentrt come before --",
    )


# vLLM leaves a socket open where its start fails; as a command, the process ends then.
left_open = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@left_open
def test_flags_with_which_the_engine_does_not_start(
    tmp_path: Path, model: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Why, the engine core has written into the command's log."""
    command = ["run", put(tmp_path, GOOD), "--model", model]
    assert call([*command, "--", "--kv-cache-memory-bytes", "1000"]) == 2
    check_last_line(capfd.readouterr().err, "the engine did not start", "ValueError", ".log")
    gc.collect()  # here, and not in a later test


@left_open
def test_an_engine_that_finds_no_way_to_talk_to_its_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On one machine that is a socket in a folder, and no port: here the folder is missing."""
    missing = tmp_path / "missing"
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", str(missing))
    assert call(["run", put(tmp_path, GOOD), "--replicas", "2"]) == 1
    check_last_line(capsys.readouterr().err, "the engine did not start", str(missing))
    for thread in threading.enumerate():
        if thread.name.startswith("agentrt-engine"):  # the other engine may still be starting
            thread.join(START_S)
    gc.collect()  # here, and not in a later test


def test_the_engine_dies_with_a_parent_that_was_killed(tmp_path: Path, model: str) -> None:
    """The command is a fork here: of its own accord, its core ends as one that was spawned."""
    with forked_python(tmp_path):
        before = set(forks())
        command = [sys.executable, "-m", "agentrt.cli", "run", put(tmp_path, LONG)]
        with subprocess.Popen(
            [*command, "--model", model], stderr=subprocess.PIPE, text=True, cwd=tmp_path
        ) as process:
            assert process.stderr is not None
            while "ready" not in (line := process.stderr.readline()):
                assert is_ours(line), line
            started = set(forks()) - before
            process.kill()
    assert len(started) == 2, "the command, and its core"
    wait_gone([*started])
