"""`agentrt bench memory`: bad input, and what the pages show of it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from agentrt.cli.app import call
from tests.cli.conftest import check


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["memory", "--workload", "chart"], ["no workload is named 'chart'", "chat"]),
        (["memory", "--memory", "x"], ["--memory 'x'", "0.25"]),
        (["memory", "--contender", "adaptive+lots"], ["'adaptive+lots'", "adaptive+memory"]),
        (["memory", "--contender", "cap:0"], ["unknown policy 'cap:0'", "cap:N"]),
        (["memory", "--trace", "none.jsonl"], ["'none.jsonl': there is no such file"]),
    ],
)
def test_bad_input(args: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    check(capsys, call(["bench", *args]), *words)


RESULTS = (Path(__file__).parents[3] / "docs" / "results").glob("*.md")
BENCHMARKS = "".join(page.read_text(encoding="utf-8") for page in RESULTS)


@pytest.mark.parametrize("line", re.findall(r"`agentrt (bench memory[^`]*)`", BENCHMARKS))
def test_what_the_benchmarks_show_is_understood(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the measurement, which would take a while."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"id": "a", "calls": [{"t": 0, "in": 9, "out": 4}]}', encoding="utf-8")

    def stopped(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("agentrt.lab.bench.memory.Memory", stopped)
    assert call(shlex.split(line.replace(" FILE", f" {trace}"))) == 130
