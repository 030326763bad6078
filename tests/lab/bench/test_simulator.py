"""The simulator's speed and a program's memory: what is counted, never how fast it was."""

from __future__ import annotations

import pytest

from agentrt.lab.bench.crowd import BASELINE
from agentrt.lab.bench.simulator import footprint, measure


def test_all_policies_simulate_the_same_programs() -> None:
    told: list[str] = []
    measured = measure([BASELINE, "atlas"], [6, 12], "react", "0.9", 2, 0, told.append)
    samples = measured.samples
    assert list(samples) == [(BASELINE, 6), (BASELINE, 12), ("atlas", 6), ("atlas", 12)]
    for count in (6, 12):
        ours, theirs = samples["atlas", count], samples[BASELINE, count]
        for mine, base in zip(ours, theirs, strict=True):
            calls = mine["calls_per_s"] * mine["cpu_s"]
            assert mine["programs_per_s"] * mine["cpu_s"] == pytest.approx(count)
            assert calls == pytest.approx(base["calls_per_s"] * base["cpu_s"])
            assert mine["events_per_s"] >= 2 * mine["calls_per_s"], "each call arrives and ends"
            assert mine["cpu_to_fcfs"] == mine["cpu_s"] / base["cpu_s"]
    assert told[0] == "repeat 1 of 2: 6 programs under fcfs"
    assert told[4] == "repeat 2 of 2: 6 programs under atlas", "policies alternate"


def test_a_program_takes_the_same_memory_in_a_small_crowd_and_in_a_large_one() -> None:
    small, large = footprint("atlas", 500), footprint("atlas", 2000)
    assert 300 < large["bytes"] < 5000
    # Tables that double leave up to half of their room empty.
    assert 0.5 < large["bytes"] / small["bytes"] < 2
