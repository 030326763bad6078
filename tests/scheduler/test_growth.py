"""What a chain claims for what its context will grow by."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.scheduler.events import CallPreempted
from agentrt.scheduler.learned.means import Mean
from agentrt.scheduler.learned.program_types import TypeStats
from tests.scheduler.admitting import BLOCK, KIND, WORTH_S, Admitting, Counted


@pytest.mark.parametrize(
    ("turn_s", "beside", "grown"), [(0.5, False, 4.0), (1.0, False, 2.0), (0.5, True, 0.0)]
)
def test_a_chain_claims_its_growth_while_holding_room_pays(
    turn_s: float, beside: bool, grown: float
) -> None:
    """2 blocks with each turn; the whole cache takes `WORTH_S` to compute."""
    engine = Counted()
    engine.learned.of_type(KIND).beside.add(beside)
    engine.learned.of_type(KIND).grown.add(2 * BLOCK)
    engine.learned.of_type(KIND).turn_s.add(turn_s * WORTH_S)
    engine.wants("a", 10)
    engine.let_in()
    assert engine.working.claimed == 9 + grown + 1


def known(calls: Iterable[int]) -> TypeStats:
    """Programs of the type made so many calls. Each turn takes a second and adds 100 tokens."""
    stats = TypeStats()
    for number in calls:
        stats.calls.add(number)
        stats.calls_squared.add(number * number)
    stats.grown.add(100)
    stats.turn_s.add(1.0)
    return stats


def test_programs_that_are_alike_grow_until_their_last_call() -> None:
    stats = known([40] * 256)
    growth = [stats.growth(100 * calls, calls, 8.0) for calls in (0, 10, 20, 60)]
    assert growth[:3] == [pytest.approx(800, rel=0.05)] * 3
    assert growth[3] == 0, "it should have ended by now"


def test_programs_that_end_at_any_time_grow_less_the_more_they_have() -> None:
    draw = random.Random(0)
    stats = known(1 + int(draw.expovariate(1 / 20)) for _ in range(256))
    growth = [stats.growth(context, 10, 8.0) for context in (0, 500, 1000, 2000, 4000)]
    assert growth == sorted(growth, reverse=True)
    assert growth[0] == pytest.approx(800 * math.exp(-8 / 20), rel=0.15)
    assert growth[-1] == 0, "what ends now would free more than what goes on would add"


def test_a_context_that_grows_and_then_ends_claims_its_largest_size() -> None:
    """Half of the period is expected to add more than the whole, in which most programs end."""
    stats = known([10] * 256)
    assert stats.growth(0, 0, 16.0) == stats.growth(0, 0, 8.0) > 500


@pytest.mark.parametrize("calls", [[1], [1] * 256, [10**6] * 3, [0]])
@settings(max_examples=60)
@given(st.integers(0, 10**7), st.integers(0, 10**6), st.floats(0, 1e6))
def test_growth_is_never_negative_and_never_more_than_what_the_turns_add(
    calls: list[int], context: int, finished: int, seconds: float
) -> None:
    assert 0 <= known(calls).growth(context, finished, seconds) <= 100 * seconds + 1


def test_what_an_older_history_does_not_have_leaves_the_chance_of_an_end_constant() -> None:
    stats = known([])
    stats.calls = Mean(256.0, 20.0)
    assert stats.growth(0, 5, 8.0) == stats.growth(0, 50, 8.0) == int(800 * math.exp(-8 / 20))


def test_turns_that_last_count_before_they_end() -> None:
    """The first turn ended after a second. Three others have lasted for three seconds each."""
    stats = known([])
    turns = [stats.running.begin(0.0, 3.0) for _ in range(3)]
    assert stats.growth(0, 0, 40.0) == 40 / (1 + 9) * 100
    turns.pop().end(3.0)
    assert stats.growth(0, 0, 42.0) == 42 / (1 + 6) * 100
    for turn in turns:
        turn.end(9.0)
    assert stats.growth(0, 0, 42.0) == 4200


def test_turns_do_not_seem_longer_the_more_of_them_run_at_the_same_time() -> None:
    """Two groups of 128 programs make their calls in turn. A turn lasts for two seconds: one until
    the next call, and one of the call.
    """
    engine = Admitting("memory", blocks=100_000, slots=128)
    stats = engine.learned.of_type(KIND)
    for second in range(40):
        group = second % 2
        began = [engine.arrive(f"{group}-{number}", BLOCK) for number in range(128)]
        engine.step(1.0)
        growth = stats.growth(0, 0, 8.0)
        for call in began:
            engine.end(call, output=BLOCK)
    assert growth == pytest.approx(4 * stats.grown.value, rel=0.03)


def test_a_turn_ends_with_its_call_or_with_its_preemption() -> None:
    engine = Counted()
    running = engine.learned.of_type(KIND).running
    first = engine.wants("a", 10)
    engine.step(1.0)
    engine.end(first, output=BLOCK)
    assert running.seconds == 0.0, "a program's first call is no turn"
    engine.now += 2.0
    second = engine.wants("a", 1)
    engine.step(1.0)
    assert running.seconds == 2.0
    engine.end(second, output=BLOCK)
    assert running.seconds == 0.0
    engine.now += 2.0
    third = engine.wants("a", 1)
    engine.step(1.0)
    engine.core.handle(CallPreempted(engine.core.calls[third], engine.now))
    assert running.seconds == 0.0


def test_a_chain_of_a_type_that_never_ended_may_end() -> None:
    """Of the 15 older silences none was the last; by the rule of succession, the next is with
    1/17.
    """
    engine = Counted()
    stats = engine.learned.of_type(KIND)
    for _ in range(30):
        stats.silences.begin(0.0).end(0.1, returned=True)
    stats.grown.add(2 * BLOCK)
    stats.turn_s.add(0.5 * WORTH_S)
    engine.wants("a", 10)
    engine.let_in()
    assert engine.working.claimed == 9 + 3 + 1


def test_the_growth_of_contexts_is_learned_between_the_ends_of_calls() -> None:
    engine = Counted()
    call = engine.wants("a", 10)
    engine.step(3.0)
    engine.end(call, output=BLOCK)
    assert engine.learned.of_type(KIND).growth(0, 0, 8.0) == 0, "nothing went on from anything yet"
    engine.now += 2.0
    call = engine.arrive("a", 2 * BLOCK)
    engine.now += 7.0  # it waits for a slot, which is no part of its turn
    engine.step(2.0)
    engine.end(call, output=BLOCK)
    assert engine.learned.of_type(KIND).growth(0, 0, 8.0) == 6 * BLOCK
    engine.end_program("a")
    assert engine.learned.of_type(KIND).growth(0, 2, 8.0) < 3 * BLOCK, "it ended after two calls"


def test_a_program_that_ends_before_its_last_call_counts_once() -> None:
    engine = Counted()
    first = engine.wants("a", 10)
    engine.step(1.0)
    engine.end(first)
    last = engine.arrive("a", BLOCK)
    engine.step(1.0)
    engine.end_program("a")
    engine.end(last)
    stats = engine.learned.of_type(KIND)
    assert (stats.calls.n, stats.calls.value) == (1, 2), "with the call that ended later"
    assert (stats.calls_squared.n, stats.calls_squared.value) == (1, 4)
