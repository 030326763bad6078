"""Cells of a run beside those of an earlier one: changes by seed, marks, and what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrt.errors import ConfigError
from benchmarks.__main__ import call
from benchmarks.memory.report import HITS, RATIOS, as_json, beside_earlier, read_earlier


def cell(
    *means: float, workload: str = "chat", stock: float = 4.0, hits: float = 2.0, **more: float
) -> Any:
    """A cell whose default has these mean latencies by seed, and is 2 in all other figures."""
    seeds = [
        {
            "stock": dict.fromkeys([*RATIOS, HITS], stock),
            "default": {**dict.fromkeys(RATIOS, 2.0), HITS: hits, "mean_jct_s": mean, **more},
        }
        for mean in means
    ]
    about = {"workload": workload, "share": 0.25, "time": "virtual time", "first_seed": 5000}
    return as_json(about, seeds)


def test_a_change_is_the_median_of_each_seeds_own() -> None:
    text = beside_earlier([cell(1.0, 2.0, 4.0)], [cell(1.1, 2.1, 1.0)])
    assert "0.50 → 0.28 (+5.0%)" in text
    assert "More than 3% worse: chat (default): JCT mean." in text
    assert "Stock" not in text


def test_what_is_better_or_little_worse_is_not_marked() -> None:
    before = [cell(2.0, recomputed=0.0, hits=0.5), cell(2.0, workload="deep")]
    after = [cell(2.05, recomputed=0.0), cell(1.0, workload="deep", p95_jct_s=3.0)]
    text = beside_earlier(before, after)
    assert "More than 3% worse: none." in text
    assert "(+2.5%)" in text
    assert "50% → 200%" in text
    assert "(-50.0%)" in text
    assert "0.00 → 0.00 (+0.0%)" in text


@pytest.mark.parametrize(
    ("figure", "name"),
    [("ms_per_token", "s/token"), ("p99_jct_s", "P99"), ("recomputed", "recomputed")],
)
def test_each_figure_that_counts_is_marked(figure: str, name: str) -> None:
    changed: Any = {figure: 2.1}
    assert f"chat (default): {name}." in beside_earlier([cell(2.0)], [cell(2.0, **changed)])


def test_something_over_nothing_is_worse() -> None:
    text = beside_earlier([cell(2.0, recomputed=0.0)], [cell(2.0, recomputed=1.0)])
    assert "chat (default): recomputed." in text


def test_fewer_seeds_are_compared_with_as_many() -> None:
    text = beside_earlier([cell(1.0, 9.0, 9.0)], [cell(1.0)])
    assert "0.25 → 0.25 (+0.0%)" in text


def test_only_caps_that_all_seeds_have_are_compared() -> None:
    seeds = [
        {name: dict.fromkeys([*RATIOS, HITS], 2.0) for name in ("stock", "default", *caps)}
        for caps in (["cap:4", "cap:5"], ["cap:4", "cap:6"])
    ]
    made = as_json({"workload": "chat"}, seeds)
    text = beside_earlier([made], [made])
    names = [line.split("|")[2].strip() for line in text.splitlines() if line.startswith("| chat")]
    assert names == ["default", "cap:4"]


def test_another_stock_and_other_cells_are_named() -> None:
    text = beside_earlier([cell(2.0)], [cell(2.0, stock=5.0), cell(2.0, workload="day")])
    assert "Stock itself differs, so the measurement has changed: chat." in text
    assert "Not in the earlier run: day." in text
    assert beside_earlier([], [cell(2.0)]).startswith("More than 3% worse: none.")


def test_a_file_of_what_was_printed_is_read(tmp_path: Path) -> None:
    file = tmp_path / "before.txt"
    file.write_text("| a table |\n" + json.dumps({"cells": [cell(2.0)]}) + "\n", encoding="utf-8")
    assert read_earlier(file) == [cell(2.0)]


@pytest.mark.parametrize(
    "text", ["", "| a |", "{", '{"medians": []}', '{"cells": [{}]}', '{"cells": []}', "{}"]
)
def test_any_other_file_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "before.txt"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"before\.txt.*save the whole output of a run with --json"
    ):
        read_earlier(file)


@pytest.mark.parametrize(("command", "option"), [("memory", "--against"), ("batch", "--add")])
def test_a_file_that_is_not_text_is_refused(
    command: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(b"\x89PNG\r\n\xff")
    assert call([command, option, str(file)]) == 2
    error = capsys.readouterr().err
    assert f"{option} '{file}' is not UTF-8 text" in error
    assert "name a file with the output of --json" in error
