"""Each documented option of the scheduler changes what happens under the defaults."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

pytest.importorskip("vllm")

from agentrt.lab.backends.virtual import Virtual
from agentrt.lab.driver import drive
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.workloads.arrivals import poisson
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.scheduler import SchedulerConfig
from benchmarks.workloads.agents import with_tools
from benchmarks.workloads.generate import generate

pytestmark = pytest.mark.engine

LONGEST = 1500
OPTIONS = VirtualOptions(3, 100, 16, max_model_len=LONGEST)
"""Memory for about two of the six programs, and a batch of three."""
STEPS = StepTimeModel(base_s=0.02, per_prefill_token_s=2e-4)


@cache
def programs() -> list[ProgramShape]:
    """Agents with tools, and some that branch: enough to wait for slots and for memory."""
    made = [*generate("react", 4, 4), *generate("graphs8", 2, 4)]
    return poisson(with_tools([one for one in made if _longest(one) < LONGEST], 0.3, 4), 8.0, 4)


def _longest(program: ProgramShape) -> int:
    return max(call.prompt_tokens + call.output_tokens for call in program.calls)


@cache
def latencies(**settings: Any) -> tuple[float, ...]:
    """The latency of each program under the defaults, but for these settings."""
    config = SchedulerConfig(**settings)
    ran = drive(Virtual(config, OPTIONS, STEPS), programs())
    return tuple(one.latency_s for one in ran.outcomes)


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "atlas", "retention": "cost", "admission": "memory"},
        {"lane": 0.5},
        {"retention": "lru"},
        {"retention": "ttl"},
        {"admission": "off"},
        {"ttft_target": 1.0},
        {"preemption": False},
    ],
    ids=str,
)
def test_an_option_changes_what_the_default_does(settings: dict[str, Any]) -> None:
    assert latencies(**settings) != latencies()


@pytest.mark.parametrize(
    ("base", "settings"),
    [
        ({"admission": "cap"}, {"admission_cap": 3}),
        ({"retention": "ttl", "admission": "off"}, {"retention_ttl": 0.1}),
        ({"policy": "atlas"}, {"beta": 0.5}),
        ({"admission": "off"}, {"quanta": (20.0, 40.0)}),
    ],
    ids=str,
)
def test_an_option_of_one_choice_changes_what_that_does(
    base: dict[str, Any], settings: dict[str, Any]
) -> None:
    assert latencies(**base, **settings) != latencies(**base)
