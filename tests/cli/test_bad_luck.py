"""What the machine does not have, and what no engine serves: one clear error each."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from agentrt.extras import install_command
from tests.cli.conftest import Ran, Run

ASKS = "@program\nasync def asks(ctx, model=None): return str(await ctx.llm('hi', model=model))\n"


def failed(ran: Ran, code: int) -> str:
    """The last line of a command that failed."""
    assert (ran.code, ran.out) == (code, "")
    assert "Traceback" not in ran.err
    return ran.said


def test_no_memory_for_another_engine(run_program: Run) -> None:
    line = failed(run_program(ASKS, "--replicas", 1000), 1)
    assert line.startswith("error: 1000 engines need about ")
    assert "use fewer --replicas, or a smaller KV cache" in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--replicas", "3"], "3 engines need 3 GPUs (1, 1, 1), but only 2 can be used"),
        (
            ["--replicas", "2", "--", "--tensor-parallel-size", "2"],
            "2 engines need 4 GPUs (2, 2), but only 2 can be used",
        ),
        (
            ["--replica", "lab/big -tp 2"],
            "2 engines need 3 GPUs (1, 2), but only 2 can be used",
        ),
    ],
)
def test_gpus_that_are_not_there(
    options: list[str], words: str, run_program: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrt.cli.engines.count_gpus", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert failed(run_program(ASKS, *options), 2).startswith(f"error: {words}")


def test_a_gpu_that_the_environment_names_and_is_not_there(
    run_program: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrt.cli.engines.count_gpus", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,5")
    assert "this machine has no GPU 5" in failed(run_program(ASKS, "--replicas", 2), 2)


def test_without_ray(run_program: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "ray" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert failed(run_program(ASKS, "--cluster", "auto"), 2) == (
        f"error: --cluster needs Ray, which is not installed; run: {install_command('ray')}"
    )


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_cluster_that_cannot_be_reached(address: str, run_program: Run) -> None:
    pytest.importorskip("ray")
    line = failed(run_program(ASKS, "--cluster", address, "--replicas", 2), 1)
    assert line.startswith(f"error: no Ray cluster at --cluster {address}: Connection refused")
    assert "ray start --head" in line


def folders(tmp_path: Path, *names: str) -> list[str]:
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    return [str(tmp_path / name) for name in names]


def test_replicas_of_several_models(tmp_path: Path, run_program: Run) -> None:
    """Each serves the calls that name it; one that none serves ends the program, as a mistake."""
    big, small = folders(tmp_path, "big", "small")
    models = ["--model", big, "--replica", f"{small}=2"]
    ran = run_program(ASKS, *models, "--input", "small", "--json")
    assert [one["model"] for one in ran.json["engine"]["replicas"]] == [big, small, small]
    assert failed(run_program(ASKS, *models, "--input", "huge"), 2) == (
        "error: run asks-1: this engine serves 'big' or 'small', not model 'huge': leave model "
        "out, or name 'big' or 'small', or start the engine with --model"
    )


def test_one_engine_serves_one_model(tmp_path: Path, run_program: Run) -> None:
    [big] = folders(tmp_path, "big")
    assert run_program(ASKS, "--model", big, "--input", "big").code == 0
    line = failed(run_program(ASKS, "--model", big, "--input", "small"), 2)
    assert "this engine serves 'big', not model 'small'" in line
