"""Runs that are not ours: programs of the published sizes, and how far off a prediction is."""

from __future__ import annotations

import json
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import pytest

from agentrt.lab.driver import drive
from agentrt.lab.engine.step_time import StepWork
from benchmarks.__main__ import call
from benchmarks.cells import Cell, Measured
from benchmarks.external import GPUS, GpuLoad, Jobs, cells, errors, figures, table, verdict
from benchmarks.workloads import agents
from benchmarks.workloads.agents import LONGEST

PREDICTED = {
    ("H200", 1, "stock"): [39.0],
    ("H100", 3.0, "stock"): [200.0, 210.0, 190.0],
    ("H100", 3.0, "continuum-preview"): [69.0],
    ("H100", 3.0, "stock+offload-128gb"): [80.0],
    ("H100", 3.0, "stock+offload-16gb"): [209.07],
    ("H100", 3.0, "default"): [70.0],
}


def test_the_jobs_have_the_published_sizes() -> None:
    jobs = [job for seed in range(5) for job in agents.swe_smith(1.0, seed)]
    turns = [turn for job in jobs for turn in job.calls]
    assert len(turns) / len(jobs) == pytest.approx(17.9, rel=0.02)
    assert median(turn.prompt_tokens for turn in turns) == pytest.approx(6945, rel=0.02)
    assert median(turn.output_tokens for turn in turns) == pytest.approx(30, abs=2)
    assert max(turn.prompt_tokens + turn.output_tokens for turn in turns) <= LONGEST
    for job in jobs:
        assert [turn.gap_s for turn in job.calls] == [0.0] + [1.0] * (len(job.calls) - 1)
        assert all(after.extends == at for at, (_, after) in enumerate(pairwise(job.calls)))
    arrivals = [job.arrives_s for job in agents.swe_smith(3.0, 0)]
    assert fmean(b - a for a, b in pairwise(arrivals)) == pytest.approx(1 / 3, rel=0.2)


@pytest.mark.parametrize("name", GPUS)
def test_a_mean_step_takes_what_was_published(name: str) -> None:
    gpu = GPUS[name]
    work = StepWork(prefill_tokens=1000, decode_calls=30, context_tokens=gpu.read_tokens)
    assert gpu.step_time.seconds(work) == pytest.approx(gpu.base_s + 1000 * gpu.per_token_s)


def test_errors_are_of_medians_and_the_fitted_cell_counts_in_none() -> None:
    off = errors(PREDICTED)
    assert off == {
        ("H100", 3.0, "stock"): pytest.approx(200 / 232.9 - 1),
        ("H100", 3.0, "continuum-preview"): 0.0,
        ("H100", 3.0, "stock+offload-16gb"): pytest.approx(-0.1),
    }
    rows = table(PREDICTED).splitlines()[2:]
    assert "39.6 / 39.0 (fitted)" in rows[0]
    assert "232.9 / 200.0 [190-210] (-14%)" in rows[1]
    assert "79.8 / 80.0 (fitted)" in rows[1]
    assert "232.3 / 209.1 (-10%)" in rows[1]
    assert " 70.0 " in rows[1]
    assert verdict(PREDICTED).splitlines() == [
        "median error of 3 cells: 10% (FCFS 14%, Continuum 0%, offload 16 GB 10%)",
        "median error of the 1 cells with offloading: 10% (largest error: 10%)",
    ]
    without = {key: PREDICTED[key] for key in PREDICTED if "offload" not in key[2]}
    assert "offloading" not in verdict(without)


def test_cells_have_the_figures_of_their_seeds_in_order() -> None:
    jobs = Jobs("H100", 3.0)
    done = {
        Cell(jobs, "default", seed): {"in_turns": 70.0 + seed, "duration": 9.0} for seed in (2, 1)
    }
    assert cells(Measured(done)) == [
        {"gpu": "H100", "jobs_per_s": 3.0, "contender": "default", "predicted": [71.0, 72.0]}
        | {"measured": None, "metrics": [{"duration": 9.0}] * 2}
    ]


@pytest.mark.engine
def test_a_cell_by_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few jobs nothing waits: all who keep contexts say the same."""
    monkeypatch.setattr(agents, "JOBS", 2)
    assert call(["external", "--quick", "--jobs", "1", "--json"]) == 0
    *said, last = capsys.readouterr().out.splitlines()
    assert "H100" in said[2]
    found = {cell["contender"]: cell["predicted"][0] for cell in json.loads(last)["cells"]}
    assert list(found) == [
        *("stock", "continuum-preview", "stock+offload-128gb", "stock+offload-16gb"),
        *("stock+ample", "continuum", "default", "default+known", "default+offload-128gb"),
    ]
    assert found["stock"] == found["stock+ample"]
    assert found["continuum-preview"] == pytest.approx(found["stock"], rel=0.01)
    assert found["continuum"] == pytest.approx(found["stock"], rel=0.01)
    for name in ("default", "default+known"):
        assert found[name] == pytest.approx(found["stock"], rel=0.02)
    # Nothing is loaded, but storing lengthens steps.
    for name in ("stock+offload-128gb", "stock+offload-16gb"):
        assert found["stock"] < found[name] < 1.05 * found["stock"]
    assert found["default"] < found["default+offload-128gb"] < 1.05 * found["default"]


@pytest.mark.engine
def test_a_scheduler_that_knows_the_type_has_learned_from_other_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agents, "JOBS", 2)
    runs: list[tuple[bool, Any]] = []

    def noted(engine: Any, jobs: Any) -> Any:
        known = "usual" in engine.replicas[0].engine.scheduler.history.values()
        runs.append((known, jobs))
        return drive(engine, jobs)

    monkeypatch.setattr("benchmarks.cells.drive", noted)
    load = Jobs("H100", 10.0).load(0)
    figures(load, "default+known")
    assert load.earlier != load.programs
    assert runs == [(False, load.earlier), (True, load.programs)]


@pytest.mark.engine
def test_the_seconds_are_those_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "JOBS", 1)
    found = figures(Jobs("A100", 1.0).load(0), "stock")
    [job] = agents.swe_smith(1.0, 0)
    base_s = GPUS["A100"].step_time.base_s
    assert found["in_turns"] > job.output_tokens * base_s
    assert found["mean_jct_s"] == pytest.approx(found["in_turns"] + len(job.calls) - 1)


def test_the_tokens_of_a_step_are_those_of_the_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--quick", "--policy", "stock", "--jobs", "1", "--max-num-batched-tokens", "512"]
    seen: list[GpuLoad] = []
    load = Jobs.load

    def loaded(jobs: Jobs, seed: int) -> GpuLoad:
        seen.append(load(jobs, seed))
        return seen[-1]

    monkeypatch.setattr(agents, "JOBS", 1)
    monkeypatch.setattr(Jobs, "load", loaded)
    assert call(["external", *words]) == 0
    assert {each.options.max_num_batched_tokens for each in seen} == {512}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--gpu", "B200"], "--gpu B200: no published runs; available: H200, H100, A100"),
        (["--policy", "cap:3"], "unknown --policy 'cap:3'; available: stock, continuum-preview, "),
        (["--rate", "2"], "--rate 2: no published runs; available: 1, 3, 6, 10"),
    ],
)
def test_what_nobody_measured_is_refused(
    asked: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["external", *asked]) == 2
    assert says in capsys.readouterr().err
