"""``benchmarks sensitivity``: a constant that counts, one that does not, and bad values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import sensitivity
from benchmarks.__main__ import call
from benchmarks.memory.cells import Memory, MemoryLoad, Scarce, Setup
from benchmarks.sensitivity import Constant, Variant, constants, figures
from tests.cli.conftest import check


def small() -> MemoryLoad:
    return Memory(count=1).make(Setup("map_reduce_64", 0.25, 0.2), 5000)


@pytest.mark.engine
def test_another_value_is_another_decision_for_this_run_only() -> None:
    """Of all constants at least one counts in a tiny run, and none is left changed."""
    load = small()
    as_it_is = figures(load, None)
    found = [one for one in constants() if one.times(2.0) != one.value]
    for one in sorted(found, key=lambda one: one.name != "SCANNED"):  # which counts today
        if figures(load, Variant(one, 2.0)) != as_it_is:
            break
    else:
        pytest.fail("no constant counts")
    assert figures(load, None) == as_it_is


@pytest.mark.engine
def test_a_table_of_half_and_twice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gain of a fake rule: what it makes of a run is what the table says."""
    few = [Constant("GAIN", "m", 4.0), Constant("ONE", "m", 1), Constant("BAD", "m", 0.5)]

    def made(load: Any, variant: Variant | None) -> Any:
        if variant is not None and variant.constant.name == "BAD" and variant.factor == 2:
            return None
        work, seed = load
        gain = variant.factor if variant and variant.constant == few[0] and work == "day" else 1.0
        return {"ms_per_token": gain, "mean_jct_s": 5.0, "p99_jct_s": 1.0 + seed * gain}

    monkeypatch.setattr(sensitivity, "constants", lambda: few)
    monkeypatch.setattr(sensitivity, "figures", made)
    monkeypatch.setattr(Scarce, "load", lambda self, seed: (self.setup.workload, seed))
    assert call(["sensitivity", "--jobs", "1", "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    cells = {row[0]: row[1:] for line in lines[2:] for row in [_cells(line)]}
    assert cells["GAIN"][2:] == [
        *("1.00 long_coding", "1.00 long_coding", "1.00 long_coding"),
        *("2.00 day", "1.00 long_coding", "2.00 day"),
    ]
    assert cells["ONE"][2:] == ["-", "-", "-", "=", "=", "="]
    assert cells["BAD"][2:] == ["=", "=", "=", "fails", "fails", "fails"]
    half, *_ = json.loads(last)["constants"]
    assert (half["name"], half["factor"], half["ratios"]["day"]["ms_per_token"]) == (
        "GAIN",
        0.5,
        0.5,
    )


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.engine
def test_a_value_that_makes_no_sense_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    missing = Constant("NO_SUCH_NAME", "agentrt.scheduler.config", 4.0)
    assert figures(small(), Variant(missing, 2.0)) is None
    assert "NO_SUCH_NAME times 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            ["--constant", "NO_SUCH"],
            ["unknown constant of the scheduler 'NO_SUCH'", "available"],
        ),
        (["--workload", "chart"], ["unknown held-out workload 'chart'", "long_coding"]),
    ],
)
def test_bad_input(args: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    check(capsys, call(["sensitivity", *args]), *words)
