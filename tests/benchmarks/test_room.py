"""``benchmarks room``: one small cell through the command, its verdicts, and bad options."""

from __future__ import annotations

import json

import pytest

from agentrt.errors import ConfigError
from agentrt.lab.commands import progress
from agentrt.lab.outcome import RunOutcome
from agentrt.lab.runs.contenders import Contender
from agentrt.scheduler.config import SchedulerConfig
from benchmarks import room
from benchmarks.__main__ import call
from benchmarks.cells import Load
from benchmarks.harness import Figures
from benchmarks.room import Roomy, both_reached, by_load, first_run, room_table
from tests.cli.conftest import check


@pytest.mark.parametrize(
    ("load", "mean", "p99", "verdict"),
    [
        (0.6, 1.01, 1.01, True),
        (0.6, 1.0, 1.02, False),
        (0.6, 1.02, 1.0, False),
        (2.0, 0.5, 1.0, True),
        (2.0, 0.5, 1.0004, True),
        (2.0, 0.5, 1.001, False),
        (2.0, 0.5, 1.01, False),
        (2.0, 1.01, 0.9, False),
    ],
)
def test_what_is_wanted_depends_on_the_load(
    load: float, mean: float, p99: float, verdict: bool
) -> None:
    assert both_reached(load, [{"mean": mean, "p99": p99}]) is verdict


def test_a_row_is_the_median_of_the_seeds() -> None:
    over = {
        (Roomy("chat", load, None), "default"): [{"mean": mean, "p99": 1.0} for mean in means]
        for load, means in ((2.0, [0.7]), (0.6, [1.0, 0.9, 1.2]))
    }
    lines = room_table(by_load(over)).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:4]]
    assert rows == [
        ["0.6", "chat", "default", "1.000 (0.900-1.200)", "1.000 (1.000-1.000)", "1.01", "yes"],
        ["2", "chat", "default", "0.700 (0.700-0.700)", "1.000 (1.000-1.000)", "1.00", "yes"],
    ]
    assert lines[-1] == "2 of 2 rows are acceptable."


@pytest.mark.engine
def test_a_small_cell_through_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Under fcfs ours decides as stock does."""
    line = ["room", "--workload", "bfcl", "--load", "0.6,2", "--programs", "3", "--seeds", "1"]
    assert call([*line, "--policy", "fcfs", "--jobs", "1", "--json"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    cells = json.loads(last)["cells"]
    assert [cell["load"] for cell in cells] == [0.6, 2.0]
    assert all(cell["by_seed"] == [{"mean": 1.0, "p99": 1.0, "longest": 1.0}] for cell in cells)


class Unserved(Load):
    """A load that names the lane of the policy instead of serving the programs."""

    def virtual(self, contender: Contender) -> RunOutcome:
        assert contender.config is not None
        raise ConfigError(f"the lane is {contender.config.lane:g}")


@pytest.mark.parametrize(("args", "lane"), [([], "0.05"), (["--lane", "0.3"], "0.3")])
def test_the_lane_of_the_command_reaches_the_policy(
    args: list[str],
    lane: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first(load: Load, name: str, settings: SchedulerConfig) -> Figures:
        return first_run(Unserved([], load.options, load.times), "default", settings)

    monkeypatch.setattr(room, "first_run", first)
    line = ["room", "--workload", "bfcl", "--programs", "2", "--seeds", "1", "--jobs", "1"]
    check(capsys, call([*line, *args]), f"the lane is {lane}")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--workload", "chart"], ["unknown workload 'chart'", "chat"]),
        (["--workload", "recorded"], ["unknown workload 'recorded'"]),
        (["--load", "much"], ["--load 'much'", "0.6"]),
        (["--load", "0"], ["--load '0'", "positive"]),
        (["--policy", "stock+ample"], ["'stock+ample'", "such as default"]),
        (["--lane", "1.5"], ["lane must be a share of the batch", "1.5"]),
    ],
)
def test_bad_input(
    args: list[str],
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "run_all", lambda *_: pytest.fail("it ran"))
    check(capsys, call(["room", *args]), *words)
