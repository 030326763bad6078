"""``benchmarks journal``: all sides do the same, and what is kept is what the side says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentrt.journal import Journal
from agentrt.journal.schema import Change, EndRow
from benchmarks.__main__ import call
from benchmarks.journal import SIDES


def test_all_sides_do_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, list[str]] = {}
    opened = Journal.__init__

    def opening(self: Journal, *given: Any) -> None:
        opened(self, *given)
        put = self.put

        def counted(*rows: Change) -> None:
            ends = (row for row in rows if isinstance(row, EndRow) and row.node != "0")
            kept.setdefault(self.content, []).extend(row.outcome for row in ends)
            put(*rows)

        self.put = counted

    monkeypatch.setattr(Journal, "__init__", opening)
    given = ["--programs", "2", "--calls", "3", "--repeat", "2", "--json"]
    assert call(["journal", *given]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [one["journal"] for one in found] == list(SIDES)
    assert (found[0]["to_off"], found[0]["more_us"]) == (1.0, 0.0)
    assert {side: len(rows) for side, rows in kept.items()} == {"none": 18, "full": 18}
    assert set(kept["none"]) == {""}
    assert all("dry" in outcome for outcome in kept["full"])
