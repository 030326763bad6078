"""`agentrt demo` on a real engine: both orders, in rounds that do the same work."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrt.cli.app import call
from tests.doubles.tinymodel import tiny_model

pytest.importorskip("vllm")
pytestmark = pytest.mark.engine


def test_both_orders_run_on_one_engine(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = str(tiny_model(tmp_path / "tiny"))
    code = call(["demo", "--engine", "vllm", "--model", model, "--no-dashboard"])
    out, err = capfd.readouterr()
    assert code == 0, err
    assert err.count(" done (8 of 8)") == 7
    assert [line.split()[0] for line in out.splitlines() if "-" in line[:8]] == [
        *(f"report-{number}" for number in (1, 2, 3)),
        *(f"lookup-{number}" for number in (4, 5, 6, 7, 8)),
    ]
    assert "First run, while agentrt knows nothing of these programs: " in out
    assert "Stock's order ran in 3 rounds" in out
