"""The event-driven simulator decides exactly as one that visits every step.

Both use the same core, so this is about when they look, and in which order they take
what happens at one moment: calls that end and their successors, the others whose quantum
is used up, and programs that arrive. Every setting of the scheduler may be as it likes; what
must agree is a step of one second (the toy's), no gaps, and programs that arrive at whole steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.lab.driver import drive
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.scheduler import SchedulerConfig
from agentrt.scheduler.policies.adaptive import Adaptive
from benchmarks.steps import Steps
from tests.lab.toys import ToyCall, ToyEngine, ToyProgram

CONFIGS = st.builds(
    SchedulerConfig,
    policy=st.sampled_from(["fcfs", "mlfq", "plas", "atlas"]),
    quanta=st.sampled_from([(2.0, 4.0, 8.0), (1.0, 2.0), (3.0,)]),
    beta=st.sampled_from([0.5, 2.0, 8.0, math.inf]),
    max_promoted=st.integers(0, 3),
    min_running_steps=st.integers(0, 4),
    max_preemptions_per_step=st.integers(1, 3),
    preemption=st.booleans(),
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[ToyCall, ...]:
    """Chains, fan-outs and what is between: each call after some of those before it."""
    made: list[ToyCall] = []
    for index in range(draw(st.integers(1, 6))):
        after = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set()
        made.append(ToyCall(draw(st.integers(1, 12)), tuple(sorted(after))))
    return tuple(made)


@st.composite
def programs(draw: st.DrawFn) -> list[ToyProgram]:
    shapes = draw(st.lists(calls(), min_size=1, max_size=8))
    return [ToyProgram(f"P{i}.", made, draw(st.integers(0, 30))) for i, made in enumerate(shapes)]


@settings(max_examples=120, deadline=None)
@given(programs(), CONFIGS, st.integers(1, 4))
def test_every_program_ends_at_the_same_step(
    some: Sequence[ToyProgram], config: SchedulerConfig, batch: int
) -> None:
    stepwise = ToyEngine(config, batch, strict=False).run(some)
    backend = Steps(config, batch, 1.0)
    jumping = drive(backend, [_shape(one) for one in some])
    assert {o.program_id: o.ended_s for o in jumping.outcomes} == stepwise.ends
    assert sum(one.preemptions for one in jumping.outcomes) == stepwise.preemptions


def _shape(program: ToyProgram) -> ProgramShape:
    made = tuple(CallShape(call.steps, after=call.after) for call in program.calls)
    return ProgramShape(program.name, "toy", made, arrives_s=program.arrives)


@settings(max_examples=50, deadline=None)
@given(programs(), st.integers(1, 4), st.sampled_from(["round-robin", "agentix", "least-used"]))
def test_engines_learn_of_whom_they_served(some: list[ToyProgram], batch: int, router: str) -> None:
    """Every program is learned of somewhere, and nothing is noted any more of one that ended."""
    simulator = Steps(SchedulerConfig("adaptive"), batch, 1.0, replicas=3, router=router)
    drive(simulator, [_shape(one) for one in some])
    learned = []
    for engine in simulator.engines:
        policy = engine.core.policy
        assert isinstance(policy, Adaptive)
        assert not policy._visits
        known = policy.learned.service.entries()
        born = [(kind, one.left_s.n) for kind, age, one in known if kind[2] == "" and age == 0]
        learned.append(sum(n for kind, n in born if kind[0]))
        assert learned[-1] == sum(n for kind, n in born if not kind[0]), "all are one kind, too"
    assert sum(learned) >= len(some) >= max(learned)
