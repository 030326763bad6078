"""The benchmark that kills batches: small numbers, with the processes left out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks import batch_kills
from benchmarks.__main__ import call
from tests.cli.conftest import check


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["--inputs", "5"], ["'--inputs'", "5 is not in the range x>=10"]),
        (["--inputs", "10", "--kills", "9"], ["--kills 9", "at most 8 times", "more --inputs"]),
    ],
)
def test_a_batch_that_is_too_small_is_refused(
    line: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    check(capsys, call(["batch-kills", *line]), *words)


@pytest.mark.parametrize(("starts_s", "shown"), [([], "-"), ([1.0], "-"), ([1.0, 1.5], "1.50")])
def test_later_starts_are_compared_if_there_are_two(
    starts_s: list[float],
    shown: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def through_run(folder: Any, inputs: int, kills: int, seed: int) -> Any:
        each = Counter(map(str, range(inputs)))
        return batch_kills._Measured(inputs, kills, 0, each, each, starts_s, [100, 100], 10)

    monkeypatch.setattr(batch_kills, "_through_run", through_run)
    assert call(["batch-kills", "--door", "run", "--kills", "1"]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.split("|")[-2].strip() == shown
