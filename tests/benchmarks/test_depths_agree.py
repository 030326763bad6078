"""The step simulator ranks policies as the virtual engine does, which runs vLLM's scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from random import Random

import pytest

from agentrt.lab.outcome import Outcome, summarize
from agentrt.lab.runs.machine import Machine
from agentrt.lab.workloads.arrivals import bursts
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.scheduler import SchedulerConfig
from tests.lab.drives import run_virtual, simulate

pytestmark = pytest.mark.engine

POLICIES = ("fcfs", "mlfq", "plas", "atlas")
BATCH, PROGRAMS = 4, 48
TIED = 0.03
"""Two policies whose mean latencies differ by less, at either depth, have no order."""

QUANTA = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
# Ample memory, and prompts that are computed in chunks beside the decoding calls.
VIRTUAL = Machine(BATCH, kv_blocks=16384, max_num_batched_tokens=512)
STEP_S = VIRTUAL.token_s()

Make = Callable[[str, Random], ProgramShape]


def heavy_tail(name: str, rng: Random) -> ProgramShape:
    """One in eight has calls ten times as long: who goes by attained service wins."""
    low, high = (200, 500) if rng.random() < 0.125 else (10, 40)
    return _chain(name, [rng.randint(low, high) for _ in range(rng.randint(1, 4))])


def many_calls(name: str, rng: Random) -> ProgramShape:
    """One in five has ten times as many calls: MLFQ and PLAS lose to FCFS."""
    count = rng.randint(12, 24) if rng.random() < 0.2 else rng.randint(1, 4)
    return _chain(name, [rng.randint(20, 60) for _ in range(count)])


def _chain(name: str, outputs: Sequence[int]) -> ProgramShape:
    """Calls one after the other, each with the conversation so far in its prompt."""
    calls: list[CallShape] = []
    prompt = 100
    for index, output in enumerate(outputs):
        extends = index - 1 if index else None
        after = (index - 1,) if index else ()
        calls.append(CallShape(output, prompt, after, extends=extends))
        prompt += output + 30
    return ProgramShape(name, "chain", tuple(calls), system_tokens=64)


def _fan_out(name: str, rng: Random) -> ProgramShape:
    """Parallel calls between two others."""
    width = rng.choice((2, 4))
    first = CallShape(20, 100)
    middle = [CallShape(rng.randint(10, 60), 150, (0,), extends=0) for _ in range(width)]
    last = CallShape(30, 300, tuple(range(1, width + 1)))
    return ProgramShape(name, "fan", (first, *middle, last), system_tokens=64)


def _programs(make: Make) -> list[ProgramShape]:
    """Two thirds of the one kind, a third that fan out, in one burst and its lull."""
    rng = Random(1)
    programs = [(make if rng.random() < 0.67 else _fan_out)(f"p{i}", rng) for i in range(PROGRAMS)]
    rate = 0.8 * VIRTUAL.capacity_per_s(programs)
    return bursts(programs, rate, seed=1, period_programs=PROGRAMS)


@pytest.mark.parametrize("make", [heavy_tail, many_calls])
def test_they_agree_in_the_order_of_policies(make: Make) -> None:
    programs = _programs(make)
    steps: dict[str, float] = {}
    virtual: dict[str, float] = {}
    for policy in POLICIES:
        config = SchedulerConfig(policy=policy, quanta=QUANTA)
        run = simulate(programs, config, batch=BATCH, step_s=STEP_S)
        steps[policy] = _mean_s(run.outcomes)
        options = VIRTUAL.virtual_options()
        virtual[policy] = _mean_s(run_virtual(programs, config, engine=options).outcomes)
    orders = [_order(steps, pair) for pair in combinations(POLICIES, 2)]
    others = [_order(virtual, pair) for pair in combinations(POLICIES, 2)]
    told = [(a, b) for a, b in zip(orders, others, strict=True) if a and b]
    assert len(told) >= 4, (steps, virtual)  # of six pairs
    assert all(a == b for a, b in told), (steps, virtual)


def _mean_s(outcomes: Sequence[Outcome]) -> float:
    return summarize(outcomes).mean_s


def _order(means: dict[str, float], pair: tuple[str, str]) -> tuple[str, str] | None:
    """The pair with the faster policy first, None if they are tied."""
    fast, slow = sorted(pair, key=means.__getitem__)
    return (fast, slow) if means[fast] < (1 - TIED) * means[slow] else None
