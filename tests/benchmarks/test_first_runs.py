"""``benchmarks first-runs``: the mixes, one of them through the command, and its arithmetic."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from agentrt.lab.commands import progress
from benchmarks.__main__ import call
from benchmarks.cells import Cell, Measured
from benchmarks.mixes import ALIKE, LONGEST, MIXES, UNLIKE
from benchmarks.room import Newcomers, ratios, report, times
from tests.cli.conftest import check


@dataclass(frozen=True)
class Ended:
    """An outcome of which only the completion time counts."""

    latency_s: float


def ended(*seconds: float) -> Any:
    return [Ended(one) for one in seconds]


def test_there_are_ten_mixes_of_each_sort_and_a_newcomer_has_few_programs() -> None:
    assert (len(UNLIKE), len(ALIKE)) == (10, 10)
    assert all(mix.alike for mix in ALIKE.values())
    for name, mix in MIXES.items():
        programs = mix.programs(name, 0)
        assert 6 <= len(programs) <= 40
        assert 4 <= mix.slots <= 16
        assert len({one.program_id for one in programs}) == len(programs)
        assert programs == mix.programs(name, 0)
        arrivals = [one.arrives_s for one in programs]
        assert arrivals == sorted(arrivals)
        assert arrivals[-1] <= mix.within_s


def test_limits_are_those_that_clients_set() -> None:
    """1. The demo's outputs fill their limits. 2. A node's own limit suffices for all its outputs.
    3. A client's default says nothing of a call. 4. An unset limit is what is left of the context.
    """
    limits = {
        name: {
            (one.type, call.node): call.max_tokens
            for one in MIXES[name].programs(name, 0)
            for call in one.calls
        }
        for name in ("demo", "small-first", "react-lats")
    }
    assert set(limits["demo"].values()) == {None}
    assert all(limit and limit & (limit - 1) == 0 for limit in limits["small-first"].values())
    assert len(set(limits["small-first"].values())) > 1
    assert set(limits["react-lats"].values()) == {4096}
    for one in MIXES["chat"].programs("chat", 0):
        assert all(call.prompt_tokens + (call.max_tokens or 0) == LONGEST for call in one.calls)


def test_ratios_are_of_completion_times() -> None:
    base, first = times(ended(1.0, 3.0)), times(ended(1.0, 2.0))
    over = ratios({**first, "known": 1.0}, base)
    assert over["mean"] == pytest.approx(0.75)
    assert over["longest"] == pytest.approx(2 / 3)
    assert over["p99"] == pytest.approx(1.99 / 2.98)
    assert over["known"] == pytest.approx(0.5)
    assert "known" not in ratios(first, base)


def test_a_row_is_the_median_of_the_seeds_and_the_summary_counts_rows() -> None:
    """Seeds may come in any order; a mix reaches what is wanted when its median does."""
    base = {"mean": 1.0, "p99": 1.0, "longest": 1.0}
    means = [("chat", 0, 1.02), ("demo", 2, 0.95), ("demo", 0, 0.8), ("demo", 1, 0.9)]
    done = {}
    for mix, seed, mean in [*means, ("coding-chat", 0, 0.98)]:
        done[Cell(Newcomers(mix), "stock", seed)] = base
        mine = {"mean": mean, "p99": 1.0, "longest": 1.1, "known": 0.5}
        done[Cell(Newcomers(mix), "default", seed)] = mine
    over = Measured(done).over("stock", ratios)
    results = {(mix.name, policy): seeds for (mix, policy), seeds in over.items()}
    assert [one["mean"] for one in results["demo", "default"]] == [0.8, 0.9, 0.95]
    shown = report(results)
    [row] = [line for line in shown.splitlines() if line.startswith("| demo")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[3:] == [
        "default",
        "0.900 (0.800-0.950)",
        "1.000 (1.000-1.000)",
        "1.100 (1.100-1.100)",
        "0.500 (0.500-0.500)",
        "yes",
    ]
    assert "is 0.940 of stock's over 2 mixes; at most 0.90 in 1 of them" in shown
    assert "is 1.020 of stock's over 1 mixes; at most 1.01 in 0 of them" in shown


@pytest.mark.engine
def test_the_smallest_mix_through_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Under fcfs ours decides as stock does; a policy that never learns has no second run."""
    line = ["first-runs", "--workload", "demo", "--policy", "fcfs,default", "--seeds", "1"]
    assert call([*line, "--jobs", "1", "--json"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    plain, ours = json.loads(last)["cells"]
    assert plain == {
        "mix": "demo",
        "alike": False,
        "policy": "fcfs",
        "by_seed": [{"mean": 1.0, "p99": 1.0, "longest": 1.0}],
    }
    assert ours["policy"] == "default"
    assert 0 < ours["by_seed"][0]["known"] < 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--workload", "dema"], ["unknown mix 'dema'", "demo"]),
        (["--policy", "stock"], ["'stock'", "every ratio is to stock", "default"]),
        (["--policy", "mru"], ["unknown policy 'mru'", "atlas"]),
        (["--policy", "atlas+ample"], ["'atlas+ample'", "such as default"]),
        (["--policy", "default+offload"], ["'default+offload'", "such as default"]),
        (["--seeds", "0"], ["--seeds", "0"]),
    ],
)
def test_bad_input(
    args: list[str],
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "run_all", lambda *_: pytest.fail("it ran"))
    check(capsys, call(["first-runs", *args]), *words)
