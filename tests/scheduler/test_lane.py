"""The lane: whom it admits and when, and that nobody starves where there is one."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.lab.outcome import Outcome
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.scheduler import ProgramRow, QueuedCall
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies.adaptive.lane import CHARGED_EVERY_S, Lane
from agentrt.scheduler.queues import LANE
from tests.lab.drives import simulate
from tests.scheduler.harness import Harness

STEP_S = 0.1


def harness(lane: float, slots: int = 4) -> Harness:
    return Harness("adaptive", slots=slots, lane=lane)


# -- whom it admits, and when ----------------------------------------------------------


def test_the_oldest_programs_call_is_admitted_and_goes_first() -> None:
    d = harness(0.25)
    d.table.start_program("big", "t", 0.0).path_s = 60.0
    big = d.call("big")
    d.now = 10.0
    d.call("small")
    assert d.order() == ["small", "big"]
    assert d.queues.promote(d.now) == [big]
    assert big.level == LANE.level
    assert d.order() == ["big", "small"]


def test_a_new_call_of_an_old_program_goes_before_one_of_a_younger() -> None:
    d = harness(0.25)
    d.table.start_program("old", "t", 0.0)
    d.now = 3.0
    d.call("young")
    d.now = 5.0
    d.call("old")
    assert [c.program.program_id for c in d.queues.promote(d.now)] == ["old"]


@pytest.mark.parametrize(("slots", "saved_s"), [(2, 1.0), (40, 10.0)])
def test_an_idle_lane_saves_a_second_of_its_rate_or_of_one_slot(slots: int, saved_s: float) -> None:
    """A quarter of 2 and of 40 slots: half a slot, and ten."""
    lane = Lane(0.25, slots)
    row = ProgramRow("old", "t")
    first, second = (QueuedCall(n, row, None, 0.0, 0.0, queued=True) for n in ("first", "second"))
    lane.line_up(first)
    assert lane.admit(100.0) is first
    lane.leave(first)
    lane.charge(saved_s + 1e-6)
    lane.line_up(second)
    assert lane.admit(100.0) is None
    assert lane.next_moment(100.0) == pytest.approx(100.0, abs=1e-3)
    lane.charge(-2e-6)
    assert lane.admit(100.0) is second


def test_without_a_share_there_is_no_lane() -> None:
    d = harness(0.0)
    d.call("a")
    d.now = 1e6
    assert d.queues.promote(d.now) == []
    assert d.queues.next_promotion(d.now) is None
    assert d.queues._lane._line == []


def test_a_policy_without_a_lane_keeps_none() -> None:
    d = Harness("program-fcfs", slots=4, lane=0.5)
    d.call("a")
    assert d.queues.promote(1e6) == []


def test_a_lane_narrower_than_a_slot_is_used_part_of_the_time() -> None:
    """0.1 of 4 slots: after a call of 10 s, the next may come when 25 s are over."""
    d = harness(0.1)
    d.now = 100.0
    call = d.call("a")
    d.call("b")
    assert d.queues.promote(d.now) == [call]
    assert d.queues.promote(d.now) == [], "one at a time"
    assert d.start() is call
    while d.now < 110.0:
        assert d.queues.promote(d.now) == []
        d.serve(call, STEP_S)
    d.end(call)
    moment = d.queues.next_promotion(d.now)
    assert moment is not None
    assert moment == pytest.approx(100.0 + (10.0 - 1.0) / 0.4, abs=0.5), "1 s was saved up"
    assert d.queues.promote(moment - 0.01) == []
    assert len(d.queues.promote(moment + 0.01)) == 1


def test_no_more_calls_are_inside_than_the_lane_is_wide() -> None:
    d = harness(0.6)
    d.now = 10.0
    for name in "abcdef":
        d.call(name)
    inside = d.queues.promote(d.now)
    assert [c.program.program_id for c in inside] == ["a", "b", "c"], "2.4 slots, rounded up"
    d.end(inside[0])
    assert [c.program.program_id for c in d.queues.promote(d.now)] == ["d"]


def queue_up(d: Harness, arrivals: Sequence[float], now: float) -> None:
    """Programs that arrived then wait ``now``, one call each."""
    for index, at in enumerate(arrivals):
        d.now = at
        d.call(f"p{index}")
    d.now = now


@pytest.mark.parametrize(("old", "young"), [(0.0, 98.0), (99.0, 100.0)])
def test_the_lane_grows_while_the_oldest_are_left_behind(old: float, young: float) -> None:
    """Four have waited for 100 s, those after them for 2 s: the mean is 18 s, at first."""
    d = harness(0.25, slots=8)
    queue_up(d, [*[old] * 4, *[young] * 20], now=100.0)
    inside = d.queues.promote(d.now)
    assert [c.program.program_id for c in inside] == ["p0", "p1", "p2", "p3"], "not 2, nor more"


def test_the_lane_does_not_grow_where_all_wait_alike() -> None:
    for arrivals in ([0.0] * 9, [100.0] * 9, [0.0, 0.0, 98.0]):
        d = harness(0.25, slots=8)
        queue_up(d, arrivals, now=100.0)
        assert len(d.queues.promote(d.now)) == 2, "or where few wait, whose ages say little"


def test_a_grown_lane_is_paid_at_the_rate_that_it_has_grown_to() -> None:
    """A share of 1 slot; 4 are served, while others as old still wait."""
    d = harness(0.1, slots=10)
    queue_up(d, [*[0.0] * 8, *[98.0] * 40], now=100.0)
    inside = d.queues.promote(d.now)
    assert len(inside) == 4
    for _ in range(40):
        d.now += 0.25
        for call in inside:
            d.queues.charge(call, 0.25, d.now)
        assert d.queues.promote(d.now) == []
    assert d.queues._lane._credit > -3.0, "40 s were served; its share alone is 10 s"


def test_a_lane_never_grows_beyond_the_batch() -> None:
    d = harness(0.6, slots=4)
    queue_up(d, [*[0.0] * 8, *[98.0] * 40], now=100.0)
    assert len(d.queues.promote(d.now)) == 4


def test_a_lanes_call_preempts_and_is_never_preempted() -> None:
    d = harness(0.5, slots=2)
    d.now = 1.0
    d.table.start_program("big", "t", 0.0).path_s = 60.0
    d.call("small")
    small = d.start()
    big = d.call("big")
    assert d.victims() == []
    assert d.queues.promote(d.now) == [big]
    assert d.victims() == [small], "for the lane, whatever its own place"
    d.preempt(small)
    assert d.start() is big
    d.serve(big, 500.0)
    assert d.victims() == []
    assert big.level == LANE.level, "however long it is served"


def test_an_idle_lane_saves_up_little() -> None:
    d = harness(0.25)
    d.now = 1e6
    call = d.call("a")
    assert d.queues.promote(d.now) == [call]
    d.start()
    d.queues.charge(call, 3.0, d.now)
    d.end(call)
    d.call("b")
    assert d.queues.promote(d.now + 1.9) == []
    assert len(d.queues.promote(d.now + 2.1)) == 1


@pytest.mark.parametrize("lane", [0.1, 0.4])
def test_a_lane_is_intact_after_aborts(lane: float) -> None:
    d, rng = harness(lane), random.Random(2)
    for index in range(3000):
        d.now += 0.05
        calls = list(d.queues.calls.values())
        if rng.random() < 0.5 and len(calls) < 30:
            d.call(f"p{index}")
        elif calls and rng.random() < 0.7:
            d.end(rng.choice(calls), program=True)
        elif d.running and rng.random() < 0.5:
            d.preempt(rng.choice(d.running))
        elif len(d.running) < 4 and d.queues.head() is not None:
            d.start()
        for call in d.running:
            d.queues.charge(call, 0.05, d.now)
        d.queues.promote(d.now)
        d.check_integrity()
    for call in list(d.queues.calls.values()):
        d.end(call, program=True)
    d.check_integrity()
    assert d.queues._lane._inside == 0


# -- nobody starves --------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """A program, those that were there before it, and those that come after it."""

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
        width = math.ceil(max(rate, min(4.0 * rate, self.batch)))  # grown as far as it may
        waits = len(self.program.calls) + preemptions
        calls = waits * (1 + width) + sum(len(p.calls) for p in self.before)
        longest = max((p.output_tokens for p in self.later), default=0) * STEP_S
        lump = CHARGED_EVERY_S + STEP_S
        paid = work_s([*self.before, self.program]) + waits * width * (longest + lump)
        steps = SchedulerConfig().min_residency_steps + 2 + width
        return (paid + max(1.0, rate)) / rate + calls * steps * STEP_S


def work_s(programs: Sequence[ProgramShape]) -> float:
    return sum(program.output_tokens for program in programs) * STEP_S


def chain(name: str, steps: Sequence[int], arrives: int = 0, type: str = "t") -> ProgramShape:
    calls = (CallShape(n, after=(i - 1,) if i else ()) for i, n in enumerate(steps))
    return ProgramShape(name, type, tuple(calls), arrives * STEP_S)


def stream(seed: int, count: int, longest: int, batch: int) -> list[ProgramShape]:
    """Later programs, at once or dense enough to keep a batch busy without end."""
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
def test_waiting_is_bounded_whoever_comes_later(scene: Scene) -> None:
    """The bound is `Scene.bound_s`: it does not know how many programs come later."""
    outcome = scene.run(scene.lane)
    assert outcome.waiting_s <= scene.bound_s(outcome.preemptions)


def flood(lane: float) -> Scene:
    """A program of 20 s in front of 400 s of work in programs of 1.2 s at most."""
    before = [chain("before", [50])]
    return Scene(before, chain("x", [200]), stream(7, 2400, 12, 4), 4, lane)


@pytest.mark.parametrize("lane", [0.1, 0.25, 0.5])
def test_the_bound_tells_a_lane_from_none(lane: float) -> None:
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
