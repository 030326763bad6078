"""The paper's toy figures as decisions. Conventions: `benchmarks.figure`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrt.errors import ConfigError
from benchmarks.__main__ import call
from benchmarks.figure import FIGURE_2, FIGURE_19, Toy
from tests.cli.conftest import check
from tests.lab.toys import ToyCall, ToyProgram


@pytest.mark.parametrize(
    ("figure", "policy", "waiting"),
    [
        (FIGURE_2, "fcfs", 18),
        (FIGURE_2, "mlfq", 18),
        (FIGURE_2, "plas", 12),
        # Programs without parallel calls: the longest path is the sum.
        (FIGURE_2, "atlas", 12),
        # 1. A starts two calls of one step; B starts one of three.
        # 2. A's first call leads to one of one step, and that to one of two.
        # 3. Under MLFQ each of A's later calls interrupts B; under ATLAS they rank behind.
        (FIGURE_19, "mlfq", 5),
        (FIGURE_19, "atlas", 3),
    ],
)
def test_waiting(figure: Toy, policy: str, waiting: int) -> None:
    assert figure.run(policy).waiting == waiting


def test_figure_2_orders_the_policies_alike_under_one_common_convention() -> None:
    common = replace(FIGURE_2, quanta={}, other_quanta=(1, 2))
    assert [common.run(policy).waiting for policy in ("fcfs", "mlfq", "plas")] == [18, 18, 14]


def test_the_convention_is_told_with_the_number() -> None:
    told = FIGURE_2.run("mlfq").to_dict()
    assert list(told) == ["policy", "waiting", "convention"]
    assert told["convention"]["quanta"] == [1, 2, None]
    assert FIGURE_2.convention("fcfs")["quanta"] is None
    assert FIGURE_19.convention("atlas")["counted"] == ["B"]


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown policy 'lifo'"):
        FIGURE_2.run("lifo")


def test_plas_and_atlas_differ_where_calls_are_parallel() -> None:
    """A wide program is charged for its width by PLAS' sum, not by ATLAS' path."""
    wide = ToyProgram("W", (*(ToyCall(2) for _ in range(4)), ToyCall(4, (0, 1, 2, 3))))
    other = ToyProgram.chain("O", (3, 3, 3))

    def end_of_wide(policy: str) -> int:
        one = replace(FIGURE_19, programs=(wide, other), counted=("W",), other_quanta=(2,) * 4)
        return one.run(policy).ends["W"]

    assert end_of_wide("atlas") < end_of_wide("plas")


# -- the command -----------------------------------------------------------------------


def told(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """What the command writes to stdout."""
    assert call(["figure", *map(str, args)]) == 0
    return capsys.readouterr().out


def told_json(capsys: pytest.CaptureFixture[str], *args: object) -> Any:
    return json.loads(told(capsys, *args))


def test_toy(capsys: pytest.CaptureFixture[str]) -> None:
    found = told_json(capsys, 19, "--policy", "atlas", "--json")
    assert list(found) == ["policy", "waiting", "convention"]
    assert (found["policy"], found["waiting"]) == ("atlas", 3)


def test_toys_table_states_the_paper_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, "2").splitlines()
    assert [line.split("|")[1:4] for line in lines[2:5]] == [
        [" fcfs   ", " 18                 ", " 18    "],
        [" mlfq   ", " 18                 ", " 18    "],
        [" plas   ", " 12                 ", " 12    "],
    ]
    assert any(line.startswith("waiting: latency minus") for line in lines)


def test_figure_20_ends_with_the_optimum(capsys: pytest.CaptureFixture[str]) -> None:
    args = (20, "--workload", "react", "--load", "0.8,1.2", "--policy", "fcfs")
    size = ("--programs", 60, "--max-num-seqs", 2, "--jobs", 1)
    found = told_json(capsys, *args, *size, "--json")
    assert [cell["policy"] for cell in found["cells"]] == ["fcfs", "srpt"] * 2
    assert all(cell["measures"]["mean_s"]["ratio"] > 1 for cell in found["cells"][::2])
    assert "| load | programs/s | fcfs" in told(capsys, *args, *size)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["3"], ["figure '3'", "2, 19 or 20"]),
        ([], ["missing argument", "2|19|20"]),
        (["2", "--policy", "lifo"], ["unknown policy 'lifo'", "plas"]),
        (["2", "--programs", "9"], ["--programs is for figure 20"]),
        (["19", "--plot", "x.png"], ["--plot is for figure 20"]),
        (["20", "--plot", "x.txt"], ["--plot 'x.txt'", ".png"]),
        (["20", "--workload", "tea"], ["'tea'", "chat"]),
    ],
)
def test_bad_input(
    args: list[str],
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    check(capsys, call(["figure", *args]), *words)
