"""Several virtual engines behind a router: real scheduling, real caches, one virtual time."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("vllm")

from agentrt.lab.backends.fleet import FleetRun, _Fleet, run_fleet
from agentrt.lab.backends.virtual import run_virtual
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.workloads import CallShape, ProgramShape
from agentrt.lab.workloads.arrivals import Open, poisson
from agentrt.lab.workloads.generate import generate
from agentrt.router import Dispatcher, make_router
from agentrt.scheduler import SchedulerConfig

pytestmark = pytest.mark.engine

OPTIONS = VirtualOptions(max_num_seqs=4, kv_blocks=600, max_model_len=8192)


def some(count: int = 12) -> list[ProgramShape]:
    return poisson(generate("react", count, 3), 4.0, 3)


def fleet(programs: list[ProgramShape], replicas: int, router: str) -> FleetRun:
    return run_fleet(programs, SchedulerConfig(), replicas=replicas, router=router, engine=OPTIONS)


def ends(run: FleetRun) -> dict[str, float]:
    return {one.program_id: one.ended_s for one in run.outcomes}


def test_each_engine_learns_of_the_programs_that_it_served() -> None:
    arrivals, times = Open(some(16)), StepTimeModel()
    dispatcher = Dispatcher(make_router("round-robin"), ())
    run = _Fleet(arrivals, SchedulerConfig("adaptive"), OPTIONS, times, dispatcher, 3)
    run.run(None)
    known = [lane.engine.scheduler.control("learned")["cells"] for lane in run._lanes]
    counts = [sum(cell[4] for cell in cells if cell[2:4] == [0, ""]) for cells in known]
    assert min(counts) > 0
    assert max(counts) < sum(counts)
    assert sum(counts) >= 16


def test_one_of_a_fleet_is_an_engine_alone() -> None:
    programs = some(6)
    alone = run_virtual(programs, SchedulerConfig(), engine=OPTIONS)
    one = fleet(programs, 1, "cost")
    assert ends(one) == pytest.approx({o.program_id: o.ended_s for o in alone.outcomes})
    assert one.counts[0].hit_tokens == alone.counts.hit_tokens


@pytest.mark.parametrize("router", ["cost", "prefix", "agentix", "round-robin"])
def test_every_program_ends_and_every_call_is_counted_once(router: str) -> None:
    programs = some()
    run = fleet(programs, 3, router)
    assert sorted(ends(run)) == sorted(program.program_id for program in programs)
    assert sum(run.routed) == sum(len(program.calls) for program in programs)
    assert min(run.routed) > 0
    assert sum(one.output_tokens for one in run.counts) == sum(p.output_tokens for p in programs)
    assert ends(fleet(programs, 3, router)) == ends(run)


def test_routers_that_know_what_is_held_find_more_of_it() -> None:
    programs = some()
    rates = {
        name: fleet(programs, 3, name).total.hit_share for name in ("cost", "prefix", "round-robin")
    }
    assert rates["round-robin"] + 0.05 < min(rates["cost"], rates["prefix"])


def test_engines_run_side_by_side() -> None:
    """Two programs that come together take as long on two engines as one of them on one."""
    second = StepTimeModel(1.0, 0.0, 0.0, 0.0)
    options = VirtualOptions(max_num_seqs=1, kv_blocks=64, max_model_len=256)
    calls = (CallShape(output_tokens=5, prompt_tokens=20),)
    pair = [ProgramShape(name, "t", calls) for name in ("a", "b")]
    latest = []
    for replicas in (1, 2):
        run = run_fleet(
            *(pair, SchedulerConfig()),
            replicas=replicas,
            router="least-used",
            engine=options,
            step_time=second,
        )
        latest.append(max(ends(run).values()))
        assert math.fsum(run.busy_s) == 10.0
    assert latest == [10.0, 5.0]
