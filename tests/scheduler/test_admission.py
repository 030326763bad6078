"""Which programs may come in: by name, by a cap, by memory."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agentrt.errors import ConfigError
from agentrt.scheduler import SchedulerConfig
from agentrt.scheduler.admission import Capacity, make_admission
from agentrt.scheduler.admission.cap import Cap
from agentrt.scheduler.admission.learned import StepCost
from agentrt.scheduler.admission.memory import FIFO_EVERY, WorkingSet
from tests.scheduler.admitting import KIND, Admitting

ROOM = Capacity(100, 16, 8)


def working_set(engine: Admitting) -> WorkingSet:
    assert isinstance(engine.admission, WorkingSet)
    return engine.admission


def test_admissions_go_by_name() -> None:
    assert make_admission(SchedulerConfig(), ROOM) is None
    assert type(make_admission(SchedulerConfig(admission="cap"), ROOM)) is Cap
    elsewhere = SchedulerConfig(admission="agentrt.scheduler.admission.memory:WorkingSet")
    assert type(make_admission(elsewhere, ROOM)) is WorkingSet


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (
            {"admission": "all"},
            "unknown admission 'all'; known: off, cap, memory, or package.module:Class",
        ),
        ({"admission": "no.such:Thing"}, "'no.such:Thing' does not load"),
        ({"admission": "agentrt.scheduler.call:QueuedCall"}, "is no subclass of Admission"),
        ({"admission_cap": 0}, "admission_cap must be at least 1"),
        ({"ttft_target": 0.0}, "ttft_target must be positive seconds"),
        ({"ttft_target": math.inf}, "ttft_target must be positive seconds"),
    ],
)
def test_what_is_no_admission_is_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make_admission(SchedulerConfig(**settings), ROOM)


def test_a_cap_lets_in_so_many_programs_in_the_order_of_their_arrival() -> None:
    engine = Admitting("cap", admission_cap=2)
    a, b, c, d = (engine.arrive(name, 16) for name in "abcd")
    assert engine.step() == [a, b]
    engine.end(a)
    again = engine.arrive("a", 16)
    assert engine.step() == [again], "a program keeps its slot between its calls"
    engine.end(again)
    engine.end_program("a")
    assert engine.step() == [c]
    engine.end(b)
    engine.end(c)
    engine.end_program("b")
    engine.end_program("c")
    assert engine.step() == [d]


def test_programs_come_in_while_their_contexts_fit() -> None:
    """Of 100 blocks, 5 are kept free. Three calls of 24 blocks, with 8 for half of what a call is
    thought to generate and one for its rest, do not all fit beside each other.
    """
    engine = Admitting("memory")
    a, b, c = (engine.arrive(name, 24 * 16) for name in "abc")
    assert engine.step() == [a, b]
    assert working_set(engine).claimed == 2 * 33
    engine.end(a)
    engine.end_program("a")
    assert engine.step() == [c], "the output of a call of the type is known to be short by now"


def test_a_member_goes_on_and_its_children_with_it() -> None:
    engine = Admitting("memory")
    a, b, _c = (engine.arrive(name, 24 * 16) for name in "abc")
    engine.step()
    child = engine.arrive("a", 16)
    assert engine.step() == [child]
    engine.end(a)
    engine.end(child)
    again = engine.arrive("a", 16)
    assert again in engine.step()
    assert b in [call.call_id for call in engine.running]


def test_a_human_makes_room_at_once_and_a_tool_after_a_while() -> None:
    for what, begins in (("human", True), ("tool", False)):
        engine = Admitting("memory")
        a, b = (engine.arrive(name, 40 * 16) for name in "ab")
        assert engine.step(0.001) == [a]
        engine.end(a, output=256)
        engine.admission.interrupt_began("a", what, None, engine.now)
        # Something else runs, or the first outside would come in anyway.
        engine.queues.let_in(engine.now, 1)
        assert (engine.queues.head() is not None) is begins
        engine.now += 1.0  # the whole cache takes 40 ms to compute anew
        assert engine.step() == [b]
        engine.admission.interrupt_ended("a", what, engine.now)


def test_whoever_waits_for_the_target_comes_in() -> None:
    engine = Admitting("memory", ttft_target=10.0)
    engine.arrive("a", 60 * 16)
    late = engine.arrive("b", 60 * 16)
    for _ in range(10):
        assert late not in engine.step()
    assert engine.step() == [late]


def test_with_nothing_running_the_first_comes_in_whatever_it_needs() -> None:
    engine = Admitting("memory")
    large = engine.arrive("a", 1000 * 16)
    assert engine.step() == [large]
    assert working_set(engine).claimed == 95
    engine.end(large)
    engine.end_program("a")
    assert working_set(engine).claimed == working_set(engine).members == 0


def test_a_call_that_is_aborted_outside_leaves_nothing_behind() -> None:
    engine = Admitting("memory")
    engine.arrive("a", 80 * 16)
    waits = engine.arrive("b", 80 * 16)
    engine.step()
    assert len(engine.admission) == 1
    engine.end(waits)
    engine.end_program("b")
    assert len(engine.admission) == len(engine.queues) == 0
    assert engine.step() == []
    engine.queues.check_integrity()


def test_the_prefix_that_a_type_shares_is_counted_once() -> None:
    engine = Admitting("memory")
    first = engine.arrive("a", 40 * 16)
    engine.contexts["a"] = 0
    engine.step()
    engine.end(first)
    engine.end_program("a")
    engine.contexts["b"] = 30 * 16  # what its first call finds cached
    second = engine.arrive("b", 10 * 16)
    engine.step()
    engine.end(second)
    engine.end_program("b")
    shared = working_set(engine).growth.shared(("default", "t"))
    assert 0 < shared <= 30 * 16
    for name in "cde":  # 37 blocks and two for the output each, 15 of them shared
        engine.arrive(name, 37 * 16, fresh=True)
    engine.step()
    assert working_set(engine).members == 3


def test_a_large_program_is_passed_by_so_many_others_at_most() -> None:
    """Small ones keep coming, and the policy prefers the small."""
    engine = Admitting("memory", policy="srtf", slots=4)
    small = [engine.arrive(f"s{n}", 20 * 16) for n in range(4)]
    large = engine.arrive("large", 50 * 16)
    passed = 0
    for n in range(4, 200):
        began = engine.step()
        if large in began:
            break
        passed += len(began)
        small.append(engine.arrive(f"s{n}", 20 * 16))
        oldest = engine.running[0].call_id
        engine.end(oldest)
        engine.end_program(oldest.partition("/")[0])
    else:
        pytest.fail("the large one never came in")
    assert FIFO_EVERY - 4 <= passed < FIFO_EVERY


def test_the_lane_of_adaptive_gives_way_to_the_line_outside() -> None:
    """Sized by the batch, it would take all of a set of a few programs."""
    for admission, promoted in (("memory", 0), ("cap", 1)):
        engine = Admitting(admission, policy="adaptive", lane=0.5)
        engine.arrive("a", 16)
        assert len(engine.queues.promote(100.0)) == promoted


def test_a_call_that_is_aborted_outside_leaves_its_programs_others_there() -> None:
    engine = Admitting("memory")
    for _ in range(16):  # its type does not branch, or it would fill a free slot
        working_set(engine).growth.call_arrived(KIND, beside=False)
    engine.arrive("a", 80 * 16)
    gone, *stay = (engine.arrive("b", tokens) for tokens in (80 * 16, 16, 16))
    engine.step()
    assert (len(engine.admission), engine.admission.held) == (1, 3)
    engine.end(gone)
    assert (len(engine.admission), engine.admission.held) == (1, 2)
    engine.end("a/0")
    engine.end_program("a")
    assert engine.step() == stay
    assert (len(engine.admission), engine.admission.held) == (0, 0)


def test_a_human_makes_room_once_all_tools_have_answered() -> None:
    engine = Admitting("memory")
    call = engine.arrive("a", 16)
    engine.step()
    engine.end(call)
    admission = engine.admission
    for what in ("tool", "tool"):
        admission.interrupt_began("a", what, None, engine.now)
    admission.interrupt_ended("a", "human", engine.now)
    for members in (1, 0):
        admission.interrupt_ended("a", "tool", engine.now)
        admission.interrupt_began("a", "human", None, engine.now)
        assert working_set(engine).members == members


@pytest.mark.parametrize(
    ("calls", "beside", "stays"), [(1, True, False), (2, True, True), (1, False, True)]
)
def test_who_is_preempted_leaves_unless_others_of_it_run_or_nobody_else_is_there(
    calls: int, beside: bool, stays: bool
) -> None:
    engine = Admitting("memory")
    mine = [engine.arrive("a", 16) for _ in range(calls)]
    if beside:
        engine.arrive("b", 16)
    engine.step()
    engine.admission.call_preempted(engine.queues.calls[mine[0]], engine.now)
    assert working_set(engine).has("a") is stays


def test_a_step_tells_of_prefill_by_sixteen_tokens_of_it_and_more() -> None:
    """Of a step of 4 calls: none of prefill, one token, too few, and just enough."""
    costs = StepCost()
    costs.step(0.25, 4, 4)
    before = costs.token_s
    costs.step(9.0, 5, 4)
    costs.step(9.0, 19, 4)
    assert costs.token_s == before
    costs.step(0.75, 20, 4)
    assert costs.token_s == 0.5 / 16
    costs.step(0.125, 20, 4)
    assert costs.token_s == 0.25 / 16, "no step takes less than one without prompts"
