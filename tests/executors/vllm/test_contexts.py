"""What contexts need of the scheduler: branches share a step, and scores read the cache in part."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.exceptions import VLLMValidationError

from agentrt.executors.vllm._compat.prefixes import compute_from
from agentrt.executors.vllm.calls import engine_input
from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.executors.vllm.logprobs import COMPUTE_FROM
from agentrt.lab.engine.headless import HeadlessEngine, make_scheduler
from agentrt.request import Call, CallSpec, Identity
from agentrt.request.sampling import Sampling

pytestmark = pytest.mark.engine
TRUNK = list(range(2000))
"""125 blocks of 16 tokens."""


def engine(policy: str) -> HeadlessEngine:
    settings: dict[str, Any] = {"policy": policy}
    return HeadlessEngine(
        make_scheduler(ProgramScheduler, max_num_seqs=32, blocks=600, settings=settings)
    )


@pytest.mark.parametrize("policy", ["fcfs", "atlas", "adaptive"])
def test_branches_that_come_in_one_step_compute_what_they_share_once(policy: str) -> None:
    e = engine(policy)
    for number in range(32):
        e.add(f"branch-{number}", [*TRUNK, *range(3000 + 8 * number, 3008 + 8 * number)], 8)
    steps = e.run()
    computed = sum(sum(step.scheduled.values()) for step in steps)
    ideal = 2000 + 32 * (8 + 7)  # an output's last token is not computed
    assert ideal <= computed <= 1.02 * ideal


def test_a_prompt_is_computed_from_where_it_is_scored() -> None:
    """1. A prompt is cached. 2. It is scored from some position: only blocks before it are read."""
    e = engine("fcfs")
    e.add("first", TRUNK[:160], 1)
    e.run()
    for scored, computed in ((160, 16), (100, 160 - 96), (97, 160 - 96), (96, 160 - 80), (1, 160)):
        e.add(f"from-{scored}", TRUNK[:160], 1, {COMPUTE_FROM: scored - 1})
        [step] = e.run()
        assert step.scheduled == {f"from-{scored}": computed}


@pytest.mark.parametrize("value", [-1, -5, -(2**63), True, 1.5, "5", [3], 2**63 - 1])
def test_a_position_that_a_client_invents_stops_no_engine(value: Any) -> None:
    """Clients may send any number, text or list as ``vllm_xargs``, also under agentrt's names."""
    e = engine("fcfs")
    e.add("first", TRUNK[:160], 1)
    e.run()
    e.add("again", TRUNK[:160], 1, {COMPUTE_FROM: value})
    [step] = e.run()
    assert step.scheduled == {"again": 16}


@pytest.mark.parametrize(
    ("given", "longest"), [((), 39), ((None,), 39), ((100,), 39), ((20,), 20)], ids=str
)
def test_a_look_up_may_be_told_its_longest_hit(given: tuple[Any, ...], longest: int) -> None:
    """vLLM 0.33 may pass the longest hit. Of 160 tokens, the prompt is scored from the fortieth."""

    def look_up(request: Any, longest: int | None = None) -> int:
        return int(request.num_tokens) - 1 if longest is None else longest

    manager = SimpleNamespace(get_computed_blocks=look_up)
    scheduler: Any = SimpleNamespace(kv_cache_manager=manager)
    compute_from(scheduler, COMPUTE_FROM)
    params = SimpleNamespace(extra_args={COMPUTE_FROM: 39})
    request = SimpleNamespace(num_tokens=160, sampling_params=params)
    assert manager.get_computed_blocks(request, *given) == longest
    request.sampling_params = SimpleNamespace(extra_args=None)
    assert manager.get_computed_blocks(request, *given) == (given[0] if given and given[0] else 159)


def test_a_call_that_the_engine_core_could_not_read_is_refused_before_it_is_sent() -> None:
    """vLLM's engine core checks the parameters again, and reads no further calls if they fail."""
    spec = CallSpec(prompt_token_ids=(1, 2), max_tokens=0, sampling=Sampling())
    with pytest.raises(VLLMValidationError, match="max_tokens must be at least 1, got 0"):
        engine_input(Call(Identity("p/0", "p"), spec), 100, stream=False)
