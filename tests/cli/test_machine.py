"""What this machine has, as its driver's own tool says."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrt.cli.machine import count_gpus

TWO = "echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'; echo 'GPU 1: NVIDIA H100 (UUID: GPU-2)'"


@pytest.mark.parametrize(
    ("says", "count"),
    [(TWO, 2), ("echo 'No devices found.'", 0), (f"{TWO}; exit 9", 0)],
)
def test_gpus_are_counted(
    says: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{says}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert count_gpus() == count


def test_without_the_tool_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert count_gpus() == 0
