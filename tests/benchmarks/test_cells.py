"""The cell runner: cells in the order of the plan, ratios by seed, and what a signal leaves."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from agentrt.cli.faults import StoppedError
from agentrt.errors import ConfigError
from agentrt.lab.commands import progress
from benchmarks.cells import Cell, Measured, cells_of, check_names, measured, seeds_of


@dataclass(frozen=True)
class Numbered:
    """A workload whose load is its number and the seed."""

    number: int

    def load(self, seed: int) -> Any:
        return self.number, seed


WORKS, NAMES, SEEDS = [Numbered(1), Numbered(2)], ["stock", "atlas"], range(3)


def figures(load: Any, name: str) -> dict[str, float]:
    number, seed = load
    return {"mean": 10.0 * number + seed + (0.0 if name == "stock" else 5.0)}


def difference(mine: Any, base: Any) -> dict[str, float]:
    return {"mean": mine["mean"] - base["mean"]}


@pytest.mark.parametrize("jobs", [1, 2])
def test_cells_are_in_the_order_of_the_plan_however_they_end(jobs: int) -> None:
    cells = cells_of(WORKS, NAMES, SEEDS)
    assert [(cell.workload.number, cell.seed, cell.contender) for cell in cells[:3]] == [
        (1, 0, "stock"),
        (1, 0, "atlas"),
        (1, 1, "stock"),
    ]
    with measured(cells, figures, jobs) as runs:
        assert list(runs.cells) == cells
        assert runs.by_seed()[Numbered(2), "atlas"] == {
            seed: {"mean": 25.0 + seed} for seed in SEEDS
        }
        assert list(runs.over("stock", difference)) == [(work, "atlas") for work in WORKS]
        assert runs.over("stock", difference)[Numbered(1), "atlas"] == [{"mean": 5.0}] * 3


def test_a_ratio_is_to_the_same_seed_or_is_left_out() -> None:
    work = WORKS[0]
    done = {
        Cell(work, "stock", 1): {"mean": 2.0},
        Cell(work, "atlas", 2): {"mean": 8.0},
        Cell(work, "atlas", 1): {"mean": 6.0},
        Cell(work, "plas", 2): {"mean": 7.0},
    }
    assert Measured(done).over("stock", difference) == {(work, "atlas"): [{"mean": 4.0}]}


def test_a_signal_leaves_the_cells_that_are_done_to_be_told_and_is_raised_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(cells: list[Any], jobs: int, run: Any) -> Iterator[Any]:
        yield run(cells[1])
        yield run(cells[0])
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(progress, "run_all", interrupted)
    cells = cells_of(WORKS, NAMES, SEEDS)
    reported = list[Any]()
    with (
        pytest.raises(StoppedError, match="2 of 12 runs were finished"),
        measured(cells, figures, 1) as runs,
    ):
        reported += runs.cells
    assert reported == cells[:2]


def test_names_are_all_that_are_known_where_the_list_is_empty() -> None:
    assert check_names("mix", [], ["a", "b"]) == ["a", "b"]
    assert check_names("mix", ["b"], ["a", "b"]) == ["b"]
    with pytest.raises(ConfigError, match="unknown mix 'c'; available: a, b"):
        check_names("mix", ["c"], ["a", "b"])


def test_the_seeds_of_a_study_start_with_the_first_one() -> None:
    assert list(seeds_of({"seed": 5000, "seeds": 3})) == [5000, 5001, 5002]


def test_the_runner_takes_any_spec_and_keeps_the_order_of_the_plan() -> None:
    """Whatever the order of the ends, as for the grids of policies."""
    with progress.finished(["ab", "c", "def"], 2, len) as lengths:
        assert list(lengths.items()) == [("ab", 2), ("c", 1), ("def", 3)]
