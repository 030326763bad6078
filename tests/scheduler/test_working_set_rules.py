"""The working set's rules one by one, on cases small enough to be counted by hand (`Counted`)."""

from __future__ import annotations

import pytest

from agentrt.scheduler.admission.memory import FIFO_EVERY
from tests.scheduler.admitting import BLOCK, KIND, TOKEN_S, Counted

WORTH_S = 100 * BLOCK * TOKEN_S
"""What the whole cache takes to compute anew."""


# -- what all of a type share ----------------------------------------------------------


def test_a_shared_prefix_is_claimed_by_the_first_and_given_back_by_the_last() -> None:
    engine = Counted(slots=4)
    engine.working.growth.first_call(KIND, 10 * BLOCK)
    calls = {name: engine.wants(name, 31) for name in "abcd"}
    engine.step()
    claimed = [engine.working.claimed]
    for name, call in calls.items():
        engine.end(call, output=0)
        engine.end_program(name)
        claimed.append(engine.working.claimed)
    # 21 each, and 10 for the prefix.
    assert claimed == [94, 73, 52, 31, 0]


@pytest.mark.parametrize(("there", "fits"), [(64, True), (65, False)])
def test_a_program_that_would_bring_its_types_prefix_needs_room_for_it(
    there: int, fits: bool
) -> None:
    engine = Counted(slots=1)
    engine.working.growth.call_ended(("default", "u"), 0)
    engine.working.growth.first_call(KIND, 10 * BLOCK)
    engine.wants("u", there, "u")
    engine.step()
    engine.wants("a", 31)
    engine.let_in()
    assert engine.working.has("a") is fits


def test_whose_prefix_is_there_needs_no_room_for_it() -> None:
    engine = Counted(slots=2)
    engine.working.growth.first_call(KIND, 10 * BLOCK)
    for name, blocks in (("a", 31), ("b", 31), ("c", 53)):
        engine.wants(name, blocks)
    engine.let_in(0)
    for _ in range(2):
        engine.let_in(2)
    assert engine.working.claimed == 10 + 21 + 21 + 43


def test_a_prefix_is_learned_from_first_calls_alone() -> None:
    engine = Counted()
    first = engine.wants("a", 9)
    engine.step()
    engine.end(first, output=0)
    engine.wants("a", 9)
    engine.contexts["b"] = 64  # two calls at once: which was the first?
    engine.wants("b", 2)
    engine.wants("b", 2)
    engine.step()
    assert engine.working.growth.shared(KIND) == 0


# -- who waits for something else than a call ------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "kept_s"), [(None, WORTH_S), (WORTH_S, WORTH_S), (2 * WORTH_S, 0.0)]
)
def test_a_tools_program_is_kept_for_what_its_blocks_are_worth(
    seconds: float | None, kept_s: float
) -> None:
    engine = Counted()
    call = engine.wants("a", 60)
    engine.step(0.0)
    engine.now = 100.0
    engine.end(call, output=0)
    engine.admission.interrupt_began("a", "tool", seconds, engine.now)
    engine.wants("b", 60)
    if kept_s:
        engine.now += kept_s - 1e-3
        engine.let_in()
        assert engine.inside() == {"a"}
        engine.now = 100.0 + kept_s
    engine.let_in()
    assert engine.inside() == {"b"}


def test_an_earlier_tool_does_not_count_once_the_program_was_back() -> None:
    engine = Counted()
    for at in (0.0, WORTH_S / 2):
        engine.now = at
        call = engine.wants("a", 60)
        engine.contexts.clear()
        engine.step(0.0)
        engine.end(call, output=0)
        if not at:
            engine.admission.interrupt_began("a", "tool", None, engine.now)
    engine.wants("b", 60)
    engine.now = WORTH_S
    engine.let_in()
    assert engine.inside() == {"a"}
    engine.now = 1.5 * WORTH_S
    engine.let_in()
    assert engine.inside() == {"b"}


def test_who_comes_back_goes_before_new_ones_of_its_level_and_the_engine_is_told() -> None:
    engine = Counted()
    call = engine.wants("a", 60)
    engine.step()
    engine.end(call, output=0)
    assert engine.working.changed == {"a": True}
    engine.admission.interrupt_began("a", "human", None, engine.now)
    assert engine.working.changed == {"a": False}
    other = engine.wants("b", 60)
    engine.step()
    engine.wants("c", 60)
    engine.contexts.clear()
    engine.wants("a", 60)
    engine.end(other, output=0)
    engine.end_program("b")
    engine.let_in()
    assert engine.inside() == {"a"}


