"""The measurement of eager tools: both sides run, and the table has their ratios."""

from __future__ import annotations

import json

import pytest

from agentrt.cli.app import call
from agentrt.lab.bench import eager


def test_each_length_has_both_sides(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager, "STEP_S", 0.0)
    assert call(["bench", "eager", "--tokens", "3", "--repeat", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(one["tool"], one["side"]) for one in found] == [
        (share, side) for share in eager.SHARES for side in ("whole", "eager")
    ]
    assert all(one["step_to_whole"] == 1 for one in found if one["side"] == "whole")
