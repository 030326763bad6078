"""The benchmark of parked programs: what it counts, never how fast."""

from __future__ import annotations

import json

import pytest

from benchmarks.__main__ import call


def test_all_come_back_and_end_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["parked", "--programs", "120", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    parked, start, _, answered = rows
    assert parked["programs"] == answered["programs"] == parked["most_runs"] == 120
    assert parked["runs"] == start["runs"] == answered["runs"] == answered["wrong"] == 0
