"""The order while a kind is unknown goes by what is visible of a program's calls."""

from __future__ import annotations

import pytest

from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.lab.engine.headless import HeadlessEngine, make_scheduler
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.learned import Learned

DEFAULTS = SchedulerConfig.of_policy(lane=0.0).to_dict()


def engine(slots: int = 2) -> HeadlessEngine:
    """Steps of 20 ms, and a tenth of a second for a thousand tokens of prompts."""
    scheduler = make_scheduler(
        ProgramScheduler, max_num_seqs=slots, blocks=4000, settings=DEFAULTS, max_model_len=8000
    )
    return HeadlessEngine(scheduler, step_s=lambda work: 0.02 + work.prefill_tokens / 10_000)


def add(made: HeadlessEngine, call: str, program: str, prompt: int, limit: int) -> None:
    extra = {"agentrt": {"program_id": program, "program_type": program[0]}}
    made.add(call, [hash(call) % 20_000 + 10 + n for n in range(prompt)], limit, extra)


def ends(made: HeadlessEngine) -> list[str]:
    return [call for step in made.run() for call in step.finished]


@pytest.mark.parametrize("seed", range(3))
def test_a_program_with_many_parallel_calls_goes_after_one_with_a_single_call(seed: int) -> None:
    made = engine()
    for number in range(8):
        add(made, f"s{seed}{number}", "report", 40, 40)
    add(made, f"l{seed}", "lookup", 40, 40)
    assert f"l{seed}" in ends(made)[:3], "after the two calls that ran when it came"


def test_unknown_calls_with_the_smallest_limit_go_first() -> None:
    made = engine(slots=1)
    add(made, "runs", "x", 10, 2)
    for name, limit in (("a", 400), ("b", 100), ("c", 25)):
        add(made, name, name, 10, limit)
    assert ends(made) == ["runs", "c", "b", "a"]


def test_unknown_calls_with_the_shortest_new_prompt_go_first() -> None:
    """Limits say nothing here. The first step measures what prompts cost."""
    made = engine(slots=1)
    add(made, "runs", "x", 200, 4)
    made.step()
    for name, prompt in (("a", 6000), ("b", 1500), ("c", 60)):
        add(made, name, name, prompt, 4)
    assert ends(made) == ["runs", "c", "b", "a"]


@pytest.mark.parametrize(("used", "expected"), [(1.0, 400), (0.01, 4)])
def test_an_unknown_call_is_expected_to_use_the_usual_share_of_its_limit(
    used: float, expected: int
) -> None:
    """A default limit that outputs never reach says nothing; one that clients chose does."""
    learned = Learned()
    assert learned.output_within(("acme", "new"), 400) == 400, "nothing is known"
    for number in range(10):
        limit = 1000 * (number + 1)
        learned.call_ended(("acme", f"kind{number}"), int(limit * used), limit)
    assert learned.output_within(("acme", "new"), 400) == pytest.approx(expected)


def test_a_types_learned_output_counts_instead_of_the_limit_up_to_the_limit() -> None:
    learned = Learned()
    for _ in range(1000):
        learned.call_ended(("acme", "t"), 50, 4000)
    assert learned.output_within(("acme", "t"), 4000) == pytest.approx(50, rel=0.05)
    assert learned.output_within(("acme", "t"), 20) == 20
    assert learned.output_within(("acme", "t"), 0) == pytest.approx(50)


def test_equal_programs_run_in_order_of_arrival() -> None:
    made = engine(slots=1)
    names = [f"k{number}" for number in range(12)]
    for name in names:
        add(made, name, name, 100, 30)
    assert ends(made) == names
