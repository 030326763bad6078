"""What a call carries through its life, its states, and what its policy is asked about it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.errors import InvariantError
from agentrt.scheduler import (
    LevelQueues,
    Policy,
    ProcessTable,
    ProgramRow,
    QueuedCall,
    SchedulerConfig,
)
from agentrt.scheduler.admission import Admission, Capacity
from agentrt.scheduler.events import Events
from agentrt.scheduler.policies.adaptive import Adaptive
from agentrt.scheduler.promotion import Priority
from agentrt.scheduler.records import TRANSITIONS, CallState
from tests.scheduler.harness import Harness
from tests.scheduler.integrity import check_queues

ALLOWED = {
    "aside": {"waiting", "outside", "deferred", "running", "ended"},
    "waiting": {"aside"},
    "outside": {"aside", "waiting"},
    "deferred": {"aside"},
    "running": {"aside", "ended"},
    "ended": set(),
}


def a_call(name: str = "c", program: str = "p") -> QueuedCall:
    return QueuedCall(name, ProgramRow(program, "t"), None, None, 0.0)


@pytest.mark.parametrize("state", CallState)
def test_a_call_goes_where_the_table_lets_it_and_nowhere_else(state: CallState) -> None:
    for following in CallState:
        call = a_call()
        call.state = state
        if following.value in ALLOWED[state.value]:
            call.go(following)
            assert call.state is following
            continue
        with pytest.raises(InvariantError) as refused:
            call.go(following)
        assert str(refused.value) == f"call c: {state.value} to {following.value}"
        assert call.state is state


@given(st.lists(st.sampled_from(CallState), max_size=30))
def test_no_walk_leaves_the_table(wanted: list[CallState]) -> None:
    """Once ended, always ended; and to run, a call was taken from its queue before."""
    call = a_call()
    walk = [call.state]
    for state in wanted:
        if state in TRANSITIONS[call.state]:
            call.go(state)
            walk.append(state)
        else:
            with pytest.raises(InvariantError):
                call.go(state)
        assert call.queued == (call.state.value in ("waiting", "outside", "deferred"))
    assert CallState.ENDED not in walk[:-1]
    steps = pairwise(walk)
    assert all(before is CallState.ASIDE for before, after in steps if after is CallState.RUNNING)


def test_a_new_call_is_ranked_and_known_to_its_program() -> None:
    queues, row = LevelQueues(SchedulerConfig("plas")), ProgramRow("p", "t", service_s=0.7)
    call = queues.call_arrived(QueuedCall("a", row, "item", 2.5, 7.0), 7.5)
    assert (call.since, call.arrived_at, call.level) == (7.5, 7.5, 1)
    assert call.state is CallState.ASIDE
    assert queues.calls == row.queued == {"a": call}
    assert row.member, "without an admission all are"


def test_a_calls_times_and_counts_add_up() -> None:
    """It waits for 3 s, is preempted and waits for 2 s, rises, falls, and so once more."""
    harness = Harness("plas", quanta=(1.0, 1.0, 1.0), beta=2.0)
    queues, call = harness.queues, harness.call("p")
    harness.now = 3.0
    harness.start()
    harness.serve(call, 2.0)
    assert (call.waited_s, call.served_s, call.level, call.demotions) == (3.0, 2.0, 1, 1)
    harness.preempt(call)
    call.gave_way_to = "q"
    harness.now += 2.0
    assert queues.promote(harness.now) == [call]
    assert (call.level, call.promoted) == (0, True)
    harness.start()
    assert (call.waited_s, call.gave_way_to, call.promoted) == (5.0, "", False)
    harness.serve(call, 1.0)
    assert (call.level, call.demotions) == (1, 2)
    for _ in range(2):
        harness.preempt(call)
        harness.now += 1.0
        if not queues.promote(harness.now):
            harness.start()
    assert (call.promotions, call.preemptions) == (2, 3)
    harness.now += 4.0
    harness.end(call)
    assert call.waited_s == 3.0 + 2.0 + 1.0 + 5.0
    assert call.program.waiting_s == call.waited_s
    assert (call.state, call.program.queued) == (CallState.ENDED, {})


def test_a_call_is_taken_out_once_wherever_it_stands() -> None:
    harness = Harness("plas")
    call, deferred = harness.call("a"), harness.call("b")
    queues = harness.queues
    assert queues.discard(deferred) is True
    assert queues.discard(deferred) is False
    queues.put(deferred, deferred=True)
    assert queues.discard(call) is True
    assert queues.head() is None, "it stood there before it was deferred"
    queues.put(call)
    assert queues.discard(deferred) is True
    assert deferred.state is CallState.ASIDE
    queues.release(lambda call: pytest.fail("it is gone"))
    assert queues.head() is call
    queues.remove(deferred, 1.0)
    queues.remove(deferred, 1.0)
    assert list(queues.calls) == [call.call_id]


def test_what_is_deferred_is_offered_when_it_is_ready() -> None:
    harness = Harness("plas")
    first, second = harness.call("a"), harness.call("b")
    queues = harness.queues
    for expected in (first, second):
        assert queues.head() is expected
        queues.put(queues.take(), deferred=True)
    assert (queues.head(), len(queues)) == (None, 2)
    queues.release(lambda call: call is second)
    assert queues.head() is second
    assert (first.state, second.state) == (CallState.DEFERRED, CallState.WAITING)
    queues.release(lambda call: True)
    assert queues.head() is first


class Noting(Policy):
    """Notes when it is asked, and of whom; every quantum is one second."""

    follows_program = True

    def __init__(self) -> None:
        super().__init__(SchedulerConfig())
        self.asked: list[tuple[str, float]] = []
        self.left: list[QueuedCall] = []

    def priority(self, call: QueuedCall, now: float) -> Priority:
        self.asked.append((call.call_id, now))
        return Priority(1, 1.0)

    def call_left(self, call: QueuedCall) -> Iterable[QueuedCall]:
        return self.left

    def program_ended(self, row: ProgramRow, now: float) -> None:
        self.asked.append((row.program_id, now))


def test_a_policy_is_asked_with_the_time_of_the_event() -> None:
    policy = Noting()
    harness = Harness("plas", given=policy)
    queues, call = harness.queues, harness.call("p")
    harness.now = 1.0
    other = harness.call("p")
    policy.left = [other]
    harness.now = 2.0
    harness.start()
    harness.serve(call, 1.0)
    queues.charge_step(["of nobody", call.call_id], 1.0, 4.0)
    harness.now = 5.0
    harness.end(call)
    policy.left = [harness.call("q")]
    harness.now = 6.0
    harness.end(other, program=True)
    assert call.demotions == 0, "its level is the same"
    # A second call changes what is known of the program, and so the first call's priority.
    asked = [("p/0", 0.0), ("p/1", 1.0), ("p/0", 1.0), ("p/1", 1.0)]
    asked += [("p/1", 2.0), ("p/0", 3.0), ("p/0", 4.0)]
    assert policy.asked == [*asked, ("p/1", 5.0), ("q/2", 5.0), ("q/2", 6.0), ("p", 6.0)]


def test_a_call_leaves_the_queue_for_the_first_time_once() -> None:
    policy = Noting()
    harness = Harness("plas", given=policy)
    call, other = harness.call("p"), harness.call("q")
    policy.left = [other]
    harness.start()
    assert policy.asked[-1] == (other.call_id, 0.0)
    harness.preempt(call)
    policy.asked.clear()
    harness.start()
    assert policy.asked == []


def test_nothing_is_kept_of_a_program_that_ended_before_its_calls() -> None:
    harness = Harness("adaptive")
    call = harness.call("p")
    harness.start()
    harness.table.end_program("p")
    harness.queues.program_ended(call.program, 0.0)
    harness.serve(call, 50.0)
    policy = harness.queues.policy
    assert isinstance(policy, Adaptive)
    assert policy._visits, "its priority was asked for once more"
    harness.end(call)
    assert not policy._visits


def test_when_a_call_ends_a_few_of_its_waiting_siblings_are_asked_for() -> None:
    """Not those that run or were promoted; of the others, eight."""
    policy = Noting()
    harness = Harness("plas", given=policy)
    runs, ended, promoted, *waiting = (harness.call("p") for _ in range(20))
    harness.start()
    promoted.promoted = True
    policy.asked.clear()
    harness.now = 1.0
    harness.end(ended)
    assert policy.asked == [(call.call_id, 1.0) for call in waiting[:8]]
    assert runs.since is None


class Noted(Admission):
    """Lets nobody in, and notes how many are inside."""

    inside: list[int]

    def goes_on(self, call: QueuedCall) -> bool:
        return call.program.program_id in ("p0", "p1")

    def admits(self, call: QueuedCall, now: float, running: int) -> bool:
        self.inside.append(running)
        return False


def test_an_admission_hears_of_those_that_run_and_of_those_that_could() -> None:
    """Three run; one that could begin waits, one is deferred, two are outside."""
    config = SchedulerConfig("plas", admission=f"{__name__}:Noted")
    queues = LevelQueues(config, capacity=Capacity(64, 4, 16))
    assert isinstance(queues.admission, Noted)
    queues.admission.inside = []
    calls = [a_call(str(number), f"p{number}") for number in range(4)]
    for number, call in enumerate(calls):
        queues.put(queues.call_arrived(call, 0.0), deferred=number == 1)
    assert [call.state.value for call in calls] == ["waiting", "deferred", "outside", "outside"]
    assert len(queues) == 4
    queues.let_in(5.0, 3)
    queues.take()
    queues.let_in(6.0, 3)
    assert queues.admission.inside == [3 + 1, 3]
    for call in calls:
        queues.remove(call, 7.0)
    check_queues(queues)
    assert len(queues) == 0


class ByService(Policy):
    """The less service a program had, the sooner."""

    name = "by-service"
    follows_program = True

    def priority(self, call: QueuedCall, now: float) -> Priority:
        return Priority(int(call.program.service_s))


def test_a_call_outside_is_ranked_again_there() -> None:
    config = SchedulerConfig("plas", admission=f"{__name__}:Noted")
    queues = LevelQueues(config, ByService(config), capacity=Capacity(64, 4, 16))
    assert queues.admission is not None
    large, small = ProgramRow("large", "t"), ProgramRow("small", "t")
    names = {"first": large, "second": large, "stays": large, "other": small}
    calls = {name: QueuedCall(name, row, None, None, 0.0) for name, row in names.items()}
    for call in calls.values():
        queues.put(queues.call_arrived(call, 0.0))
    for ends, service_s, asked in (("first", 0.5, "second"), ("second", 3.0, "other")):
        queues.remove(calls[ends], 1.0)
        large.service_s = service_s
        queues.call_ended(calls[ends], 1.0)
        assert [*queues.admission.asked(1.0, 1)] == [calls[asked]]


class Hears(Events):
    """A part that notes all that it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def call_arrived(self, call: QueuedCall, now: float) -> None:
        self.heard.append(("arrived", call.call_id, now))

    def call_began(self, call: QueuedCall, now: float) -> None:
        self.heard.append(("began", call.call_id, now))

    def call_preempted(self, call: QueuedCall, now: float, *, for_memory: bool) -> None:
        self.heard.append(("preempted", call.call_id, now, for_memory))

    def call_ended(self, call: QueuedCall, now: float) -> None:
        self.heard.append(("ended", call.call_id, now))

    def interrupt_began(self, row: ProgramRow, kind: str, name: str, now: float) -> None:
        self.heard.append(("interrupt", row.program_id, kind, name, now))

    def interrupt_ended(self, row: ProgramRow, now: float) -> None:
        self.heard.append(("answered", row.program_id, now))

    def program_ended(self, row: ProgramRow, now: float) -> None:
        self.heard.append(("program ended", row.program_id, now))

    def stepped(self, seconds: float, tokens: int, calls: int) -> None:
        self.heard.append(("stepped", seconds, tokens, calls))


