"""Drawings: their data exactly, and that a file comes out."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from agentrt.errors import ConfigError
from agentrt.lab.reports.plots import Gantt, check_matplotlib, draw_curves, draw_gantt, stretches
from tests.lab.runs.test_grid import cell

PNG = b"\x89PNG"


def test_a_call_keeps_its_slot_while_it_runs() -> None:
    timeline = [["A0", "B0"], ["A0", "C0"], ["C0"], ["A0", "C0"]]
    assert stretches(timeline, 2) == [
        ("A0", 0, 0, 2),
        ("B0", 1, 0, 1),
        ("C0", 1, 1, 3),
        ("A0", 0, 3, 1),
    ]


def test_a_gantt_chart(tmp_path: Path) -> None:
    draw_gantt([Gantt("a", [["A0"], ["B0"]], 1), Gantt("b", [["B0"]], 1)], tmp_path / "g.png")
    assert (tmp_path / "g.png").read_bytes().startswith(PNG)


def test_curves(tmp_path: Path) -> None:
    found = [cell(load, p, 0.1, 0.2) for load in (0.8, 0.9) for p in ("fcfs", "atlas")]
    draw_curves(found, tmp_path / "c.svg", ("mean_s", "token_latency_s"))
    assert "<svg" in (tmp_path / "c.svg").read_text(encoding="utf-8")


def test_without_matplotlib_one_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install "agentrt\[plot\]"'):
        check_matplotlib()
