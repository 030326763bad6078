"""The simulator's speed and a program's memory: what is counted, never how fast it was."""

from __future__ import annotations

from agentrt.lab.bench.simulator import (
    BASELINE,
    Footprint,
    Timing,
    as_dict,
    footprint,
    footprint_table,
    measure,
    speed_table,
)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_all_policies_simulate_the_same_programs() -> None:
    told: list[str] = []
    timings = measure([BASELINE, "atlas"], [6, 12], "react", "0.9", 2, 0, told.append)
    assert list(timings) == [(BASELINE, 6), (BASELINE, 12), ("atlas", 6), ("atlas", 12)]
    for count in (6, 12):
        ours, theirs = timings["atlas", count], timings[BASELINE, count]
        assert [one.programs for one in ours] == [count, count]
        assert [one.calls for one in ours] == [one.calls for one in theirs]
        assert all(one.events >= 2 * one.calls for one in ours), "each call arrives and ends"
    assert told[0] == "repeat 1 of 2: 6 programs under fcfs"
    assert told[4] == "repeat 2 of 2: 6 programs under atlas", "policies alternate"


def test_speed_is_per_cpu_second_and_to_the_baseline_of_the_same_size() -> None:
    timings = {
        (BASELINE, 10): [Timing(10, 40, 100, 2.0, 3.0)],
        ("atlas", 10): [Timing(10, 40, 120, 4.0, 9.0)],
    }
    row = cells(speed_table(timings).splitlines()[-1])
    assert row == [
        *("atlas", "10", "9.00 (9.00-9.00)", "4.00 (4.00-4.00)"),
        *("2", "10", "30", "2.00 (2.00-2.00)"),
    ]
    memory = {BASELINE: Footprint(1000, 1000)}
    told = as_dict(timings, memory)
    assert told["speed"][1]["cpu_to_fcfs"] == 2.0
    assert told["memory"] == [{"policy": BASELINE, "bytes": 1000, "bytes_later": 1000}]


def test_a_program_takes_the_same_memory_in_a_small_crowd_and_in_a_large_one() -> None:
    small, large = footprint("atlas", 500), footprint("atlas", 2000)
    assert 300 < large.fresh < 5000
    # Tables that double leave up to half of their room empty.
    assert 0.5 < large.fresh / small.fresh < 2


def test_memory_is_told_beside_the_baselines() -> None:
    table = footprint_table({BASELINE: Footprint(1000, 1100), "plas": Footprint(1500, 1600)})
    assert cells(table.splitlines()[-1]) == ["plas", "1500", "1600", "1.50"]