def test_a_part_hears_of_each_event_once_and_when_it_was() -> None:
    queues, part = LevelQueues(SchedulerConfig("plas")), Hears()
    queues._parts.append(part)
    call = queues.call_arrived(a_call(), 1.0)
    queues.call_began(call, 2.0)
    queues.call_preempted(call, 3.0)
    queues.call_began(call, 4.0)
    queues.call_preempted(call, 5.0, for_memory=True)
    queues.charge_step(["c"], 0.25, 6.0)  # of how many tokens is unknown
    queues.charge_step(["c", "of nobody"], 0.5, 7.0, 9)
    queues.interrupt_began(call.program, "tool", "grep", 8.0)
    queues.interrupt_ended(call.program, 9.0)
    call.program.ended = True
    queues.program_ended(call.program, 10.0)
    queues.remove(call, 11.0)
    assert (call.state, call.since) == (CallState.ENDED, None)
    queues.call_ended(call, 12.0)
    assert part.heard == [
        ("arrived", "c", 1.0),
        ("began", "c", 2.0),
        ("preempted", "c", 3.0, False),
        ("began", "c", 4.0),
        ("preempted", "c", 5.0, True),
        ("interrupt", "p", "tool", "grep", 8.0),
        ("answered", "p", 9.0),
        ("program ended", "p", 10.0),
        ("ended", "c", 12.0),
        ("program ended", "p", 12.0),
    ]


