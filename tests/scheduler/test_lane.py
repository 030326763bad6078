"""The lane: which calls it promotes and when, and that no program starves under a policy with a
lane.
"""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.scheduler import EngineProgram, QueuedCall
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.events import StepFinished
from agentrt.scheduler.policies.adaptive import AgeingShare
from agentrt.scheduler.state import CallState
from tests.scheduler.harness import Harness

STEP_S = 0.1


def harness(lane: float, slots: int = 4) -> Harness:
    return Harness("adaptive", slots=slots, lane=lane)


def waiting(name: str, started_at: float = 0.0) -> QueuedCall:
    row = EngineProgram(name, "t", started_at=started_at)
    return QueuedCall(name, row, None, None, started_at, key=(0, 0.0, int(name)))


def lane_of(*started_at: float, slots: int = 8) -> tuple[AgeingShare, list[QueuedCall]]:
    """A lane of a quarter of the slots, and the calls in its line."""
    lane = AgeingShare(SchedulerConfig("adaptive", lane=0.25), slots)
    calls = [waiting(str(n), at) for n, at in enumerate(started_at)]
    for call in calls:
        lane.waits(call)
    return lane, calls


def promoted(lane: AgeingShare, now: float) -> QueuedCall | None:
    """Return the call that the lane promotes, which is then marked as promoted."""
    if (call := lane.promote(now)) is not None:
        call.promoted = True
    return call


# -- whom it promotes, and when --------------------------------------------------------


def test_the_oldest_programs_call_is_promoted_and_goes_first() -> None:
    d = harness(0.25)
    d.live("past", 1.0, "another")
    d.table.start_program("big", "t", 0.0).path_s = 60.0
    big = d.call("big")
    d.now = 10.0
    d.call("small")
    assert d.order() == ["small", "big"]
    assert d.core.promote(d.now) == [big]
    assert big.level == d.lane.priority.level
    assert d.order() == ["big", "small"]


@pytest.mark.parametrize(("slots", "saved_s"), [(2, 1.0), (40, 10.0)])
def test_an_idle_lane_accumulates_a_second_of_its_rate_or_of_a_slot(
    slots: int, saved_s: float
) -> None:
    """A quarter of 2 and of 40 slots: half a slot, and ten."""
    lane, (first,) = lane_of(0.0, slots=slots)
    second = waiting("1")
    assert promoted(lane, 100.0) is first
    lane.charged(first, saved_s + 1e-6)
    lane.left(first)
    lane.waits(second)
    assert promoted(lane, 100.0) is None
    assert lane.next_moment(100.0) == pytest.approx(100.0, abs=1e-3)
    lane.charged(first, -2e-6)
    assert promoted(lane, 100.0) is second


def test_without_a_share_there_is_no_lane() -> None:
    d = harness(0.0)
    d.call("a")
    d.now = 1e6
    assert d.core.promote(d.now) == []
    assert d.core.next_promotion(d.now) is None
    assert not isinstance(d.core.promoter, AgeingShare)


def test_a_share_of_no_slots_promotes_nobody() -> None:
    lane, _ = lane_of(0.0, slots=0)
    assert promoted(lane, 9.0) is None
    assert lane.next_moment(9.0) is None


def test_a_policy_without_a_lane_keeps_none() -> None:
    d = Harness("program-fcfs", slots=4, lane=0.5)
    d.call("a")
    assert d.core.promote(1e6) == []


def test_a_lanes_call_preempts_and_is_never_preempted() -> None:
    d = harness(0.5, slots=2)
    d.now = 1.0
    d.table.start_program("big", "t", 0.0).path_s = 60.0
    d.call("small")
    small = d.start()
    big = d.call("big")
    assert d.victims() == []
    assert d.core.promote(d.now) == [big]
    assert d.victims() == [small], "for the lane, whatever its own place"
    d.preempt(small)
    assert d.start() is big
    d.serve(big, 500.0)
    assert d.victims() == []
    assert big.level == d.lane.priority.level, "however long it is served"


def test_a_lanes_call_keeps_its_place_and_gets_a_new_quantum() -> None:
    d = harness(0.25)
    d.now = 10.0
    call = d.call("a")
    assert d.core.promote(d.now) == [call]
    d.start()
    key = call.key
    d.core.handle(StepFinished([call.call_id], 500.0, d.now))
    assert call.key is key
    assert call.quantum_ends_s == 500.0 + d.lane.priority.quantum_s


@pytest.mark.parametrize(
    ("policy", "lane"), [("adaptive", 0.1), ("adaptive", 0.4), ("atlas", 0.0), ("two-level", 0.0)]
)
def test_the_lane_is_consistent_after_aborts(policy: str, lane: float) -> None:
    d, rng = Harness(policy, slots=4, lane=lane, beta=0.5), random.Random(2)
    for index in range(3000):
        d.now += 0.05
        calls = list(d.core.calls.values())
        if rng.random() < 0.5 and len(calls) < 30:
            d.call(f"p{index}")
        elif calls and rng.random() < 0.7:
            d.end(rng.choice(calls), program=True)
        elif d.running and rng.random() < 0.5:
            d.preempt(rng.choice(d.running), hold=rng.random() < 0.3)
        elif len(d.running) < 4 and d.core.queue.head() is not None:
            d.start()
        for call in d.running:
            d.core.handle(StepFinished([call.call_id], 0.05, d.now))
        d.core.queue.release(lambda call: rng.random() < 0.7)
        d.core.promote(d.now)
        d.check_integrity()
    for call in list(d.core.calls.values()):
        d.end(call, program=True)
    d.check_integrity()
    assert (len(d.core.queue), len(d.table)) == (0, 0)


