"""The baselines' decisions: program-fcfs, round-robin, srtf, two-level."""

from __future__ import annotations

from collections import Counter

import pytest

from agentrt.scheduler import EngineProgram, QueuedCall
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import (
    make_policy,
)
from agentrt.scheduler.policies.published import STAGED, TwoLevel
from agentrt.scheduler.queues import Priority
from tests.scheduler.harness import Harness

# -- program-fcfs ----------------------------------------------------------------------


def test_program_fcfs_ranks_by_the_arrival_of_the_program() -> None:
    harness = Harness("program-fcfs")
    for now, name in enumerate(("old", "young", "old", "middle", "young")):
        harness.now = float(now)
        harness.call(name)
    assert harness.order() == ["old", "old", "young", "young", "middle"]


def test_program_fcfs_never_preempts_for_a_slot() -> None:
    harness = Harness("program-fcfs")
    harness.table.start_program("old", "t", 0.0)
    harness.now = 1.0
    harness.call("young")
    harness.start()
    harness.call("old")
    assert harness.victims() == []


# -- round-robin -----------------------------------------------------------------------


def test_a_turn_is_a_quantum_of_service_since_the_programs_arrival() -> None:
    policy = make_policy(SchedulerConfig("round-robin", quanta=(2.0,)))
    row = EngineProgram("p", "t", attained_s=5.0)
    call = QueuedCall("c", row, None, None, 0.0)
    assert policy.priority(call, 0.0) == Priority(0, 2.0)
    row.attained_s = 6.0
    assert policy.priority(call, 0.0) == Priority(0, 1.0)
    row.attained_s = 8.5
    assert policy.priority(call, 0.0) == Priority(1, 0.5)


def test_a_lost_program_begins_a_new_turn() -> None:
    policy = make_policy(SchedulerConfig("round-robin", quanta=(2.0,)))
    call = QueuedCall("c", EngineProgram("p", "t"), None, None, 0.0)
    policy.priority(call, 0.0)
    policy.program_lost(call.program)
    call.program.attained_s = 9.0
    assert policy.priority(call, 0.0) == Priority(0, 2.0)


class Turns:
    """A slot that round-robin shares out in quanta of 1 s; programs send calls without end."""

    def __init__(self, **calls: tuple[int, float]) -> None:
        """For each program's name, the number of its parallel calls, and their length."""
        self.harness = Harness("round-robin", quanta=(1.0,))
        self.length = {name: length for name, (_, length) in calls.items()}
        self.served = Counter[str]()
        for name, (number, _) in calls.items():
            for _ in range(number):
                self.harness.call(name)

    def step(self, seconds: float = 0.25) -> str:
        """Run a call for a piece of a quantum, and return its program."""
        harness = self.harness
        for call in harness.victims():
            harness.preempt(call)
        call = harness.running[0] if harness.running else harness.start()
        name = call.program.program_id
        harness.serve(call, seconds)
        self.served[name] += 1
        if call.served_s >= self.length[name]:
            harness.end(call)
            harness.call(name)
        return name

    def run(self, steps: int) -> str:
        return "".join(self.step() for _ in range(steps))


def test_programs_take_turns_of_a_quantum_each() -> None:
    """The last program of a round may be the first of the next, and then needs no preemption."""
    turns = Turns(a=(1, 99.0), b=(1, 99.0), c=(1, 99.0))
    assert turns.run(24) == "aaaabbbbcccc" + "ccccaaaabbbb"
    for _ in range(20):
        assert set(Counter(turns.run(12)).values()) == {4}


@pytest.mark.parametrize("calls", [(8, 99.0), (1, 0.5), (8, 0.25), (3, 1.0), (2, 0.75)])
def test_a_program_cannot_gain_by_splitting_into_many_calls(calls: tuple[int, float]) -> None:
    """The calls may end before their quantum does. A turn more or less is 4 steps."""
    turns = Turns(one=(1, 99.0), split=calls)
    turns.run(400)
    head_start = 4 * calls[0]
    assert turns.served["split"] <= 200 + head_start


def test_a_new_program_starts_in_the_round_that_is_being_served() -> None:
    """It neither waits for the past rounds of others, nor gets more turns to make up for them."""
    turns = Turns(a=(1, 99.0), b=(1, 99.0))
    turns.run(80)
    turns.length["new"] = 99.0
    turns.harness.call("new")
    turns.run(48)
    assert turns.served["new"] == pytest.approx(16, abs=4)


