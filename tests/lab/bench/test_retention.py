"""The retention benchmark: what runs and what is counted, never how fast it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentrt.lab.bench.results import Figures
from agentrt.lab.bench.retention import (
    COLUMNS,
    SMALL_CPU,
    TOOLS,
    agents,
    measure,
    recorded,
    virtual,
)
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.workloads.shape import CallShape, ProgramShape


def test_agents_are_the_same_for_a_seed_with_tools_between_their_calls() -> None:
    programs = agents(6, 4, 1.0, 3, gap_scale=0.5)
    assert programs == agents(6, 4, 1.0, 3, gap_scale=0.5)
    assert all(len(program.calls) <= 4 for program in programs)
    assert {call.tool for program in programs for call in program.calls[1:]} <= set(TOOLS)
    whole = agents(6, 4, 1.0, 3)
    assert whole[0].calls[1].gap_s == pytest.approx(2 * programs[0].calls[1].gap_s)


def test_recorded_programs_are_drawn_once_each_and_cut() -> None:
    chain = (CallShape(1, 9), CallShape(1, 20, after=(0,), extends=0))
    trace = [ProgramShape(f"p{n}", "t", chain) for n in range(9)]
    drawn = recorded(trace, 5, 1, 1.0, 0)
    assert len({program.program_id for program in drawn}) == 5
    assert all(len(program.calls) == 1 for program in drawn)


def test_retentions_alternate_over_the_same_programs() -> None:
    ran: list[tuple[int, str]] = []

    def run(programs: Any, blocks: int, retention: str) -> Figures:
        ran.append((blocks, retention))
        lost = 50 if retention == "lru" else 10
        share = {"lost": lost, "lost_share": lost / 100, "prefill": 80}
        return {**share, "mean": 2.0, "P95": 4.0, "CPU a step": 1e-3}

    traces = [agents(2, 2, 1.0, seed) for seed in range(2)]
    measured = measure(run, traces, [64], ["lru", "cost"], lambda message: None)
    assert ran == [(64, "lru"), (64, "cost"), (64, "cost"), (64, "lru")]
    assert "| 64     | cost      | 10.0%            | 0.20 (0.20-0.20)" in measured.table(COLUMNS)
    rows = [(row["retention"], row["lost_ratio"], row["prefill"]) for row in measured.medians()]
    assert rows == [("lru", 1.0, 80), ("cost", 0.2, 80)]


def test_without_loss_there_is_no_ratio() -> None:
    nothing = {"lost": 0, "lost_share": 0.0, "prefill": 9, "mean": 2.0, "P95": 4.0}
    traces = [agents(1, 1, 1.0, 0)]
    run = {**nothing, "CPU a step": 1e-3}
    measured = measure(lambda *asked: run, traces, [64], ["lru"], lambda message: None)
    assert "lost_ratio" not in measured.medians()[0]
    assert "| 0.0%             | -  " in measured.table(COLUMNS)


@pytest.mark.engine
def test_in_virtual_time_more_is_kept_than_by_vllm() -> None:
    options = VirtualOptions(8, 200, 16, 512, 2000)
    run = virtual(options, SMALL_CPU, "fcfs")
    programs = agents(16, 6, 2.0, 1, gap_scale=0.3)
    stock, ours = (run(programs, 160, name) for name in ("lru", "cost"))
    assert 0 < ours["lost"] < stock["lost"]
    assert ours["prefill"] < stock["prefill"]


@pytest.mark.engine
def test_tokens_lost_after_a_human_are_counted_apart() -> None:
    """1. Two programs of 60 blocks of 16 tokens do not fit into 99. 2. One waits for a human,
    and one for a tool, while the other runs: both lose something, and the tool's counts."""
    after = CallShape(1, 960, after=(0,), extends=0, gap_s=5.0)
    tool, human = (
        [ProgramShape(name, "t", (CallShape(1, 950), after)) for name in ("a", "b")]
        for after in (after, replace(after, human=True))
    )
    run = virtual(VirtualOptions(1, 100, 16, 512, 1500), SMALL_CPU, "fcfs")
    assert run(tool, 100, "lru")["lost"] > 0
    assert run(human, 100, "lru")["lost"] == 0