def test_the_target_counts_from_a_calls_own_arrival() -> None:
    engine = Counted(ttft_target=10.0)
    engine.wants("a", 60)
    engine.step(5.0)
    engine.wants("b", 60)
    engine.now = 14.9
    engine.let_in()
    assert engine.inside() == {"a"}
    engine.now = 15.0
    engine.let_in()
    assert engine.inside() == {"a", "b"}


def test_a_call_that_runs_makes_its_program_a_member() -> None:
    """vLLM has queues of its own, which nobody is kept out of."""
    engine = Counted()
    engine.wants("a", 60)
    engine.step()
    outside = engine.wants("b", 60)
    engine.admission.call_began(engine.queues.calls[outside], 0, engine.now)
    assert engine.inside() == {"a", "b"}


# -- who gives way ---------------------------------------------------------------------


class Turns(Counted):
    """Two members of 41 blocks, and whoever comes third has no room. Levels begin at 1 second.

    A context takes 0.625 seconds to compute, and a turn of one of two is 10 seconds.
    """

    def __init__(self, quantum_s: float = 1.0) -> None:
        super().__init__(slots=2, policy="plas", quanta=(quantum_s, 1000.0), beta=float("inf"))

    def begin(self) -> None:
        self.a = self.wants("a", 41)
        self.wants("c", 41)
        self.step(0.0)

    def back(self, served_s: float) -> bool:
        """Program a is served for so long, and comes back: whether it goes on."""
        self.step(served_s)
        self.end(self.a, output=0)
        self.a = self.arrive("a", 0)
        return self.working.has("a")


@pytest.mark.parametrize(("served_s", "stays"), [(9.75, True), (10.0, False)])
def test_a_member_gives_way_to_a_better_level_once_it_had_its_turn(
    served_s: float, stays: bool
) -> None:
    engine = Turns()
    engine.begin()
    engine.wants("b", 41)
    assert engine.back(served_s) is stays


def test_its_next_turn_begins_when_it_comes_in_again() -> None:
    engine = Turns()
    engine.begin()
    other = engine.wants("b", 41)
    assert not engine.back(10.0)
    engine.step(0.0)
    assert engine.inside() == {"b", "c"}
    engine.end(other, output=0)
    engine.end_program("b")
    engine.step(0.0)
    engine.wants("d", 41)
    assert engine.back(9.75)
    assert not engine.back(0.25)


def test_a_program_with_another_call_there_goes_on_though_the_set_has_outgrown_the_cache() -> None:
    engine = Counted()
    calls = [engine.wants(name, 41) for name in "ab"]
    engine.step()
    engine.arrive("a", 30 * BLOCK)
    assert engine.working.claimed > 100
    engine.end(calls[1], output=0)
    engine.wants("b", 30)
    assert engine.inside() == {"a"}


@pytest.mark.parametrize(("away", "goes_on"), [(True, True), (False, False)])
def test_who_comes_back_goes_on_if_those_that_have_calls_fit(away: bool, goes_on: bool) -> None:
    engine = Counted()
    calls = {name: engine.wants(name, 31) for name in "abc"}
    engine.step()
    engine.end(calls["a"], output=0)
    if away:
        engine.end(calls["c"], output=0)
        engine.admission.interrupt_began("c", "tool", None, engine.now)
    engine.arrive("a", 30 * BLOCK)
    assert engine.working.has("a") is goes_on


def test_nobody_gives_way_to_nobody_to_who_fits_or_to_its_own_level() -> None:
    alone, beside, equal = Turns(), Turns(), Turns(100.0)
    for engine in (alone, beside, equal):
        engine.begin()
    assert alone.back(20.0)
    beside.step(20.0)
    beside.wants("b", 5)
    assert beside.back(0.0)
    equal.wants("b", 41)
    assert equal.back(20.0)


def test_age_counts_for_who_came_in_by_it_and_for_who_is_next() -> None:
    old, equal = Turns(), Turns(100.0)
    old.working.came_in = FIFO_EVERY - 1
    for engine in (old, equal):
        engine.begin()
        engine.wants("b", 41)
    assert old.back(20.0)
    equal.working.came_in = FIFO_EVERY - 1
    assert not equal.back(20.0)


def test_its_age_counts_for_one_stay_only() -> None:
    engine = Turns()
    engine.working.came_in = FIFO_EVERY - 1
    engine.begin()
    engine.end(engine.a, output=0)
    engine.admission.interrupt_began("a", "human", None, engine.now)
    engine.a = engine.arrive("a", 0)
    engine.step(0.0)
    engine.wants("b", 41)
    assert not engine.back(20.0)
