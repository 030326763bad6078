"""The comparison's parts that need no engine: who runs, what stock is told, equal latency."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.errors import ConfigError, EngineDiedError
from agentrt.executors.base import Chunk
from agentrt.lab.backends.real import run_real
from agentrt.lab.engine.virtual import PrioritizedCall, VirtualOptions
from agentrt.lab.program import LiveProgram, Stock
from agentrt.lab.reports.compare import Series
from agentrt.lab.runs.contenders import contenders
from agentrt.lab.runs.grid import Setting
from agentrt.lab.workloads.arrivals import Pressure
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.request import Call, CallReport
from agentrt.scheduler import EngineProgram
from benchmarks.equal_latency import at_equal_latency, by_repeats, exactly, times
from benchmarks.rivals.contenders import GatedContender
from benchmarks.rivals.gates import ThunderAgent
from benchmarks.summaries import FullSummary
from benchmarks.workloads.source import WorkloadSource
from tests.lab.answering import Engine

REACT = WorkloadSource("react")


# -- who is compared -------------------------------------------------------------------


def test_a_name_says_who_schedules_with_what_else_on() -> None:
    names = ["stock", "priority-path", "atlas+cost+memory", "plas+hints", "thunderagent+ample"]
    stock, path, atlas, told, rival = contenders([*names, "stock"], hints=0.7)
    assert [one.name for one in (stock, path, atlas, told, rival)] == names
    assert (stock.scheduling, path.scheduling) == (Stock(), Stock("path"))
    assert atlas.config is not None
    assert (atlas.config.retention, atlas.config.admission) == ("cost", "memory")
    assert (atlas.hints, told.hints) == (None, 0.7)
    assert (rival.memory, rival.scheduling) == (16, Stock())
    assert isinstance(rival, GatedContender)
    assert isinstance(rival.gate(VirtualOptions()), ThunderAgent)
    for wrong in ("priority", "atlas+mru", "atlas+cost+lru", "stock+cost", "cap:0", "cap"):
        with pytest.raises(ConfigError, match=f"unknown policy '{re.escape(wrong)}'"):
            contenders([wrong])


# -- what stock is told ----------------------------------------------------------------


def test_priorities_are_the_programs_tokens_when_the_call_is_emitted() -> None:
    """0 -> (1, 2) -> 3: the longer way leads over 2, and 1 was served as well."""
    calls = (
        CallShape(5, 10),
        CallShape(7, 20, after=(0,)),
        CallShape(40, 20, after=(0,)),
        CallShape(1, 30, after=(1, 2)),
    )
    live = LiveProgram(ProgramShape("p", "t", calls), EngineProgram("p", "t"))
    service, path, none = Stock("service"), Stock("path"), Stock()
    told = []
    for index, before in ((0, ()), (1, (0,)), (2, (0, 1)), (3, (0, 1, 2))):
        live.reports = {i: CallReport() for i in before}
        told.append(tuple(feed.priority(live, index) for feed in (service, path, none)))
    assert told == [(0, 0, 0), (5, 5, 0), (12, 5, 0), (52, 45, 0)]


# -- throughput at equal latency -------------------------------------------------------

SOME = FullSummary(10, 4.0, 3.0, 8.0, 9.0, 2.0, 0.1, 50.0, 0.2, 0.5, 0.5, 0.0, 0)


Curves = Mapping[str, Mapping[float, Sequence[float]]]


def cells(curves: Curves, kind: Any = "load") -> list[Series]:
    """By policy and load: the token latency of each repeat; P95 and P99 are twice, thrice it."""
    found = []
    for policy, curve in curves.items():
        for load, latencies in curve.items():
            cell = Series(Setting(REACT, Pressure(kind, load), 10), policy)
            for seed, value in enumerate(latencies):
                cell.summaries[seed] = replace(
                    SOME, token_latency_s=value, token_p95_s=2 * value, token_p99_s=3 * value
                )
            found.append(cell)
    return found


def test_each_repeat_has_a_ratio_of_its_own() -> None:
    """Level 2x of 10 ms. Stock crosses half way, at 1.0 and 0.75; ours at 1.25 and 1.0."""
    found = cells(
        {
            "stock": {0.5: (0.01, 0.01), 1.0: (0.02, 0.03), 1.5: (0.04, 0.06)},
            "ours": {0.5: (0.01, 0.01), 1.0: (0.01, 0.02), 1.5: (0.03, 0.04)},
        }
    )
    stock, ours = at_equal_latency(found, "stock", times(2))[:2]
    assert (stock.policy, stock.level_s, stock.mark) == ("stock", 0.02, "")
    assert stock.loads == pytest.approx((1.0, 0.75))
    assert ours.loads == pytest.approx((1.25, 1.0))
    assert ours.ratios == pytest.approx((1.25, 4 / 3))
    assert "| ours   | 1.12 (1-1.25)" in by_repeats([stock, ours], "stock")


@pytest.mark.parametrize(
    ("ours", "mark"),
    [
        ((0.01, 0.01), "≥"),  # never above the level
        ((0.03, 0.05), "≤"),  # always above it
        ((0.01, 0.05), ""),
    ],
)
def test_a_ratio_that_the_sweep_only_bounds_says_so(ours: tuple[float, ...], mark: str) -> None:
    found = cells({"stock": {1.0: (0.01,), 2.0: (0.03,)}, "ours": {1.0: ours[:1], 2.0: ours[1:]}})
    level = exactly(0.02)
    assert at_equal_latency(found, "stock", level)[1].mark == mark


def test_where_stock_keeps_the_level_throughout_ours_is_bounded_from_above() -> None:
    curves: Curves = {"stock": {1.0: (0.01,), 2.0: (0.01,)}, "ours": {1.0: (0.01,), 2.0: (0.03,)}}
    stock, ours = at_equal_latency(cells(curves), "stock", exactly(0.02))[:2]
    assert (stock.mark, ours.mark) == ("", "≤")
    alike = {**curves, "ours": curves["stock"]}
    assert at_equal_latency(cells(alike), "stock", exactly(0.02))[1].mark == "~"


def test_the_tail_has_a_level_of_its_own() -> None:
    curves: Curves = {"stock": {0.5: (0.01,), 1.0: (0.04,)}, "ours": {0.5: (0.01,), 1.0: (0.03,)}}
    found = at_equal_latency(cells(curves), "stock", times(2))
    assert [one.level_s for one in found[::2]] == pytest.approx([0.02, 0.04, 0.06])
    assert [one.ratios for one in found[1::2]] == [pytest.approx(found[1].ratios)] * 3


def test_one_load_or_a_burst_has_no_throughput_at_equal_latency() -> None:
    one = {"stock": {1.0: (0.01,)}, "ours": {1.0: (0.01,)}}
    two = {"stock": {1.0: (0.01,), 2.0: (0.02,)}}
    assert at_equal_latency(cells(one), "stock", times(2)) == []
    assert at_equal_latency(cells(two, "bursts"), "stock", times(2)) == []


@settings(deadline=None)
@given(
    steps=st.lists(st.floats(0.001, 1.0), min_size=2, max_size=6),
    share=st.floats(0.01, 0.99),
)
def test_between_two_loads_the_latency_is_interpolated(steps: list[float], share: float) -> None:
    """A rising curve, and a level somewhere on it: there the curve is at that level."""
    latencies = [sum(steps[: i + 1]) for i in range(len(steps))]
    level = latencies[0] + share * (latencies[-1] - latencies[0])
    curve = {1.0 + i: (value,) for i, value in enumerate(latencies)}
    (found, *_) = at_equal_latency(cells({"stock": curve}), "stock", exactly(level))
    (load,) = found.loads
    low, high = next(pair for pair in pairwise(sorted(curve)) if pair[0] <= load <= pair[1] + 1e-9)
    part = load - low
    assert curve[low][0] * (1 - part) + curve[high][0] * part == pytest.approx(level)


# -- the replay, on an engine that answers at once -------------------------------------


async def test_a_replay_follows_the_edges_and_grows_prompts_by_what_was_said() -> None:
    calls = (
        CallShape(2, 6),
        CallShape(1, 12, after=(0,), extends=0, gap_s=0.001, tool="shell"),
        CallShape(1, 9, after=(0,)),
        CallShape(1, 20, after=(1, 2), extends=1),
    )
    engine = Engine()
    program = ProgramShape("p", "t", calls, system_tokens=4)
    done = await run_real(engine, [program], stock=Stock("path"), run="/run 1")
    prompts = {call.call_id[-1]: call.spec.prompt_token_ids or () for call in engine.calls}
    assert {name: len(ids) for name, ids in prompts.items()} == {"0": 6, "1": 12, "2": 9, "3": 20}
    assert prompts["1"][:8] == (*prompts["0"], 9, 9)
    assert prompts["3"][:13] == (*prompts["1"], 9)
    assert prompts["2"][:4] == prompts["0"][:4]
    assert [c.priority for c in engine.calls if isinstance(c, PrioritizedCall)] == [0, 2, 2, 3]
    assert all(call.spec.ignore_eos for call in engine.calls)
    assert engine.told == ["start", "tool", "returned", "p/run 1", "stop"]
    (outcome,) = done.outcomes
    assert (outcome.program_id, outcome.service_s, outcome.waiting_s) == ("p", 4.0, 2.0)
    assert (outcome.steps, outcome.output_tokens) == (6, 5)
    assert (done.counts.steps, done.counts.cpu_us, done.counts.usage.cached_tokens) == (
        20,
        100.0,
        16,
    )


async def test_a_replay_ends_with_the_engines_own_error() -> None:
    class Dying(Engine):
        async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
            if call.call_id.endswith("/1"):
                raise EngineDiedError("the engine died")
            async for chunk in super().generate(call, stream=stream):
                yield chunk

    program = ProgramShape("p", "t", (CallShape(1, 5), CallShape(1, 9, after=(0,))))
    with pytest.raises(EngineDiedError, match="died"):
        await run_real(Dying(), [program, replace(program, program_id="q")])
