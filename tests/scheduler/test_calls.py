"""What a call carries through its life, and what its policy is told of it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from agentrt.scheduler import LevelQueues, Policy, ProgramRow, QueuedCall, SchedulerConfig
from agentrt.scheduler.admission.base import Admission, Capacity
from agentrt.scheduler.policies.base import Priority
from tests.scheduler.harness import Harness


def test_a_new_call_is_what_was_said_of_it() -> None:
    queues, row = LevelQueues(SchedulerConfig()), ProgramRow("p", "t")
    full = queues.add("a", row, "item", 2.5, 7.0, "plan", 30)
    bare = queues.add("b", row, None, None, 8.0)
    assert (full.call_id, full.program, full.item, full.path_s) == ("a", row, "item", 2.5)
    assert (full.arrived_at, full.node, full.prompt_tokens) == (7.0, "plan", 30)
    assert (full.since, full.debt_since) == (7.0, 7.0)
    assert (bare.node, bare.prompt_tokens) == ("", 0)
    assert queues.calls == {"a": full, "b": bare}


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
    assert (call.level, call.debt_waited_s, call.promoted) == (0, 0.0, True)
    harness.start()
    assert (call.waited_s, call.debt_waited_s, call.gave_way_to) == (5.0, 0.0, "")
    harness.serve(call, 1.0)
    assert (call.level, call.demotions, call.promoted) == (1, 2, False)
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
    assert (deferred.queued, deferred.deferred) == (False, False)
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
        queues.defer()
    assert (queues.head(), len(queues)) == (None, 2)
    queues.release(lambda call: call is second)
    assert (queues.head(), first.deferred, second.deferred) == (second, True, False)
    queues.release(lambda call: True)
    assert queues.head() is first


class Told(Policy):
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
    policy = Told()
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
    asked = [("p/0", 0.0), ("p/1", 1.0), ("p/1", 2.0), ("p/0", 3.0), ("p/0", 4.0)]
    assert policy.asked == [*asked, ("p/1", 5.0), ("q/2", 5.0), ("q/2", 6.0), ("p", 6.0)]


def test_a_program_that_ended_or_got_lost_is_followed_no_more() -> None:
    harness = Harness("plas", given=Told())
    queues = harness.queues
    first, second = harness.call("p"), harness.call("q")
    assert set(queues._by_program) == {"p", "q"}
    harness.end(first)
    assert queues._by_program["p"] == {}
    queues.program_ended(first.program, 1.0)
    queues.program_lost(second.program)
    queues.program_lost(second.program)
    assert queues._by_program == {}


def test_when_a_call_ends_a_few_of_its_waiting_siblings_are_asked_for() -> None:
    """Not those that run, were promoted or are in the lane; of the others, 32."""
    policy = Told()
    harness = Harness("plas", given=policy)
    runs, ended, promoted, in_lane, *waiting = (harness.call("p") for _ in range(44))
    harness.start()
    promoted.promoted = in_lane.in_lane = True
    policy.asked.clear()
    harness.now = 1.0
    harness.end(ended)
    assert policy.asked == [(call.call_id, 1.0) for call in waiting[:32]]
    assert runs.since is None


class Asked(Admission):
    """Lets nobody in, and notes how many it was told to be inside."""

    def __init__(self) -> None:
        super().__init__(SchedulerConfig(), Capacity(64, 4, 16))
        self.inside: list[int] = []

    def goes_on(self, call: QueuedCall, now: float) -> bool:
        return False

    def admits(self, call: QueuedCall, now: float, running: int) -> bool:
        self.inside.append(running)
        return False


def test_an_admission_is_told_of_those_that_run_and_of_those_that_could() -> None:
    """Three run; one that could begin waits, one is deferred, two are held."""
    admission = Asked()
    queues = LevelQueues(SchedulerConfig("plas"), admission=admission)
    for number in range(4):
        call = queues.add(str(number), ProgramRow(f"p{number}", "t"), None, None, 0.0)
        queues.put(call, deferred=number == 1, held=number > 1)
    queues.let_in(5.0, 3)
    queues.take()
    queues.let_in(6.0, 3)
    assert admission.inside == [3 + 2, 3]


def test_queues_that_are_told_of_no_slots_have_no_lane() -> None:
    queues = LevelQueues(SchedulerConfig("adaptive"))
    queues.put(queues.add("a", ProgramRow("p", "t"), None, None, 0.0))
    assert queues.promote(1e6) == []
