"""The rules of rivals act through the engine: each test fails where its rule hears of nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import benchmarks.rivals  # noqa: F401  # makes their names known
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.outcome import Outcome
from agentrt.lab.runs.contenders import contender
from agentrt.lab.workloads.shape import CallShape, ProgramShape

pytestmark = pytest.mark.engine

TIMES = StepTimeModel(0.001, 1e-6)
OPTIONS = VirtualOptions(max_num_seqs=4, kv_blocks=101, block_size=16, max_model_len=1600)
CONTEXT = 800
"""Tokens of a context that takes half of the cache."""
AT_S = 1000.0


def run(policy: str, programs: Sequence[ProgramShape]) -> dict[str, Outcome]:
    ran = contender(policy).run(programs, OPTIONS, TIMES)
    return {outcome.program_id: outcome for outcome in ran.outcomes}


def agent(name: str, calls: int, tool_s: float = 0.0, output_tokens: int = 8) -> ProgramShape:
    """An agent of short prompts that arrives at 0, with a tool before each call but the first."""
    tool = "tool" if tool_s else ""
    again = (
        CallShape(output_tokens, 16 + 16 * index, after=(index - 1,), gap_s=tool_s, tool=tool)
        for index in range(1, calls)
    )
    return ProgramShape(name, "t", (CallShape(output_tokens, 16), *again))


def kept(policy: str, earlier: Sequence[ProgramShape]) -> bool:
    """Whether a context is kept while its program is at the tool for 10 ms.

    A program that arrives meanwhile wants more blocks than are free, and a third one runs, so that
    the engine is never empty.
    """
    probe = ProgramShape(
        "probe",
        "t",
        (
            CallShape(8, CONTEXT),
            CallShape(8, CONTEXT + 24, after=(0,), extends=0, gap_s=0.01, tool="tool"),
        ),
        arrives_s=AT_S + 0.1,
    )
    runs = ProgramShape("runs", "t", (CallShape(400, 16),), arrives_s=AT_S)
    alone_s = run(policy, [*earlier, runs, probe])["probe"].ended_s - 0.01
    intruder = ProgramShape("intruder", "t", (CallShape(8, CONTEXT),), arrives_s=alone_s - 0.015)
    outcome = run(policy, [*earlier, runs, probe, intruder])["probe"]
    return outcome.calls[1].cached_tokens >= CONTEXT - 16


def test_continuum_keeps_contexts_for_tools_that_it_has_seen_return_soon() -> None:
    assert kept("continuum", [agent("teacher", 8, tool_s=0.01)])
    assert not kept("continuum", [agent("teacher", 8, tool_s=1.0)])


def burst(calls: Sequence[int]) -> list[ProgramShape]:
    """Four programs for each slot, whose calls wait: as many as ``calls`` says, again and again."""
    return [agent(f"waits-{i}", calls[i % len(calls)], output_tokens=60) for i in range(16)]


def test_continuum_keeps_contexts_for_slow_tools_where_others_wait_for_long() -> None:
    slow = agent("teacher", 8, tool_s=0.13)
    assert not kept("continuum", [slow])
    assert kept("continuum", [slow, *burst([8])])


def test_continuum_keeps_less_where_the_number_of_calls_says_little_of_those_to_come() -> None:
    assert not kept("continuum", [agent("teacher", 8, tool_s=0.13), *burst([2, 2, 2, 20])])


def test_continuums_preview_keeps_contexts_for_two_seconds_for_tools_of_at_most_two() -> None:
    assert kept("continuum-preview", [agent("teacher", 8, tool_s=1.9)])
    assert not kept("continuum-preview", [agent("teacher", 8, tool_s=2.1)])


@pytest.mark.parametrize("policy", ["continuum", "continuum-preview"])
def test_a_pin_outlasts_its_time_while_the_next_call_waits(policy: str) -> None:
    """The next call of `a` finds no slot for 4 s, and `b` wants its blocks meanwhile."""
    options = VirtualOptions(max_num_seqs=2, kv_blocks=101, block_size=16, max_model_len=1600)
    programs = [
        ProgramShape(
            "a",
            "t",
            (
                CallShape(8, CONTEXT),
                CallShape(8, CONTEXT + 24, after=(0,), extends=0, gap_s=0.1, tool="tool"),
            ),
        ),
        *(
            ProgramShape(f"runs-{i}", "t", (CallShape(output, 16),), arrives_s=at)
            for i, (output, at) in enumerate([(600, 0.0), (400, 0.012)])
        ),
        ProgramShape("b", "t", (CallShape(8, CONTEXT),), arrives_s=0.2),
    ]
    ran = contender(policy).run(programs, options, StepTimeModel(0.01, 1e-6))
    outcomes = {outcome.program_id: outcome for outcome in ran.outcomes}
    assert outcomes["a"].calls[1].ttft_s > 3
    assert outcomes["a"].calls[1].cached_tokens >= CONTEXT - 16
    assert outcomes["b"].ended_s > outcomes["a"].ended_s


@pytest.mark.parametrize("policy", ["continuum", "continuum-preview"])
def test_the_latest_program_is_unpinned_where_nothing_could_run_else(policy: str) -> None:
    """`early` and `late` fill the cache, and each wants more of it once its tool returns."""
    options = VirtualOptions(max_num_seqs=4, kv_blocks=101, block_size=16, max_model_len=1600)

    def grows(name: str, at: float) -> ProgramShape:
        again = CallShape(8, CONTEXT - 100 + 300, after=(0,), extends=0, gap_s=0.01, tool="tool")
        return ProgramShape(name, "t", (CallShape(8, CONTEXT - 100), again), arrives_s=at)

    ran = contender(policy).run([grows("late", 0.001), grows("early", 0.0)], options, TIMES)
    outcomes = {outcome.program_id: outcome for outcome in ran.outcomes}
    assert outcomes["early"].calls[1].cached_tokens >= CONTEXT - 100 - 16
    assert outcomes["late"].calls[1].cached_tokens < CONTEXT - 100 - 16


# -- gates -----------------------------------------------------------------------------------------


def test_a_cap_begins_the_next_program_as_one_ends() -> None:
    programs = [ProgramShape(f"p{i}", "t", (CallShape(100, 16),)) for i in range(3)]
    ended = {name: outcome.ended_s for name, outcome in run("cap:1", programs).items()}
    assert ended == {f"p{i}": pytest.approx(0.1 * (i + 1), rel=0.05) for i in range(3)}


def test_thunderagent_lets_a_program_wait_for_a_tick_where_its_prompt_does_not_fit() -> None:
    """The engine has 1,616 tokens of cache: `c` fits at 0.9 s and begins at a tick."""
    programs = [
        ProgramShape("a", "t", (CallShape(850, CONTEXT - 100),)),
        ProgramShape("c", "t", (CallShape(8, 900),), arrives_s=0.1),
    ]
    assert run("stock", programs)["c"].ended_s < 1.2
    assert run("thunderagent", programs)["c"].ended_s == pytest.approx(5.0, abs=0.1)


def test_thunderagent_pauses_a_program_at_its_tool_where_contexts_have_outgrown_the_cache() -> None:
    """At the tick of 5 s `grows` has more tokens than fit beside `away`, which is at its tool.

    `away` comes back at 6 s. It may go on at the tick of 10 s, when `grows` has ended.
    """
    back = CallShape(8, 400, after=(0,), extends=0, gap_s=6.0, tool="tool")
    work = [CallShape(400, 400)]
    for index in range(1, 3):
        tokens = 400 + 400 * index
        work.append(CallShape(400, tokens, after=(index - 1,), extends=index - 1))
    work[-1] = CallShape(30, 1200, after=(1,), extends=1, gap_s=6.5, tool="tool")
    programs = [
        ProgramShape("away", "t", (CallShape(8, 300), back)),
        ProgramShape("grows", "t", tuple(work)),
    ]
    stock = run("stock", programs)["away"]
    paused = run("thunderagent", programs)["away"]
    assert stock.ended_s < 6.2
    assert paused.ended_s == pytest.approx(10.0, abs=0.1)
