"""The command line in this process, on an engine that echoes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import command, invoke, write

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


def lines(path: Path) -> list[dict[str, Any]]:
    """All lines of a file of results; each must be whole."""
    text = path.read_text("utf-8")
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]
