"""The virtual engine: programs' shapes under vLLM's real scheduling, in virtual time."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from agentrt.errors import ConfigError
from agentrt.lab.backends import virtual
from agentrt.lab.backends.virtual import Virtual
from agentrt.lab.driver import drive
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualEngine, VirtualOptions
from agentrt.lab.outcome import RunOutcome
from agentrt.lab.program import LiveProgram, Stock
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.request import CallReport
from agentrt.scheduler.config import SchedulerConfig
from tests.lab.drives import run_virtual
from tests.scheduler.integrity import check_queues

pytestmark = pytest.mark.engine

SECOND = StepTimeModel(1.0, 0.0, 0.0, 0.0)
"""Every step takes a second, so that times are counts of steps."""
SMALL = VirtualOptions(
    max_num_seqs=4, kv_blocks=40, max_num_batched_tokens=128, max_model_len=600, in_flight=1
)
EAGER: dict[str, Any] = {
    "quanta": (4, 8, 16),
    "min_running_steps": 0,
    "min_remaining_tokens": 0,
}


def chain(name: str, calls: int, *, arrives_s: float = 0.0, **more: Any) -> ProgramShape:
    """A chat: each call extends the one before by 20 tokens, and answers with 10."""
    shapes = [CallShape(10, 50)]
    shapes += [
        CallShape(10, 50 + 30 * i, after=(i - 1,), extends=i - 1, gap_s=2.0)
        for i in range(1, calls)
    ]
    return ProgramShape(name, "chat", tuple(shapes), arrives_s, **more)


def test_a_long_chat_keeps_no_prompts_of_earlier_turns() -> None:
    class Watched(Virtual):
        most = 0

        def call_ended(self, live: LiveProgram, index: int, report: CallReport) -> None:
            super().call_ended(live, index, report)
            self.most = max(self.most, len(live.prompts))

    backend = Watched(SchedulerConfig("fcfs"), SMALL, SECOND)
    drive(backend, [chain("p", 12)])
    assert backend.most == 1


def mixed(seed: int, count: int) -> list[ProgramShape]:
    """Chains and fans, of several types and sizes, with gaps; they overlap in time."""
    rng = random.Random(seed)
    programs = []
    for n in range(count):
        calls: list[CallShape] = []
        for i in range(rng.randint(1, 5)):
            after = tuple(sorted(rng.sample(range(i), min(i, rng.randint(0, 2)))))
            extends = rng.choice([None, *after])
            before = (
                calls[extends].prompt_tokens + calls[extends].output_tokens
                if extends is not None
                else 64
            )
            calls.append(
                CallShape(
                    rng.randint(1, 40),
                    min(400, before + rng.randint(0, 60)),
                    after,
                    gap_s=rng.choice([0.0, 0.0, 7.5]),
                    extends=extends,
                )
            )
        programs.append(
            ProgramShape(
                f"p{n}", f"t{n % 3}", tuple(calls), rng.uniform(0, 80), system_tokens=64 * (n % 2)
            )
        )
    return programs


def ends(run: RunOutcome) -> dict[str, float]:
    return {outcome.program_id: outcome.ended_s for outcome in run.outcomes}


def test_a_program_alone_takes_its_ideal_time() -> None:
    """Three calls of 10 steps each, and 2 seconds of tools between them."""
    run = run_virtual([chain("a", 3, arrives_s=5.0)], SchedulerConfig(), step_time=SECOND)
    (outcome,) = run.outcomes
    assert outcome.latency_s == outcome.ideal_s == 3 * 10 + 2 * 2.0
    assert (outcome.arrived_s, outcome.ended_s) == (5.0, 39.0)
    assert (outcome.service_s, outcome.waiting_s, outcome.tool_s) == (30.0, 0.0, 4.0)
    assert run.counts.steps == 30


def test_the_time_after_the_last_call_belongs_to_the_ideal_time() -> None:
    program = replace(chain("a", 2), tail_s=4.0)
    (outcome,) = run_virtual([program], SchedulerConfig(), step_time=SECOND).outcomes
    assert outcome.latency_s == outcome.ideal_s == 2 * 10 + 2.0 + 4.0


@pytest.mark.parametrize("scheduling", [Stock(), SchedulerConfig.of_policy()])
def test_a_model_may_stop_before_the_limit_of_its_client(
    scheduling: SchedulerConfig | Stock,
) -> None:
    """1. A call whose client allows 500 tokens generates 10, and takes 10 steps. 2. The call that
    extends it finds the same blocks in the prefix cache as after a limit of 10.
    """
    exact = chain("exact", 3)
    limited = replace(exact, calls=tuple(replace(one, max_tokens=500) for one in exact.calls))
    options = replace(SMALL, max_model_len=620)
    [base], [ended] = (
        drive(Virtual(scheduling, options, SECOND), [one]).outcomes for one in (exact, limited)
    )
    assert [call.output_tokens for call in ended.calls] == [10, 10, 10]
    assert ended == base


def test_a_limit_below_the_output_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"generates 10 tokens, more than its max_tokens of 9"):
        ProgramShape("p", "chat", (CallShape(10, 50, max_tokens=9),))


def test_a_chat_finds_its_past_in_the_prefix_cache() -> None:
    """60 tokens were there before, 59 of them computed: 3 whole blocks. Then 90: 5 blocks."""
    run = run_virtual([chain("a", 3)], SchedulerConfig(), step_time=SECOND)
    assert run.counts.usage.cached_tokens == 3 * 16 + 5 * 16
    assert run.counts.usage.prompt_tokens == 50 + 80 + 110


def test_programs_of_a_type_share_their_system_prompt_and_nothing_else() -> None:
    one = CallShape(5, 100)
    programs = [
        ProgramShape("a", "chat", (one,), 0.0, system_tokens=64),
        ProgramShape("b", "chat", (one,), 20.0, system_tokens=64),
        ProgramShape("c", "other", (one,), 40.0, system_tokens=64),
        ProgramShape("d", "chat", (one,), 60.0, system_tokens=0),
    ]
    assert (
        run_virtual(programs, SchedulerConfig(), step_time=SECOND).counts.usage.cached_tokens == 64
    )


def test_long_prompts_are_computed_in_chunks() -> None:
    long = ProgramShape("a", "t", (CallShape(1, 500),))
    run = run_virtual([long], SchedulerConfig(), engine=SMALL, step_time=SECOND)
    assert run.counts.steps == 4, "500 tokens at 128 a step"


def test_policies_reorder() -> None:
    """One slot. A long program runs; a short one that comes later passes it under atlas."""
    long = ProgramShape("long", "t", (CallShape(60, 20), CallShape(60, 20, after=(0,))))
    short = ProgramShape("short", "t", (CallShape(3, 20),), 30.0)
    options = VirtualOptions(max_num_seqs=1)

    def short_ends(policy: str) -> float:
        config = SchedulerConfig(policy=policy, **EAGER)
        return ends(run_virtual([long, short], config, engine=options, step_time=SECOND))["short"]

    assert short_ends("fcfs") == 63.0
    assert short_ends("atlas") == 33.0


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("policy", ["fcfs", "plas", "atlas"])
@pytest.mark.parametrize("seed", range(2))
def test_every_program_ends_and_nothing_is_left(
    seed: int, policy: str, in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines: list[VirtualEngine] = []

    class Kept(VirtualEngine):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            engines.append(self)

    monkeypatch.setattr(virtual, "VirtualEngine", Kept)
    programs = mixed(seed, 40)
    options = VirtualOptions(4, 40, 16, 128, 600, in_flight)
    config = SchedulerConfig(policy=policy, **EAGER)
    step_time = StepTimeModel(0.5, 1e-3, 0.1, 1e-5)
    run = run_virtual(programs, config, engine=options, step_time=step_time)

    assert sorted(o.program_id for o in run.outcomes) == sorted(p.program_id for p in programs)
    assert run.counts.usage.output_tokens == sum(p.output_tokens for p in programs)
    assert run.counts.usage.preemptions > 0 or policy == "fcfs", "the test must preempt"
    for outcome in run.outcomes:
        assert outcome.latency_s >= outcome.ideal_s - 1e-9
    scheduler = engines[0].scheduler
    assert not scheduler.requests
    assert not scheduler.core.calls
    assert len(scheduler.table) == 0
    # vLLM keeps one block of the 40 for itself.
    assert scheduler.control("snapshot")["free_blocks"] == 39
    check_queues(scheduler.core)


def test_the_same_run_comes_twice() -> None:
    config = SchedulerConfig(**EAGER)
    first, second = (run_virtual(mixed(7, 30), config, engine=SMALL) for _ in range(2))
    assert first == second


def test_a_call_that_does_not_fit_is_named_with_the_way_out() -> None:
    big = ProgramShape("big", "t", (CallShape(10, 10), CallShape(1000, 500)))
    with pytest.raises(ConfigError, match=r"program big: call 1 has 1500 tokens .* by 0\.40"):
        run_virtual([big], SchedulerConfig(), engine=SMALL)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        ({"kv_blocks": 20, "max_model_len": 1000}, "20 blocks holds 304 tokens, less than the"),
    ],
)
def test_an_engine_that_cannot_be_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VirtualOptions(**values)
