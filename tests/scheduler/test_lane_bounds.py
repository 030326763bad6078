"""The lane bounds waiting: no program starves, whatever programs arrive later."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.lab.outcome import Outcome
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.scheduler.config import SchedulerConfig
from tests.lab.drives import simulate

STEP_S = 0.1


@dataclass(frozen=True)
class Scene:
    """A program, the earlier programs, and the later programs."""

    before: Sequence[ProgramShape]
    program: ProgramShape
    later: Sequence[ProgramShape]
    batch: int
    lane: float

    def run(self, lane: float) -> Outcome:
        config = SchedulerConfig("adaptive", lane=lane)
        programs = [*self.before, self.program, *self.later]
        outcomes = simulate(programs, config, batch=self.batch, step_s=STEP_S).outcomes
        return next(o for o in outcomes if o.program_id == self.program.program_id)

    def bound_s(self, preemptions: int) -> float:
        """What the program may wait at most, whoever comes after it.

        While one of its calls waits, the lane is full, or in debt: it pays for itself at
        its rate at least, and takes in no later program's call, since an older one is there. So

            rate * waiting <= what the lane serves meanwhile, and has to pay off.

        That is the work of those before it and its own; for each of its waits, one for
        each call and each preemption, the later calls that had entered while it did not
        wait; and what was charged late. Besides, a call that enters the lane waits some
        steps for a victim that has run for long enough to be one.
        """
        rate = self.lane * self.batch
        width = math.ceil(rate)
        waits = len(self.program.calls) + preemptions
        calls = waits * (1 + width) + sum(len(p.calls) for p in self.before)
        longest = max((p.output_tokens for p in self.later), default=0) * STEP_S
        lump = SchedulerConfig().quanta[0] / 2 + STEP_S
        paid = work_s([*self.before, self.program]) + waits * width * (longest + lump)
        steps = SchedulerConfig().min_running_steps + 2 + width
        return (paid + max(1.0, rate)) / rate + calls * steps * STEP_S


def work_s(programs: Sequence[ProgramShape]) -> float:
    return sum(program.output_tokens for program in programs) * STEP_S


def chain(name: str, steps: Sequence[int], arrives: int = 0, type: str = "t") -> ProgramShape:
    calls = (CallShape(n, after=(i - 1,) if i else ()) for i, n in enumerate(steps))
    return ProgramShape(name, type, tuple(calls), arrives * STEP_S)


def stream(seed: int, count: int, longest: int, batch: int) -> list[ProgramShape]:
    """Return later programs that arrive densely enough to keep a batch busy."""
    rng, at, made = Random(seed), 1.0, []
    for index in range(count):
        steps = rng.randint(1, longest)
        made.append(chain(f"later{index}", [steps], math.ceil(at), rng.choice("tu")))
        at += rng.uniform(0.5, 1.1) * steps / batch
    return made


_STREAMS = (0, 99), (0, 150), (1, 12)
"""Seeds, how many programs come later, and the steps of the longest."""


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    batch = draw(st.integers(1, 5))
    sizes = st.lists(st.integers(1, 60), min_size=1, max_size=4)
    before = [chain(f"before{i}", draw(sizes)) for i in range(draw(st.integers(0, 4)))]
    seed, count, longest = (draw(st.integers(low, high)) for low, high in _STREAMS)
    later = stream(seed, count, longest, batch)
    lane = draw(st.sampled_from([0.1, 0.25, 0.5]))
    return Scene(before, chain("x", draw(sizes)), later, batch, lane)


@settings(max_examples=60, deadline=None)
@given(scenes())
def test_waiting_is_bounded_whatever_programs_arrive_later(scene: Scene) -> None:
    """The bound is `Scene.bound_s`: it does not know how many programs come later."""
    outcome = scene.run(scene.lane)
    assert outcome.waiting_s <= scene.bound_s(outcome.preemptions)


def flood(lane: float) -> Scene:
    """A program of 20 s, followed by programs of at most 1.2 s that keep the batch busy for almost
    400 s.
    """
    before = [chain("before", [50])]
    return Scene(before, chain("x", [200]), stream(7, 2400, 12, 4), 4, lane)


@pytest.mark.parametrize("lane", [0.1, 0.25, 0.5])
def test_the_bound_fails_without_a_lane(lane: float) -> None:
    scene = flood(lane)
    with_lane, without = scene.run(lane), scene.run(0.0)
    assert with_lane.waiting_s <= scene.bound_s(with_lane.preemptions)
    assert without.waiting_s > 1.5 * scene.bound_s(without.preemptions)


def test_a_lane_serves_at_its_rate_though_the_simulator_charges_late() -> None:
    """Four programs of 20 s in a flood: one after the other, the lane of a slot takes them."""
    long = [chain(f"long{i}", [200]) for i in range(4)]
    programs = [*long, *stream(3, 2400, 12, 4)]
    config = SchedulerConfig("adaptive", lane=0.25)
    outcomes = simulate(programs, config, batch=4, step_s=STEP_S).outcomes
    ends = sorted(o.ended_s for o in outcomes if o.program_id.startswith("long"))
    assert ends[-1] < 4 * 20.0 + 5.0