def test_queues_that_know_of_no_slots_have_a_lane_of_none() -> None:
    queues = LevelQueues(SchedulerConfig("adaptive"))
    queues.put(queues.call_arrived(a_call(), 0.0))
    assert queues.promote(1e6) == []


@pytest.mark.parametrize(
    ("settings", "learned"),
    [
        ({}, False),
        ({"retention": "cost"}, True),
        ({"retention": "ttl"}, False),
        ({"admission": "memory"}, True),
        ({"admission": "cap"}, False),
        ({"retention": "cost", "admission": "memory"}, True),
    ],
)
def test_gaps_are_learned_where_something_asks_for_them(
    settings: dict[str, Any], learned: bool
) -> None:
    capacity = Capacity(10, 16, 4)
    queues = LevelQueues(SchedulerConfig(policy="fcfs", **settings), capacity=capacity)
    row = ProcessTable().start_program("p", "t", 0.0)
    for n, now in enumerate((0.0, 3.0)):
        call = queues.call_arrived(QueuedCall(f"p/{n}", row, None, None, now), now)
        call.steps = 1
        queues.remove(call, now)
        queues.call_ended(call, now)
    assert bool([*queues.learned.gaps.entries()]) is queues.learns is learned
    assert LevelQueues(SchedulerConfig(policy="adaptive", **settings), capacity=capacity).learns


def test_an_engine_without_a_cache_keeps_nothing_of_programs() -> None:
    queues = LevelQueues(SchedulerConfig(policy="fcfs"))
    row = ProcessTable().start_program("p", "t", 0.0)
    queues.call_arrived(QueuedCall("p/0", row, None, None, 0.0), 0.0)
    assert row.cached is None
