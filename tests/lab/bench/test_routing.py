"""`agentrt bench routing`: what is measured, and that routing does not grow with programs."""

from __future__ import annotations

import pytest

from agentrt.cli.app import call
from agentrt.lab.bench.routing import COLUMNS, footprint, measure
from agentrt.lab.bench.traffic import BLOCKS, PARTS, Traffic
from tests.lab.bench.lines import lines_run

ROUTERS = ("agentix", "cost", "least-used", "prefix", "round-robin")


def mean_lines(traffic: Traffic, part: str, calls: int) -> float:
    total = 0
    for _ in range(calls):
        traffic.prepare()
        for one in PARTS:
            act = getattr(traffic, one)
            if one == part:
                total += lines_run(act)
            else:
                act()
        traffic.grow()
    return total / calls


@pytest.mark.parametrize("router", ROUTERS)
def test_a_decision_does_not_grow_with_the_live_programs(router: str) -> None:
    """What is done for a call depends on its prompt and the replicas, not on who else lives."""
    found = []
    for live in (50, 2000):
        traffic = Traffic(router, 4, live)
        for _ in range(live):
            traffic.prepare()
            for part in PARTS:
                getattr(traffic, part)()
            traffic.grow()
        found.append(mean_lines(traffic, "send", 100))
    assert found[1] < 1.5 * found[0]


def test_caches_stay_within_their_size() -> None:
    traffic = Traffic("cost", 2, 300)
    for _ in range(1500):
        traffic.prepare()
        for part in PARTS:
            getattr(traffic, part)()
        traffic.grow()
    traffic.dispatcher.cached_blocks.check_integrity()
    sizes = [len(traffic.dispatcher.cached_blocks.blocks(view.index)) for view in traffic.views]
    assert max(sizes) <= BLOCKS
    assert min(sizes) > BLOCKS // 2


def test_every_part_is_measured() -> None:
    samples = measure(["cost", "least-used"], [1, 2], [5], 1, 50, 0, lambda message: None)
    keys = [(router, count, 5) for router in ("cost", "least-used") for count in (1, 2)]
    assert list(samples.samples) == keys
    [row] = [row for row in samples.medians() if (row["router"], row["replicas"]) == ("cost", 2)]
    assert row["call_us"] == pytest.approx(sum(row[f"{part}_us"] for part in PARTS))
    assert "| least-used | 2 " in samples.table(COLUMNS)


def test_memory_is_counted() -> None:
    found = footprint("cost", 2, 100)
    assert found["blocks"] > 1000
    assert 50 < found["block"] < 500
    assert 50 < found["program"] < 5000


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("--router", "cost", "--replicas", "2", "--live", "5", "--calls", "20", "--repeat", "1")
    assert call(["bench", "routing", *args, "--json"]) == 0
    out = capsys.readouterr().out
    assert "us a call" in out
    assert "bytes a program" in out
    assert '"replicas": 2' in out
