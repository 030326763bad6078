"""What the machine does not have, and what no engine serves: one clear error each."""

from __future__ import annotations

import importlib.util
import json
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke, Write

ASKS = "@program\nasync def asks(ctx, model=None): return str(await ctx.llm('hi', model=model))\n"


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert out == ""
    return err.splitlines()[-1]


def test_no_memory_for_another_engine(
    write: Write, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke("run", write(ASKS), "--replicas", 1000) == 1
    line = last_line(capsys)
    assert line.startswith("error: 1000 engines take about ")
    assert "give fewer --replicas, or a smaller cache" in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--replicas", "3"], "3 engines need 3 GPUs (1, 1, 1), and 2 can be used"),
        (
            ["--replicas", "2", "--", "--tensor-parallel-size", "2"],
            "2 engines need 4 GPUs (2, 2), and 2 can be used",
        ),
        (
            ["--replica", "lab/big -tp 2"],
            "2 engines need 3 GPUs (1, 2), and 2 can be used",
        ),
    ],
)
def test_gpus_that_are_not_there(
    options: list[str],
    words: str,
    write: Write,
    invoke: Invoke,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("agentrt.cli.engines.count_gpus", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert invoke("run", write(ASKS), *options) == 2
    assert last_line(capsys).startswith(f"error: {words}")


def test_a_gpu_that_the_environment_names_and_is_not_there(
    write: Write,
    invoke: Invoke,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("agentrt.cli.engines.count_gpus", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,5")
    assert invoke("run", write(ASKS), "--replicas", 2) == 2
    assert "there is no GPU 5 on this machine" in last_line(capsys)


def test_without_ray(
    write: Write,
    invoke: Invoke,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    find = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "ray" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert invoke("run", write(ASKS), "--cluster", "auto") == 2
    assert last_line(capsys) == (
        "error: --cluster needs Ray, which is not installed: pip install 'agentrt[ray]'"
    )


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_cluster_that_cannot_be_reached(
    address: str, write: Write, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    assert invoke("run", write(ASKS), "--cluster", address, "--replicas", 2) == 1
    line = last_line(capsys)
    assert line.startswith(f"error: no Ray cluster at --cluster {address}: Connection refused")
    assert "ray start --head" in line


def folders(tmp_path: Path, *names: str) -> list[str]:
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    return [str(tmp_path / name) for name in names]


def test_replicas_of_several_models(
    tmp_path: Path, write: Write, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each serves the calls that name it; one that none serves ends the program, as a mistake."""
    big, small = folders(tmp_path, "big", "small")
    path = write(ASKS)
    models = ["--model", big, "--replica", f"{small}=2"]
    assert invoke("run", path, *models, "--input", "small", "--json") == 0
    replicas = json.loads(capsys.readouterr().out.splitlines()[-1])["engine"]["replicas"]
    assert [one["model"] for one in replicas] == [big, small, small]
    assert invoke("run", path, *models, "--input", "huge") == 2
    assert last_line(capsys) == (
        "error: program asks-1: this engine serves 'big' or 'small', not model 'huge': leave model "
        "out, or name 'big' or 'small', or start it with --model"
    )


def test_one_engine_serves_one_model(
    tmp_path: Path, write: Write, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    [big] = folders(tmp_path, "big")
    path = write(ASKS)
    assert invoke("run", path, "--model", big, "--input", "big") == 0
    capsys.readouterr()
    assert invoke("run", path, "--model", big, "--input", "small") == 2
    assert "this engine serves 'big', not model 'small'" in last_line(capsys)
