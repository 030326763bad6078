"""vLLM's own scheduler in virtual time: it is vLLM's, our fcfs equals it, its priorities count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from agentrt.errors import InvariantError
from agentrt.lab.engine import schedulers
from agentrt.lab.engine.headless import HeadlessEngine, make_scheduler, stock_scheduler
from agentrt.lab.engine.probe import Probe, answer
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualEngine, VirtualOptions
from agentrt.lab.program import Stock
from agentrt.lab.runs.contenders import contender
from agentrt.lab.workloads.arrivals import poisson
from agentrt.lab.workloads.shape import (
    CallShape,
    ProgramShape,
)
from agentrt.scheduler.config import SchedulerConfig
from benchmarks.workloads.generate import generate
from benchmarks.workloads.source import Cut
from tests.lab.drives import run_virtual

pytestmark = pytest.mark.engine

SECOND = StepTimeModel(1.0, 0.0, 0.0, 0.0)
"""Every step takes a second, so that times are counts of steps."""
SMALL = VirtualOptions(max_num_seqs=4, kv_blocks=78, max_num_batched_tokens=256, max_model_len=1200)


def agents(count: int) -> list[ProgramShape]:
    programs = [Cut(6, 1200).of(program) for program in generate("react", count, 1)]
    return poisson(programs, 0.05, 1)


def test_the_stock_scheduler_is_vllms_own_class() -> None:
    engine = VirtualEngine("fcfs", SMALL, SECOND)
    assert type(engine.scheduler) is AsyncScheduler
    assert schedulers.AsyncScheduler is AsyncScheduler


@pytest.mark.parametrize("in_flight", [1, 2])
def test_our_fcfs_decides_as_stock_and_both_instruments_agree(in_flight: int) -> None:
    """The probe watches vLLM's scheduler, ours keeps its own account: all of it is equal."""
    options = replace(SMALL, in_flight=in_flight)
    stock = run_virtual(agents(12), Stock(), engine=options, step_time=SECOND)
    ours = run_virtual(agents(12), SchedulerConfig(policy="fcfs"), engine=options, step_time=SECOND)
    both = [[replace(one, calls=()) for one in ran.outcomes] for ran in (stock, ours)]
    assert both[0] == both[1]
    # Ours says its spans in whole microseconds.
    times = [[tuple(c) for one in ran.outcomes for c in one.calls] for ran in (stock, ours)]
    assert times[0] == [pytest.approx(one, abs=1e-5) for one in times[1]]
    told_by_both = replace(ours.counts.usage, returned_tokens=0, lost_tokens=0)
    assert stock.counts == replace(ours.counts, usage=told_by_both)
    assert stock.counts.usage.preemptions > 0, (
        "memory is short, so that more than order is compared"
    )
    assert 0 < stock.counts.usage.cached_tokens < stock.counts.usage.prompt_tokens
    assert stock.counts.usage.recomputed_tokens > 0


def chain(name: str, calls: int, arrives_s: float) -> ProgramShape:
    shapes = [CallShape(10, 20)]
    shapes += [CallShape(10, 20, after=(i - 1,)) for i in range(1, calls)]
    return ProgramShape(name, "t", tuple(shapes), arrives_s)


@pytest.mark.parametrize(
    ("name", "first"), [("stock", "old"), ("priority-service", "new"), ("priority-path", "new")]
)
def test_a_program_that_was_served_less_passes_by_its_priority(name: str, first: str) -> None:
    """1. One slot; two old programs take turns. 2. A new one comes: stock has it wait each time."""
    one = replace(SMALL, max_num_seqs=1)
    programs = [chain("old", 4, 0.0), chain("other", 4, 0.0), chain("new", 3, 15.0)]
    run = run_virtual(programs, contender(name).scheduling, engine=one, step_time=SECOND)
    order = [outcome.program_id for outcome in run.outcomes]
    assert order[0] == first


def test_a_probe_leaves_the_scheduler_as_it_was() -> None:
    scheduler = make_scheduler(stock_scheduler(), max_num_seqs=2, blocks=40)
    before = dict(vars(scheduler))
    assert answer(scheduler, "start") is None
    engine = HeadlessEngine(scheduler)
    engine.add("a", range(40), 5, {"agentrt": {"program_id": "p", "call_id": "mine"}})
    engine.run()
    seen = answer(scheduler, "stop")
    assert vars(scheduler).keys() == before.keys()
    assert seen["steps"] == 5
    assert seen["cpu_us"] > 0
    assert seen["calls"]["mine"]["output_tokens"] == 5
    with pytest.raises(InvariantError, match="no probe was started"):
        answer(scheduler, "stop")


def test_a_call_that_was_there_before_the_probe_is_not_counted() -> None:
    scheduler = make_scheduler(stock_scheduler(), max_num_seqs=2, blocks=40)
    engine = HeadlessEngine(scheduler)
    engine.add("early", range(40), 5)
    engine.step()
    probe = Probe(scheduler)
    probe.attach()
    engine.run()
    assert probe.result()["calls"] == {}


def test_samples_are_what_each_step_computed_and_took() -> None:
    scheduler = make_scheduler(
        stock_scheduler(), max_num_seqs=2, blocks=40, max_num_batched_tokens=48
    )
    e = HeadlessEngine(scheduler, step_s=lambda work: 1.0 + work.context_tokens / 1024)
    probe = Probe(e.scheduler, lambda: e.now, keep_steps=True)
    probe.attach()
    e.add("r", list(range(60)), 3)
    e.run()
    found = probe.result()["samples"]
    assert [one[:3] for one in found] == [(48, 0, 48), (12, 0, 60), (0, 1, 61), (0, 1, 62)]
    assert [one[3] for one in found] == [1.0 + context / 1024 for _, _, context, _ in found]
