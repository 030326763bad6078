"""Drawings: that a file comes out."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from agentrt.errors import ConfigError
from agentrt.lab.reports.plots import check_matplotlib, draw_curves
from tests.lab.runs.test_grid import cell


def test_curves(tmp_path: Path) -> None:
    found = [cell(load, p, 0.1, 0.2) for load in (0.8, 0.9) for p in ("fcfs", "atlas")]
    draw_curves(found, tmp_path / "c.svg", ("mean_s", "token_latency_s"))
    assert "<svg" in (tmp_path / "c.svg").read_text(encoding="utf-8")


def test_without_matplotlib_one_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install "agentrt\[plot\]"'):
        check_matplotlib()