# -- by itself -------------------------------------------------------------------------


def test_the_lane_starts_without_credit() -> None:
    lane, calls = lane_of(0.0)
    assert promoted(lane, 0.0) is None
    assert lane.next_moment(0.0) == 0.0
    assert promoted(lane, 0.25) is calls[0]


def test_a_call_enters_the_lanes_line_once_and_never_while_it_is_in_the_lane() -> None:
    lane, (call,) = lane_of(0.0)
    lane.waits(call)
    assert len(lane._line) == 1
    assert promoted(lane, 9.0) is call
    lane.waits(call)
    assert (len(lane._line), lane._inside) == (0, 1)
    lane.left(call)
    assert lane._inside == 0


def test_a_call_that_started_or_ended_leaves_the_line() -> None:
    lane, calls = lane_of(1.0, 2.0, 3.0)
    lane.started(calls[0], 4.0)
    lane.left(calls[1])
    assert list(lane._line) == [calls[2]]
    assert promoted(lane, 4.0) is calls[2]


def test_a_full_lane_and_an_empty_line_announce_no_promotion() -> None:
    lane, calls = lane_of(0.0, 0.0, 0.0)
    assert [promoted(lane, 9.0) for _ in range(3)] == [calls[0], calls[1], None]
    assert lane.next_moment(9.0) is None
    lane.left(calls[0])
    assert lane.next_moment(9.0) == 9.0
    lane.left(calls[2])
    assert lane.next_moment(9.0) is None
    assert promoted(lane, 9.0) is None


def test_a_call_that_is_no_longer_admitted_leaves_the_lane_and_lines_up_again() -> None:
    lane, calls = lane_of(0.0, 1.0)
    calls[0].state = CallState.NOT_ADMITTED
    assert promoted(lane, 9.0) is calls[1]
    calls[0].state = CallState.WAITING
    assert promoted(lane, 9.0) is None
    lane.waits(calls[0])
    assert promoted(lane, 9.0) is calls[0]


@pytest.mark.parametrize("quantum_s", [0.5, 2.0])
def test_the_lane_is_charged_twice_in_a_quantum(quantum_s: float) -> None:
    """Otherwise credit would be lost, because the credit is at most what the lane gets in two
    quanta.
    """
    lane = AgeingShare(SchedulerConfig("adaptive", (quantum_s,), lane=0.25), 8)
    assert lane.priority.quantum_s == quantum_s / 2
    lane.promote(1e6)
    assert lane._credit == 2 * quantum_s * 2


class Reference:
    """A share of the batch for the oldest programs, paid for by a bucket of slot-seconds."""

    def __init__(self, share: float, slots: int) -> None:
        self.rate, self.credit, self.at = share * slots, 0.0, 0.0
        self.line: list[QueuedCall] = []
        self.inside: list[QueuedCall] = []

    def promote(self, now: float) -> QueuedCall | None:
        """The oldest program's call, while credit is left and the lane is not full."""
        self.credit = min(self.credit + self.rate * (now - self.at), max(1.0, self.rate))
        self.at = now
        if self.credit <= 0 or len(self.inside) >= math.ceil(self.rate) or not self.line:
            return None
        oldest = min(self.line, key=lambda call: call.program.started_at)
        self.line.remove(oldest)
        self.inside.append(oldest)
        return oldest

    def next_moment(self, now: float) -> float | None:
        """The time at which the bucket is above zero again."""
        if len(self.inside) >= math.ceil(self.rate) or not self.line:
            return None
        return max(now, self.at - self.credit / self.rate)


@settings(max_examples=70, deadline=None)
@given(
    st.sampled_from([0.0, 0.125, 0.25, 0.75]),
    st.sampled_from([1, 2, 4, 8]),
    st.lists(
        st.tuples(
            st.sampled_from(["arrive"] * 5 + ["look", "look", "serve", "serve", "end"]),
            st.integers(0, 15),
            st.sampled_from([0.0, 0.0, 0.25, 0.5, 4.0, 32.0]),
        ),
        min_size=20,
        max_size=80,
    ),
)
def test_the_lane_promotes_as_the_reference(
    share: float, slots: int, story: list[tuple[str, int, float]]
) -> None:
    """Only the lane's calls run here, and none is aborted, so that all others are in line."""
    harness, lane = Harness("adaptive", slots=slots, lane=share), Reference(share, slots)
    for event, number, seconds in story:
        harness.now += seconds if event != "serve" else 0.0
        running = harness.running
        if event == "arrive":
            lane.line.append(harness.call(f"p{number}"))
        elif event == "serve" and running:
            served = running[number % len(running)]
            harness.serve(served, seconds)
            lane.credit -= seconds
        elif event == "end" and lane.inside:
            harness.end(lane.inside.pop(number % len(lane.inside)))
        elif event == "look":
            for call in harness.core.promote(harness.now):
                assert share > 0
                assert call is lane.promote(harness.now)
                assert harness.start() is call
            assert share == 0 or lane.promote(harness.now) is None
        assert all(call.promoted and call.level < -1_000_000 for call in lane.inside)
        assert not any(call.promoted for call in lane.line)
        moment = lane.next_moment(harness.now) if share else None
        assert harness.core.next_promotion(harness.now) == (moment and pytest.approx(moment))


def test_a_streaming_session_does_not_hold_up_the_lane() -> None:
    """Between two turns, the session waits for its client without a limit."""
    lane, (session, call) = lane_of(0.0, 1.0)
    session.resumable = True
    lane._line.discard(session)
    lane.waits(session)
    assert promoted(lane, 10.0) is call
