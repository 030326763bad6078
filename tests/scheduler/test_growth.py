"""What a chain claims for what its context will grow by."""

from __future__ import annotations

import pytest

from tests.scheduler.admitting import BLOCK, KIND, WORTH_S, Counted


@pytest.mark.parametrize(
    ("turn_s", "calls", "beside", "grown"),
    [
        (0.5, None, False, 4.0),
        (1.0, None, False, 2.0),
        (0.5, 9, False, 2.0),  # each call is the last of one in nine, which gives up 9 blocks
        (0.5, 4, False, 0.0),
        (0.5, None, True, 0.0),
    ],
)
def test_a_chain_claims_its_growth_while_holding_room_pays(
    turn_s: float, calls: int | None, beside: bool, grown: float
) -> None:
    """2 blocks with each turn; the whole cache takes `WORTH_S` to compute."""
    engine = Counted()
    engine.learned.usual(KIND).beside.add(beside)
    engine.learned.usual(KIND).grown.add(2 * BLOCK)
    engine.learned.usual(KIND).turn_s.add(turn_s * WORTH_S)
    if calls is not None:
        engine.learned.usual(KIND).calls.add(calls)
    engine.wants("a", 10)
    engine.let_in()
    assert engine.working.claimed == 9 + grown + 1


def test_a_chain_of_a_type_that_never_ended_may_end() -> None:
    """Of the 15 older silences none was the last; by the rule of succession, the next is with
    1/17.
    """
    engine = Counted()
    usual = engine.learned.usual(KIND)
    for _ in range(30):
        usual.silences.begin(0.0).end(0.1, returned=True)
    usual.grown.add(2 * BLOCK)
    usual.turn_s.add(0.5 * WORTH_S)
    engine.wants("a", 10)
    engine.let_in()
    assert engine.working.claimed == 9 + 3 + 1


def test_the_growth_of_contexts_is_learned_between_the_ends_of_calls() -> None:
    engine = Counted()
    call = engine.wants("a", 10)
    engine.step(3.0)
    engine.end(call, output=BLOCK)
    assert engine.learned.usual(KIND).growth(0, 8.0) == 0, "nothing went on from anything yet"
    engine.now += 2.0
    call = engine.arrive("a", 2 * BLOCK)
    engine.now += 7.0  # it waits for a slot, which is no part of its turn
    engine.step(2.0)
    engine.end(call, output=BLOCK)
    assert engine.learned.usual(KIND).growth(0, 8.0) == 6 * BLOCK
    engine.end_program("a")
    assert engine.learned.usual(KIND).growth(2 * BLOCK, 8.0) == 4 * BLOCK, (
        "one of two calls is the last"
    )


def test_a_program_that_ends_before_its_last_call_counts_once() -> None:
    engine = Counted()
    first = engine.wants("a", 10)
    engine.step(1.0)
    engine.end(first)
    last = engine.arrive("a", BLOCK)
    engine.step(1.0)
    engine.end_program("a")
    engine.end(last)
    calls = engine.learned.usual(KIND).calls
    assert (calls.n, calls.value) == (1, 2), "with the call that ended later"
