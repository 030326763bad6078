"""The benchmark of batches: programs that are all there at once."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from agentrt.lab.backends.real import run_real
from agentrt.lab.runs.contenders import DEFAULT, STOCK
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from benchmarks.__main__ import call
from benchmarks.batch import (
    BATCH,
    KNOWN,
    LEARNED,
    Batch,
    figures,
    over_stock,
    verdict,
)
from benchmarks.rivals.gates import CapGate, Gate, GatedBackend
from tests.lab.answering import Engine

SMALL = ["--programs", "16", "--max-live", "8", "--max-num-seqs", "4", "--seeds", "1"]


@pytest.mark.engine
def test_a_batch_by_the_command_in_two_pieces(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["batch", "--workload", "bfcl", *SMALL, "--jobs", "1", "--json"]
    assert call([*arguments, "--memory", "0.25", "--policy", "best cap,default"]) == 0
    first = tmp_path / "first.txt"
    first.write_text(capsys.readouterr().out)
    rest = ["--memory", "ample", "--policy", f"{LEARNED},{KNOWN}"]
    assert call([*arguments, *rest, "--add", str(first)]) == 0
    whole = capsys.readouterr().out
    second = tmp_path / "second.txt"
    second.write_text(whole)
    # All runs are in the file, so no run is made again, and the table is the same.
    assert call([*arguments, *rest, "--add", str(second)]) == 0
    output = capsys.readouterr().out
    assert output == whole
    runs = json.loads(output.splitlines()[-1])["runs"]
    by_place = {(run["memory"], run["contender"]): run for run in runs}
    little, ample = by_place["0.25", "stock"], by_place["ample", "stock"]
    assert little["prefill"] > 1.5 * ample["prefill"]  # memory is short
    assert little["makespan_s"] > ample["makespan_s"]
    assert by_place["0.25", "default"]["prefill"] < little["prefill"]
    assert by_place["0.25", "best cap"]["cap"] < 8  # it is one of the caps that fit
    # All contenders generate the same tokens.
    tokens = {round(run["tokens_per_s"] * run["makespan_s"]) for run in runs}
    assert len(tokens) == 1
    assert set(by_place) == {
        *(("0.25", name) for name in ("stock", "best cap", "default")),
        *(("ample", name) for name in ("stock", LEARNED, KNOWN)),
    }
    assert output.count("| bfcl") == 6


@pytest.mark.engine
@pytest.mark.parametrize("name", ["bfcl", "chat"])
def test_with_ample_memory_the_engine_of_a_batch_decides_as_stock_does(name: str) -> None:
    load = Batch(name, math.inf, 32, slots=4, live=16).load(0)
    stock = figures(load, STOCK)
    assert figures(load, BATCH) == stock
    assert figures(load, DEFAULT) != stock  # calls wait, so that the order of calls matters


@pytest.mark.engine
def test_a_rivals_scheduler_decides_in_a_batch() -> None:
    load = Batch("chat", 0.25, 32, slots=4, live=16).load(0)
    assert figures(load, "continuum") != figures(load, "program-fcfs")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--memory", "none"], "--memory 'none'"),
        (["--policy", "quickest"], "unknown policy 'quickest'"),
        (["--workload", "poems"], "unknown workload 'poems'"),
        (["--add", "/no/such/file"], "--add"),
    ],
)
def test_what_is_not_understood_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["batch", *arguments]) == 2
    assert message in capsys.readouterr().err


class Told(Gate):
    """A gate that lets everything through, and keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def called(self, program_id: str, tokens: int, now: float) -> bool:
        self.told.append(f"{program_id} calls with {tokens}")
        return True

    def ended(self, program_id: str) -> tuple[str, ...]:
        self.told.append(f"{program_id} ends")
        return ()


async def test_a_rival_behind_the_limit_sees_a_program_when_it_begins() -> None:
    rival = Told()
    programs = [ProgramShape(name, "t", (CallShape(1, 4), CallShape(1, 8))) for name in "ab"]
    await run_real(
        Engine(),
        programs,
        wrap=lambda backend: GatedBackend(GatedBackend(backend, rival), CapGate(1)),
    )
    calls = ["{} calls with 4", "{} calls with 8", "{} ends"]
    assert rival.told == [line.format(name) for name in "ab" for line in calls]


def run_of(
    workload: str, memory: str, name: str, makespan_s: float, seed: int = 0
) -> dict[str, Any]:
    figures = {"hits": 0.5, "prefill": 100.0, "preemptions": 0.0}
    about = {"workload": workload, "memory": memory, "contender": name, "seed": seed}
    return {**about, "makespan_s": makespan_s, "tokens_per_s": 1000 / makespan_s, **figures}


def test_ratios_are_to_stock_with_the_same_seed() -> None:
    runs = [
        run_of("w", "0.25", "stock", 10.0, 0),
        run_of("w", "0.25", "stock", 40.0, 1),
        run_of("w", "0.25", "mine", 5.0, 0),
        run_of("w", "0.25", "mine", 30.0, 1),
        run_of("v", "ample", "stock", 10.0),
        run_of("v", "ample", "mine", 11.0),
        run_of("v", "ample", "mine", 99.0, 7),  # stock has no run with this seed
    ]
    samples = over_stock(runs).samples
    assert [each["makespan"] for each in samples["w", "0.25", "mine"]] == [0.5, 0.75]
    assert [each["rate"] for each in samples["w", "0.25", "mine"]] == [2.0, pytest.approx(4 / 3)]
    assert "little memory: 0.62 (worst 0.62); ample memory: 1.10 (worst 1.10)" in verdict(runs)
