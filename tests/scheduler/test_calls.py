"""The fields and states of a call, and the requests to its policy."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.errors import InvariantError
from agentrt.scheduler import (
    EngineProgram,
    Policy,
    ProcessTable,
    ProgramTotals,
    QueuedCall,
    SchedulerConfig,
    SchedulerCore,
)
from agentrt.scheduler.admission import Admission, Admit, Capacity, Keep
from agentrt.scheduler.events import (
    CallArrived,
    CallEvent,
    CallFinished,
    CallPreempted,
    CallReranked,
    CallStarted,
    InterruptEnded,
    InterruptStarted,
    Part,
    PreemptionReason,
    ProgramEnded,
    StepFinished,
)
from agentrt.scheduler.policies.adaptive import Adaptive
from agentrt.scheduler.queues import Priority
from agentrt.scheduler.state import TRANSITIONS, CallState
from tests.scheduler.harness import Harness
from tests.scheduler.integrity import check_queues

ALLOWED = {
    "unqueued": {"waiting", "not admitted", "deferred", "loading", "running", "ended"},
    "waiting": {"unqueued"},
    "not admitted": {"unqueued", "waiting"},
    "deferred": {"unqueued"},
    "loading": {"unqueued", "running", "ended"},
    "running": {"unqueued", "ended"},
    "ended": set(),
}


def a_call(name: str = "c", program: str = "p") -> QueuedCall:
    return QueuedCall(name, EngineProgram(program, "t"), None, None, 0.0)


@pytest.mark.parametrize("state", CallState)
def test_a_call_changes_states_only_as_the_table_allows(state: CallState) -> None:
    for following in CallState:
        call = a_call()
        call.state = state
        if following.value in ALLOWED[state.value]:
            call.change_state(following)
            assert call.state is following
            continue
        with pytest.raises(InvariantError) as refused:
            call.change_state(following)
        assert str(refused.value).startswith(
            f"call c cannot go from {state.value!r} to {following.value!r}; its last events: none"
        )
        assert call.state is state


@given(st.lists(st.sampled_from(CallState), max_size=30))
def test_random_transitions_follow_the_table(wanted: list[CallState]) -> None:
    """An ended call stays ended, and a running call was taken from its queue before, or loaded."""
    call = a_call()
    walk = [call.state]
    for state in wanted:
        if state in TRANSITIONS[call.state]:
            call.change_state(state)
            walk.append(state)
        else:
            with pytest.raises(InvariantError):
                call.change_state(state)
        assert call.queued == (call.state.value in ("waiting", "not admitted", "deferred"))
    assert CallState.ENDED not in walk[:-1]
    steps = pairwise(walk)
    assert all(
        before in (CallState.UNQUEUED, CallState.LOADING)
        for before, after in steps
        if after is CallState.RUNNING
    )


def test_a_new_call_is_ranked_and_known_to_its_program() -> None:
    core, row = SchedulerCore(SchedulerConfig("plas")), EngineProgram("p", "t", service_s=0.7)
    call = QueuedCall("a", row, "item", 2.5, 7.0)
    core.handle(CallArrived(call, 7.5))
    assert (call.since, call.arrived_at, call.level) == (7.5, 7.5, 1)
    assert call.state is CallState.UNQUEUED
    assert core.calls == row.queued == {"a": call}
    assert row.resident, "without an admission all are"


def test_a_calls_times_and_counts_add_up() -> None:
    """The call waits for 3 s, is served and demoted, preempted, waits for 2 s, is promoted, and is
    served and demoted again. Then it is preempted twice more, and promoted once more.
    """
    harness = Harness("plas", quanta=(1.0, 1.0, 1.0), beta=2.0)
    core, call = harness.core, harness.call("p")
    harness.now = 3.0
    harness.start()
    harness.serve(call, 2.0)
    assert (call.waited_s, call.served_s, call.level, call.demotions) == (3.0, 2.0, 1, 1)
    harness.preempt(call)
    call.gave_way_to = "q"
    harness.now += 2.0
    assert core.promote(harness.now) == [call]
    assert (call.level, call.promoted) == (0, True)
    harness.start()
    assert (call.waited_s, call.gave_way_to, call.promoted) == (5.0, "", False)
    harness.serve(call, 1.0)
    assert (call.level, call.demotions) == (1, 2)
    for _ in range(2):
        harness.preempt(call)
        harness.now += 1.0
        if not core.promote(harness.now):
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
    core = harness.core
    assert core.queue.discard(deferred) is True
    assert core.queue.discard(deferred) is False
    core.queue.put(deferred, deferred=True)
    assert core.queue.discard(call) is True
    assert core.queue.head() is None, "it stood there before it was deferred"
    core.queue.put(call)
    assert core.queue.discard(deferred) is True
    assert deferred.state is CallState.UNQUEUED
    core.queue.release(lambda call: pytest.fail("it is gone"))
    assert core.queue.head() is call
    core.handle(CallFinished(deferred, 1.0))
    core.handle(CallFinished(deferred, 1.0))
    assert deferred.program.finished_calls == 1
    assert list(core.calls) == [call.call_id]


def test_a_deferred_call_is_offered_when_it_is_ready() -> None:
    harness = Harness("plas")
    first, second = harness.call("a"), harness.call("b")
    core = harness.core
    for expected in (first, second):
        assert core.queue.head() is expected
        core.queue.put(core.queue.take(), deferred=True)
    assert (core.queue.head(), len(core.queue)) == (None, 2)
    core.queue.release(lambda call: call is second)
    assert core.queue.head() is second
    assert (first.state, second.state) == (CallState.DEFERRED, CallState.WAITING)
    core.queue.release(lambda call: True)
    assert core.queue.head() is first


class Noting(Policy):
    """A policy that notes the time and the call of each request; every quantum is one second."""

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

    def program_ended(self, row: EngineProgram, now: float) -> None:
        self.asked.append((row.program_id, now))


def test_a_policy_is_asked_with_the_time_of_the_event() -> None:
    policy = Noting()
    harness = Harness("plas", given=policy)
    core, call = harness.core, harness.call("p")
    harness.now = 1.0
    other = harness.call("p")
    policy.left = [other]
    harness.now = 2.0
    harness.start()
    harness.serve(call, 1.0)
    core.handle(StepFinished(["of nobody", call.call_id], 1.0, 4.0))
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


def test_a_program_that_ended_before_its_calls_is_forgotten() -> None:
    harness = Harness("adaptive")
    call = harness.call("p")
    harness.start()
    harness.core.handle(ProgramEnded(ProgramTotals.of(call.program), 0.0))
    harness.serve(call, 50.0)
    policy = harness.core.policy
    assert isinstance(policy, Adaptive)
    assert policy._visits, "its priority was asked for once more"
    harness.end(call)
    assert not policy._visits


def test_when_a_call_ends_a_few_of_its_waiting_siblings_are_ranked_again() -> None:
    """These are eight waiting calls that were not promoted."""
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
    """An admission that keeps two programs and admits no other, and notes how many calls run or
    could start.
    """

    inside: list[int]

    def keep_or_expel(self, call: QueuedCall) -> bool:
        return call.program.program_id in ("p0", "p1")

    def may_stay(self, call: QueuedCall) -> bool:
        return True

    def decide(self, call: QueuedCall, now: float, running: int) -> Admit | Keep:
        self.inside.append(running)
        return Keep()


def test_an_admission_gets_the_running_and_the_runnable_calls() -> None:
    """Three calls run, one that could begin waits, one is deferred, and two are not admitted."""
    config = SchedulerConfig("plas", admission=f"{__name__}:Noted")
    core = SchedulerCore(config, capacity=Capacity(64, 4, 16))
    assert isinstance(core.admission, Noted)
    core.admission.inside = []
    calls = [a_call(str(number), f"p{number}") for number in range(4)]
    for number, call in enumerate(calls):
        core.handle(CallArrived(call, 0.0))
        core.queue.put(call, deferred=number == 1)
    assert [call.state.value for call in calls] == [
        *("waiting", "deferred", "not admitted", "not admitted")
    ]
    assert len(core.queue) == 4
    core.admit(5.0, 3)
    core.queue.take()
    core.admit(6.0, 3)
    assert core.admission.inside == [3 + 1, 3]
    for call in calls:
        core.handle(CallFinished(call, 7.0))
    check_queues(core)
    assert len(core.queue) == 0


class ByService(Policy):
    """The less service a program had, the sooner."""

    name = "by-service"
    follows_program = True

    def priority(self, call: QueuedCall, now: float) -> Priority:
        return Priority(int(call.program.service_s))


def test_a_call_that_is_not_admitted_is_ranked_again() -> None:
    config = SchedulerConfig("plas", admission=f"{__name__}:Noted")
    core = SchedulerCore(config, ByService(config), capacity=Capacity(64, 4, 16))
    assert core.admission is not None
    large, small = EngineProgram("large", "t"), EngineProgram("small", "t")
    names = {"first": large, "second": large, "stays": large, "other": small}
    calls = {name: QueuedCall(name, row, None, None, 0.0) for name, row in names.items()}
    for call in calls.values():
        core.handle(CallArrived(call, 0.0))
        core.queue.put(call)
    for ends, service_s, asked in (("first", 0.5, "second"), ("second", 3.0, "other")):
        calls[ends].served_s = service_s - large.service_s
        core.handle(CallFinished(calls[ends], 1.0))
        assert [*core.admission.candidates(1.0, 1)] == [calls[asked]]


class Hears(Part):
    """A part that notes all that it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def call_arrived(self, call: QueuedCall, now: float) -> None:
        self.heard.append(("arrived", call.call_id, now))

    def call_started(self, call: QueuedCall, now: float) -> None:
        self.heard.append(("started", call.call_id, now))

    def call_preempted(self, call: QueuedCall, now: float, reason: PreemptionReason) -> None:
        self.heard.append(("preempted", call.call_id, now, reason.value))

    def call_finished(self, call: QueuedCall, now: float) -> None:
        self.heard.append(("finished", call.call_id, now))

    def interrupt_started(self, program: EngineProgram, kind: str, name: str, now: float) -> None:
        self.heard.append(("interrupt", program.program_id, kind, name, now))

    def interrupt_ended(self, program: EngineProgram, now: float) -> None:
        self.heard.append(("answered", program.program_id, now))

    def program_ended(self, program: EngineProgram, now: float) -> None:
        self.heard.append(("program ended", program.program_id, now))