def test_an_absent_program_accumulates_no_turns() -> None:
    turns = Turns(a=(1, 99.0), b=(1, 99.0))
    assert turns.run(8) == "aaaabbbb"
    turns.harness.end(next(c for c in turns.harness.core.calls.values() if c.queued))
    assert turns.run(80) == "b" * 80
    turns.harness.call("a")
    assert turns.run(40).count("a") == pytest.approx(20, abs=4)


def test_ended_programs_are_forgotten() -> None:
    harness = Harness("round-robin")
    harness.live("a", 3.0)
    # The policy of this harness is known to be the one that has offsets.
    assert harness.core.policy._offsets == {}  # type: ignore[attr-defined]


# -- srtf ------------------------------------------------------------------------------


def test_srtf_ranks_by_uncomputed_prompt_tokens() -> None:
    harness = Harness("srtf")
    for name, tokens in (("long", 900), ("short", 10), ("middle", 300), ("short2", 10)):
        harness.call(name, tokens)
    assert harness.order() == ["short", "short2", "middle", "long"]


def test_under_srtf_a_running_call_keeps_running() -> None:
    harness = Harness("srtf")
    harness.call("long", 900)
    running = harness.start()
    harness.call("short", 1)
    harness.serve(running, 100.0)
    assert harness.victims() == []


# -- two-level -------------------------------------------------------------------------


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{index}" for index in range(count)]


def staging(harness: Harness) -> TwoLevel:
    policy = harness.core.policy
    assert isinstance(policy, TwoLevel)
    return policy


def test_the_shortest_staged_call_runs_first() -> None:
    harness = Harness("two-level")
    for index, name in enumerate(names("p", STAGED)):
        harness.call(name, 100 - index)
    harness.call("tiny", 1)
    harness.call("tiny2", 1)
    assert harness.order() == [*reversed(names("p", STAGED)), "tiny", "tiny2"]


def test_a_call_that_leaves_the_staging_queue_makes_room_for_the_first_in_line() -> None:
    harness = Harness("two-level")
    for name in names("p", STAGED):
        harness.call(name, 100)
    for name, tokens in (("first", 50), ("second", 1), ("third", 99)):
        harness.call(name, tokens)
    started = []
    for _ in range(4):
        started.append(harness.start().program.program_id)
        assert len(staging(harness)._staged) == STAGED or not staging(harness)._line
    assert started == ["p0", "first", "second", "third"]


def test_a_staged_call_that_is_aborted_frees_its_place() -> None:
    harness = Harness("two-level")
    calls = [harness.call(name, 100) for name in names("p", STAGED)]
    harness.call("next", 1)
    assert harness.order()[0] == "p0"
    harness.end(calls[3])
    assert harness.order()[0] == "next"
    assert len(staging(harness)._staged) == STAGED


def test_a_call_that_is_aborted_in_line_is_forgotten_at_once() -> None:
    harness = Harness("two-level")
    for name in names("p", STAGED):
        harness.call(name, 100)
    gone, following = harness.call("gone", 1), harness.call("following", 1)
    harness.end(gone)
    assert list(staging(harness)._line.values()) == [following]
    harness.start()
    assert harness.order()[0] == "following"


def test_a_call_that_leaves_the_line_makes_no_room() -> None:
    policy = make_policy(SchedulerConfig("two-level"))
    calls = [
        QueuedCall(f"c{n}", EngineProgram("p", "t"), None, None, 0.0) for n in range(STAGED + 2)
    ]
    levels = [policy.priority(call, 0.0).level for call in calls]
    assert levels == [0] * STAGED + [1, 1]
    assert list(policy.call_left(calls[-1])) == []
    assert list(policy.call_left(calls[0])) == [calls[-2]]


def test_a_preempted_call_takes_no_staging_place_of_new_calls() -> None:
    harness = Harness("two-level")
    for name in names("p", STAGED + 2):
        harness.call(name, 100)
    harness.preempt(harness.start())
    assert len(staging(harness)._staged) == STAGED
    assert harness.order()[0] == "p0", "it keeps its own"
    for _ in range(STAGED + 2):
        harness.start()
    assert not staging(harness)._staged


@pytest.mark.parametrize("count", [1, STAGED, STAGED + 1, 50])
def test_no_staging_place_is_lost_with_many_arrivals(count: int) -> None:
    harness = Harness("two-level")
    for name in names("p", count):
        harness.call(name, len(name))
    for _ in range(count):
        harness.end(harness.start(), program=True)
    policy = staging(harness)
    assert not policy._staged
    assert not policy._line
