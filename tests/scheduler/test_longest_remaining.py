"""The policy longest-remaining: the longest expected service first, without preemption."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentrt.scheduler import SchedulerConfig
from agentrt.scheduler.config import LONGEST_REMAINING
from tests.scheduler.admitting import Admitting, Counted
from tests.scheduler.harness import Harness

ENOUGH = 60
"""Ended programs that settle how long programs of a type are."""


def taught(policy: str = LONGEST_REMAINING) -> Harness:
    """A harness that has seen short programs of 1 s and long ones of 64 s."""
    harness = Harness(policy)
    for index in range(ENOUGH):
        harness.live(f"s{index}", 1.0, "short")
        harness.live(f"l{index}", 64.0, "long")
    return harness


def test_programs_of_a_long_type_go_first() -> None:
    harness = taught()
    for name, type in (("a", "short"), ("b", "new"), ("c", "long"), ("d", "short")):
        harness.call(name, type=type)
    assert harness.order() == ["c", "b", "a", "d"]


def test_the_remaining_service_counts_and_not_the_whole() -> None:
    harness = taught()
    harness.call("old", type="long")
    call = harness.start()
    harness.serve(call, 63.0)
    harness.preempt(call)
    harness.call("new", type="long")
    assert harness.order() == ["new", "old"]


def test_a_size_hint_tells_programs_of_a_type_apart() -> None:
    harness = Harness(LONGEST_REMAINING)
    for index in range(ENOUGH):
        for name, hint, seconds in (("s", 100.0, 1.0), ("l", 6400.0, 64.0)):
            row = harness.table.start_program(f"{name}{index}", "t", harness.now)
            row.size_hint = hint
            harness.live(row.program_id, seconds)
    for name, hint in (("a", 100.0), ("b", 6400.0)):
        harness.table.start_program(name, "t", harness.now).size_hint = hint
        harness.call(name)
    assert harness.order() == ["b", "a"]


def test_equal_programs_keep_their_order_so_that_samples_stay_together() -> None:
    """Programs 0 to 3 are samples of an input, 4 to 7 of the next."""
    harness = taught()
    names = [str(index) for index in range(8)]
    for name in names:
        harness.now += 0.01
        harness.call(name, type="long")
    assert harness.order() == names


def test_it_retains_and_admits_by_memory_unless_others_are_named() -> None:
    config = SchedulerConfig(LONGEST_REMAINING)
    assert (config.retention, config.admission) == ("cost", "memory")
    named = SchedulerConfig(LONGEST_REMAINING, retention="lru", admission="off")
    assert (named.retention, named.admission) == ("lru", "off")


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["call", "start", "serve", "end", "end program"]),
        st.integers(0, 5),
        st.floats(0.01, 40.0),
    ),
    max_size=60,
)


def preempted(policy: str, actions: list[tuple[str, int, float]]) -> list[str]:
    """Feed the events to a batch that is always full, and return which calls it preempts."""
    harness = taught(policy)
    victims: list[str] = []
    for action, number, seconds in actions:
        name = f"p{number}"
        if action == "call":
            harness.call(name, type="long" if number % 2 else "short")
        elif action == "start" and harness.core.queue.head() is not None:
            harness.start()
        elif harness.running and action in ("serve", "end", "end program"):
            call = harness.running[number % len(harness.running)]
            if action == "serve":
                harness.serve(call, seconds)
            else:
                last = len(call.program.queued) == 1
                harness.end(call, program=action == "end program" and last)
        victims += [call.call_id for call in harness.victims()]
    return victims


@given(ACTIONS)
def test_no_running_call_is_preempted_for_a_slot(actions: list[tuple[str, int, float]]) -> None:
    assert preempted(LONGEST_REMAINING, actions) == []


def test_the_default_would_preempt_in_such_a_batch() -> None:
    """So the property above can fail."""
    actions = [("call", 1, 0.0), ("start", 0, 0.0), ("serve", 0, 1.0), ("call", 0, 0.0)]
    assert preempted("adaptive", actions)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 6)), min_size=2, max_size=12))
def test_a_program_keeps_its_place_in_memory_until_it_ends(
    programs: list[tuple[int, int]],
) -> None:
    """While the contexts of the residents fit, none is expelled for a program that waits."""
    engine = Counted(policy=LONGEST_REMAINING, lane=0.0)
    left = {}
    for index, (blocks, turns) in enumerate(programs):
        left[f"p{index}"] = turns
        engine.wants(f"p{index}", blocks)
    inside: set[str] = set()
    for _ in range(sum(left.values()) + len(left) + 5):
        engine.step(seconds=60.0)
        now = engine.inside()
        assert inside <= now, "a resident was expelled before its end"
        inside = now
        for call in [*engine.running]:
            program = call.program.program_id
            engine.end(call.call_id, output=0)
            left[program] -= 1
            if left[program]:
                engine.wants(program, 1)
            else:
                engine.end_program(program)
                inside.discard(program)
    assert not any(left.values()), "not all programs have ended"


def test_the_longest_that_fits_is_admitted_first() -> None:
    engine = Admitting("memory", policy=LONGEST_REMAINING, blocks=100, slots=8)
    engine.learned.costs.step(0.01, 1, 1)
    engine.learned.costs.step(1.01, 1025, 1)
    for name in ("short", "long"):
        engine.table.start_program(name, name, engine.now)
    for type, seconds in (("short", 1.0), ("long", 64.0)):
        for index in range(ENOUGH):
            row = f"{type}{index}"
            call = engine.arrive(row, 16, type)
            engine.step(seconds)
            engine.end(call)
            engine.end_program(row)
    engine.arrive("resident", 900, "long")
    engine.step()
    engine.arrive("short", 900, "short")
    engine.arrive("long", 900, "long")
    engine.end("resident/" + str(2 * ENOUGH))
    engine.end_program("resident")
    assert engine.step() == [f"long/{2 * ENOUGH + 2}"]