class Listens:
    """A listener that notes the names of events, and the state of their calls then."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def hear(self, event: CallEvent) -> None:
        self.heard.append((type(event).__name__, event.call.state.value))


def test_parts_and_listeners_get_each_event_once_with_its_time() -> None:
    core, part, listener = SchedulerCore(SchedulerConfig("plas", (0.5,))), Hears(), Listens()
    core.parts.append(part)
    core.listeners.append(listener)
    program = core.table.start_program("p", "t", 0.0)
    call = QueuedCall("c", program, None, None, 0.0)
    core.handle(CallArrived(call, 1.0))
    core.handle(CallStarted(call, 2.0))
    core.handle(CallPreempted(call, 3.0))
    core.handle(CallStarted(call, 4.0))
    core.handle(CallPreempted(call, 5.0, PreemptionReason.MEMORY))
    core.handle(StepFinished(["c"], 0.25, 6.0))  # of how many tokens is unknown
    core.handle(StepFinished(["c", "of nobody"], 0.5, 7.0, 9))
    core.handle(InterruptStarted(program, "tool", "grep", 8.0))
    core.handle(InterruptEnded(program, "tool", 9.0))
    program.service_s = 1.0
    core.handle(ProgramEnded(ProgramTotals.of(program), 10.0))
    core.handle(CallFinished(call, 12.0))
    assert (call.state, call.since) == (CallState.ENDED, None)
    assert part.heard == [
        ("arrived", "c", 1.0),
        ("started", "c", 2.0),
        ("preempted", "c", 3.0, "slot"),
        ("started", "c", 4.0),
        ("preempted", "c", 5.0, "memory"),
        ("interrupt", "p", "tool", "grep", 8.0),
        ("answered", "p", 9.0),
        ("program ended", "p", 10.0),
        ("finished", "c", 12.0),
        ("program ended", "p", 12.0),
    ]
    assert listener.heard == [
        ("CallArrived", "unqueued"),
        ("CallStarted", "running"),
        ("CallPreempted", "running"),
        ("CallStarted", "running"),
        ("CallPreempted", "running"),
        ("CallReranked", "unqueued"),
        ("CallFinished", "unqueued"),
    ]
    assert [name for name, _ in call.events] == [name for name, _ in listener.heard]


def test_the_cores_own_events_are_refused() -> None:
    with pytest.raises(InvariantError, match="CallReranked is reported by the core"):
        SchedulerCore(SchedulerConfig("plas")).handle(CallReranked(a_call(), 0.0))


def test_queues_without_slots_have_no_lane() -> None:
    core = SchedulerCore(SchedulerConfig("adaptive"))
    call = a_call()
    core.handle(CallArrived(call, 0.0))
    core.queue.put(call)
    assert core.promote(1e6) == []


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
def test_gaps_are_learned_only_if_they_are_used(settings: dict[str, Any], learned: bool) -> None:
    capacity = Capacity(10, 16, 4)
    core = SchedulerCore(SchedulerConfig(policy="fcfs", **settings), capacity=capacity)
    row = ProcessTable(EngineProgram).start_program("p", "t", 0.0)
    for n, now in enumerate((0.0, 3.0)):
        call = QueuedCall(f"p/{n}", row, None, None, now)
        core.handle(CallArrived(call, now))
        call.steps = 1
        core.handle(CallFinished(call, now))
    assert bool([*core.learned.gaps.entries()]) is core.learns is learned
    assert SchedulerCore(SchedulerConfig(policy="adaptive", **settings), capacity=capacity).learns


def test_an_engine_without_a_cache_keeps_nothing_of_programs() -> None:
    core = SchedulerCore(SchedulerConfig(policy="fcfs"))
    row = ProcessTable(EngineProgram).start_program("p", "t", 0.0)
    core.handle(CallArrived(QueuedCall("p/0", row, None, None, 0.0), 0.0))
    assert row.cached is None
