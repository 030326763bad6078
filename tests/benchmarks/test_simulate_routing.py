"""`benchmarks simulate routing`, and engines by the dozen in the other simulations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.benchmarks.test_simulate import told

TINY = (
    "--workload",
    "react",
    "--programs",
    "4",
    "--max-num-seqs",
    "4",
    "--seeds",
    "2",
    "--jobs",
    "1",
)


def test_routers_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each router, and each against the best of the others."""
    text = told(capsys, "routing", *TINY, "--replicas", "2")
    rows = [line for line in text.splitlines() if line.startswith("| react")]
    names = ["agentix", "cost", "least-used", "prefix", "round-robin"]
    assert [row.split("|")[4].strip() for row in rows] == names * 2
    assert "**Step simulator**: 4 batch slots" in text
    assert "over linear" not in text


def test_more_replicas_against_fewer(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("--router", "cost", "--replicas", "1,3", "--programs", "60")
    text = told(capsys, "routing", *TINY, *args)
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| react")]
    assert [row[3].strip() for row in rows[:2]] == ["1", "3"]
    assert [row[6].strip() for row in rows[2:3]] == ["1.000"]


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("--router", "cost:margin=0,agentix:threshold=9", "--json")
    found: Any = json.loads(told(capsys, "routing", *TINY, *args))
    assert [cell["router"] for cell in found["cells"]] == ["cost:margin=0", "agentix:threshold=9"]
    assert [cell["replicas"] for cell in found["cells"]] == [4, 4]
    measures = found["cells"][0]["by_seed"]
    assert len(measures["mean_s"]) == 2
    assert measures["prefix_hit_share"] == [None, None]


def test_depth_virtual_knows_caches(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("vllm")
    args = ("--depth", "virtual", "--router", "cost,round-robin", "--replicas", "2")
    found: Any = json.loads(told(capsys, "routing", *TINY, *args, "--json"))
    ours, theirs = (cell["by_seed"]["prefix_hit_share"] for cell in found["cells"])
    assert all(mine > other for mine, other in zip(ours, theirs, strict=True))


def test_policies_on_several_engines(capsys: pytest.CaptureFixture[str]) -> None:
    """Four engines with four times the programs keep the latency of one."""
    args = (
        "--policy",
        "fcfs",
        "--workload",
        "react",
        "--max-num-seqs",
        "4",
        "--jobs",
        "1",
        "--json",
    )
    fleet = ("--replicas", "4", "--router", "least-used")
    one: Any = json.loads(told(capsys, "run", *args, "--programs", "40"))
    four: Any = json.loads(told(capsys, "run", *args, *fleet, "--programs", "160"))
    assert (four["settings"]["replicas"], four["settings"]["router"]) == (4, "least-used")
    means = [found["cells"][0]["measures"]["mean_s"]["median"] for found in (one, four)]
    assert means[1] < 1.1 * means[0]
