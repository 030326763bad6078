"""The benchmark of parked programs: what it counts, never how fast."""

from __future__ import annotations

import json

import pytest

from benchmarks.__main__ import call


@pytest.mark.parametrize(("number", "shown"), [(120, 100), (50, 50)])
def test_all_come_back_and_end_right(
    number: int, shown: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["parked", "--programs", str(number), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    parked, start, listed, answered = rows
    assert parked["operations"] == answered["operations"] == parked["most_runs"] == number
    assert listed["phase"] == f"{shown} questions listed"
    assert parked["runs"] == start["runs"] == answered["runs"] == answered["wrong"] == 0
