"""The retention benchmark: what runs and what is counted, never how fast it was."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from agentrt.executors.base import Chunk, Notification
from agentrt.executors.vllm.options import EngineOptions
from agentrt.lab.bench.retention import (
    SMALL_CPU,
    TOOLS,
    RealRun,
    Result,
    agents,
    measure,
    ratios,
    recorded,
    table,
    virtual,
)
from agentrt.lab.engine.engines import LabEngine
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.request import Call, CallReport, Reply
from agentrt.runtime import Runtime
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.table import ProgramTotals


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

    def run(programs: Any, blocks: int, retention: str) -> Result:
        ran.append((blocks, retention))
        return Result(100, 50 if retention == "lru" else 10, 2.0, 4.0, prefill_tokens=80)

    traces = [agents(2, 2, 1.0, seed) for seed in range(2)]
    results = measure(run, traces, [64], ["lru", "cost"], lambda message: None)
    assert ran == [(64, "lru"), (64, "cost"), (64, "cost"), (64, "lru")]
    assert "| 64     | cost      | 10.0%            | 0.20 (0.20-0.20)" in table(results)
    assert [(row["retention"], row["lost"]) for row in ratios(results)] == [
        ("lru", 1.0),
        ("cost", 0.2),
    ]
    assert [row["prefill"] for row in ratios(results)] == [1.0, 1.0]
    assert ratios(results)[1]["mean steps"] is None, "virtual time counts no program's steps"


def test_without_loss_there_is_no_ratio() -> None:
    results = {(64, "lru"): [Result(100, 0, 2.0, 4.0)]}
    assert ratios(results)[0]["lost"] is None
    assert "| -  " in table(results)


@pytest.mark.engine
def test_in_virtual_time_more_is_kept_than_by_vllm() -> None:
    options = VirtualOptions(8, 200, 16, 512, 2000)
    run = virtual(options, SMALL_CPU, "fcfs")
    programs = agents(16, 6, 2.0, 1, gap_scale=0.3)
    stock, ours = (run(programs, 160, name) for name in ("lru", "cost"))
    assert stock.returned_tokens == ours.returned_tokens
    assert 0 < ours.lost_tokens < stock.lost_tokens


class Engine(LabEngine):
    """Answers with as many tokens as were asked for, and notes what it is told."""

    def __init__(self) -> None:
        super().__init__(EngineOptions())
        self.told: list[object] = []
        self.prompts: list[int] = []

    async def configure(self, config: SchedulerConfig) -> None:
        self.told.append(config.retention)

    async def forget_prefixes(self) -> None:
        self.told.append("forget")

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        self.told.append("end")

    def notify(self, note: Notification) -> None:
        self.told.append(note.what)

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        ids = call.spec.prompt_token_ids or ()
        step = len(self.prompts)
        self.prompts.append(len(ids))
        report = CallReport(
            arrived_step=step,
            finished_step=step + 1,
            prompt_tokens=len(ids),
            cached_tokens=6,
            recomputed_tokens=1,
            returned_tokens=8,
            lost_tokens=2,
        )
        out = tuple(range(call.spec.max_tokens))
        yield Chunk("", Reply("", token_ids=out, report=report))


CHAIN = (
    CallShape(3, 10),
    CallShape(3, 20, after=(0,), extends=0, gap_s=0.001, tool="t"),
)


async def test_a_real_run_grows_prompts_and_tells_of_tools() -> None:
    engine = Engine()
    run = RealRun(Runtime(engine), SchedulerConfig(policy="fcfs"))
    result = await run([ProgramShape("p", "t", CHAIN, system_tokens=4)], "cost")
    assert engine.told == ["cost", "forget", "tool", "returned", "end"]
    assert engine.prompts == [10, 20]
    assert (result.returned_tokens, result.lost_tokens) == (16, 4)
    assert result.prefill_tokens == 10 + 20 - 2 * 6 + 2
    assert result.mean_steps == result.p95_steps == 2


async def test_branches_of_a_real_run_wait_for_their_parents_alone() -> None:
    """A human's gap, then two branches of it, and a call after both."""
    engine = Engine()
    human = CallShape(2, 12, after=(0,), extends=0, gap_s=0.001, human=True)
    branch = CallShape(2, 5, after=(0,))
    join = CallShape(1, 30, after=(1, 2), extends=1)
    run = RealRun(Runtime(engine), SchedulerConfig(policy="fcfs"))
    program = ProgramShape("p", "t", (CHAIN[0], human, branch, join))
    result = await run([program], "lru")
    assert engine.told == ["lru", "forget", "human", "answered", "end"]
    assert engine.prompts == [10, 5, 12, 30]
    assert (result.returned_tokens, result.lost_tokens) == (3 * 8, 3 * 2), "not at the human's"


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
    assert run(tool, 100, "lru").lost_tokens > 0
    assert run(human, 100, "lru").lost_tokens == 0
