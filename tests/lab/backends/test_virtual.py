"""Several virtual engines behind a router: real scheduling, real caches, one virtual time."""

from __future__ import annotations

import math
import re
from functools import cache

import pytest

pytest.importorskip("vllm")

from agentrt.errors import ConfigError
from agentrt.lab.backends.virtual import Virtual
from agentrt.lab.driver import drive
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.outcome import RunOutcome
from agentrt.lab.program import Stock
from agentrt.lab.workloads.arrivals import poisson
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.scheduler import SchedulerConfig
from benchmarks.workloads.generate import generate
from tests.lab.drives import run_virtual

pytestmark = pytest.mark.engine

OPTIONS = VirtualOptions(max_num_seqs=4, kv_blocks=600, max_model_len=8192)


def some(count: int = 8) -> list[ProgramShape]:
    return poisson(generate("react", count, 3), 4.0, 3)


def fleet(programs: list[ProgramShape], replicas: int, router: str) -> RunOutcome:
    return drive(Virtual(SchedulerConfig(), OPTIONS, replicas=replicas, router=router), programs)


@cache
def by_three(router: str) -> tuple[Virtual, RunOutcome]:
    """Three engines behind a router, and their run of `some` programs."""
    backend = Virtual(SchedulerConfig(), OPTIONS, replicas=3, router=router)
    return backend, drive(backend, some())


def ends(run: RunOutcome) -> dict[str, float]:
    return {one.program_id: one.ended_s for one in run.outcomes}


def test_each_engine_learns_of_the_programs_that_it_served() -> None:
    run = Virtual(SchedulerConfig("adaptive"), OPTIONS, replicas=3, router="round-robin")
    drive(run, some(16))
    known = [replica.engine.scheduler.history.values()["service"] for replica in run.replicas]
    counts = [sum(row[4] for row in rows if row[2:4] == ["", 0]) for rows in known]
    assert min(counts) > 0
    assert max(counts) < sum(counts)
    assert sum(counts) >= 16


def test_one_of_a_fleet_is_an_engine_alone() -> None:
    programs = some(6)
    alone = run_virtual(programs, SchedulerConfig(), engine=OPTIONS)
    one = fleet(programs, 1, "cost")
    assert ends(one) == pytest.approx({o.program_id: o.ended_s for o in alone.outcomes})
    assert one.counts.usage.cached_tokens == alone.counts.usage.cached_tokens


@pytest.mark.parametrize("router", ["cost", "prefix", "agentix", "round-robin"])
def test_every_program_ends_and_every_call_is_counted_once(router: str) -> None:
    programs, (backend, run) = some(), by_three(router)
    assert sorted(ends(run)) == sorted(program.program_id for program in programs)
    assert all(counts.usage.output_tokens for counts in backend.counts)
    assert run.counts.usage.output_tokens == sum(p.output_tokens for p in programs)
    assert ends(fleet(programs, 3, router)) == ends(run)


@pytest.mark.parametrize("router", ["agentix", "round-robin"])
def test_vllms_own_scheduler_runs_behind_a_router_that_reads_no_blocks(router: str) -> None:
    programs = some()
    backend = Virtual(Stock(), OPTIONS, replicas=2, router=router)
    run = drive(backend, programs)
    assert sorted(ends(run)) == sorted(program.program_id for program in programs)
    assert all(counts.usage.output_tokens for counts in backend.counts)


def test_routers_that_know_what_is_held_find_more_of_it() -> None:
    names = ("cost", "prefix", "round-robin")
    used = {name: by_three(name)[1].counts.usage for name in names}
    rates = {name: usage.cached_tokens / usage.prompt_tokens for name, usage in used.items()}
    assert rates["round-robin"] + 0.05 < min(rates["cost"], rates["prefix"])


def test_engines_run_side_by_side() -> None:
    """Two programs that come together take as long on two engines as one of them on one."""
    second = StepTimeModel(1.0, 0.0, 0.0, 0.0)
    options = VirtualOptions(max_num_seqs=1, kv_blocks=64, max_model_len=256)
    calls = (CallShape(output_tokens=5, prompt_tokens=20),)
    pair = [ProgramShape(name, "t", calls) for name in ("a", "b")]
    latest = []
    for replicas in (1, 2):
        backend = Virtual(
            SchedulerConfig(), options, second, replicas=replicas, router="least-used"
        )
        run = drive(backend, pair)
        latest.append(max(ends(run).values()))
        assert math.fsum(run.busy_s) == 10.0
    assert latest == [10.0, 5.0]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(("gap_s", "kept"), [(0.2, True), (3.0, False)])
def test_an_engine_stands_still_for_who_is_soon_back(
    replicas: int, gap_s: float, kept: bool
) -> None:
    """Each of two agents fills a cache by itself; to compute one again takes half a second."""
    times = StepTimeModel(0.0, 1e-3, 1e-3, 0.0)
    options = VirtualOptions(
        max_num_seqs=2, kv_blocks=41, max_num_batched_tokens=128, max_model_len=640
    )
    ours = SchedulerConfig("fcfs", admission="memory", retention="lru")
    first = CallShape(output_tokens=4, prompt_tokens=496)
    second = CallShape(4, 510, after=(0,), gap_s=gap_s, extends=0, tool="search")
    agents = [ProgramShape(name, "t", (first, second)) for name in "abcd"[: 2 * replicas]]
    router = None if replicas == 1 else "round-robin"
    run = drive(Virtual(ours, options, times, replicas=replicas, router=router), agents)
    assert run.counts.usage.returned_tokens > 0
    assert (run.counts.usage.lost_tokens == 0) is kept


@pytest.mark.parametrize("prompt", [8192, 20_000])
def test_a_call_that_is_too_long_fits_if_its_error_is_followed(prompt: int) -> None:
    """With as many blocks as the error names, or with tokens scaled by its factor."""
    program = ProgramShape("long", "type", (CallShape(output_tokens=8, prompt_tokens=prompt),))
    with pytest.raises(ConfigError, match="more than the 8192 of the virtual engine") as error:
        run_virtual([program], SchedulerConfig(), engine=OPTIONS)
    numbers = re.search(r"at least (\d+) KV blocks .* by ([\d.]+) or less", str(error.value))
    assert numbers is not None
    blocks, factor = int(numbers[1]), float(numbers[2])
    longest = (blocks - 1) * OPTIONS.block_size
    assert longest - OPTIONS.block_size < prompt + 8 <= longest
    assert 0 < factor * (prompt + 8) <= OPTIONS.max_model_len
