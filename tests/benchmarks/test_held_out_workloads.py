"""The workloads that nothing is tuned on: their shapes and arrivals."""

from __future__ import annotations

from collections import Counter
from statistics import fmean, median

import pytest

from agentrt.lab.workloads.shape import ProgramShape
from benchmarks.memory.cells import HELD_OUT_WORKS, Memory, Setup
from benchmarks.memory.held_out import (
    BRANCHES,
    CATALOGUE,
    HELD_OUT,
    INSTRUCTION,
    TOOLS,
    daily,
)
from benchmarks.workloads.agents import with_tools
from benchmarks.workloads.generate import generate


def some(name: str, count: int = 30, seed: int = 5000) -> list[ProgramShape]:
    return generate(name, count, seed, known=HELD_OUT)


@pytest.mark.parametrize("name", HELD_OUT_WORKS)
def test_a_seed_gives_one_list_of_programs(name: str) -> None:
    cell = Setup(name, 0.25, HELD_OUT_WORKS[name].tool_s)
    once, again, other = (Memory(count=12).programs(cell, seed) for seed in (1, 1, 2))
    assert once == again
    assert [one.calls for one in once] != [one.calls for one in other]


def test_coding_agents_share_a_catalogue_and_grow_for_tens_of_calls() -> None:
    programs = some("long_coding")
    for one in programs:
        assert one.system_tokens == CATALOGUE <= one.calls[0].prompt_tokens
        assert [call.extends for call in one.calls[1:]] == [*range(len(one.calls) - 1)]
    assert 20 < fmean(len(one.calls) for one in programs) < 35
    assert median(one.calls[-1].prompt_tokens for one in programs) > 1.5 * CATALOGUE


def test_a_map_has_64_branches_and_then_reductions() -> None:
    for one in some("map_reduce_64", 5):
        nodes = Counter(call.node for call in one.calls)
        assert nodes == {"read": BRANCHES, "note": BRANCHES, "reduce": 9}
        assert sum(not call.after for call in one.calls) == BRANCHES == 64
        assert one.system_tokens == INSTRUCTION
        assert len(one.calls[-1].after) == 8


def test_a_day_has_tenants_with_tools_of_two_lengths() -> None:
    programs = with_tools(some("day", 120), 0.5, seed=1)
    tools: dict[str, list[float]] = {"lookup": [], "job": []}
    for one in programs:
        for call in one.calls:
            if call.gap_s:
                tools[call.tool].append(call.gap_s)
        assert len({call.tool for call in one.calls if call.gap_s}) == 1
    assert {name: median(times) / 0.5 for name, times in tools.items()} == pytest.approx(
        TOOLS, rel=0.15
    )
    assert Counter(one.tenant for one in programs) == {
        "shop": 60,
        "news": 20,
        "bank": 20,
        "works": 20,
    }
    assert len({one.type for one in programs}) == 4


def test_a_days_arrivals_are_many_at_noon_and_few_at_night() -> None:
    programs = some("day", 3000)
    times = [one.arrives_s for one in daily(programs, 10.0, 3)]
    day_s = len(programs) / 10.0
    assert times == sorted(times)
    quarters = Counter(int(4 * at / day_s) for at in times)
    # The mean over the middle half of a day is 1 + 2 * .8 / pi of that over all of it.
    assert (quarters[1] + quarters[2]) / 1500 == pytest.approx(1.51, abs=0.08)
