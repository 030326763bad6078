"""The command line in this process, on an engine that echoes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from agentrt.engines import EngineOptions
from agentrt.scheduler.config import SchedulerConfig
from tests.cli.conftest import Invoke, command, invoke, write
from tests.cli.echo_engine import EchoEngine

__all__ = ["command", "invoke", "write"]

Records = Callable[..., Path]


@pytest.fixture
def records(tmp_path: Path) -> Records:
    """Writes records as JSONL, and returns the file."""

    def put(values: Iterable[Any], name: str = "records.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{json.dumps(value)}\n" for value in values), encoding="utf-8")
        return path

    return put


@pytest.fixture
def schedulers(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> list[SchedulerConfig]:
    """The settings of each engine that is made, as it is made. The engines echo."""
    made: list[SchedulerConfig] = []

    def make(options: EngineOptions) -> EchoEngine:
        made.append(options.scheduler)
        return EchoEngine(options)

    monkeypatch.setattr("agentrt.engines.VLLMEngine", make)
    return made


def lines(path: Path) -> list[dict[str, Any]]:
    """All lines of a file of results; each must be whole."""
    text = path.read_text("utf-8")
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]
