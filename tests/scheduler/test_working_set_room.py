"""Who comes in where there is no room for all, and what that costs, counted by hand (`Counted`)."""

from __future__ import annotations

import pytest

from agentrt.scheduler.admission.learned import Growth, Losses
from agentrt.scheduler.admission.memory import FIFO_EVERY, LOOKED_AT, WorkingSet
from tests.scheduler.admitting import BLOCK, KIND, Admitting, Counted

# -- what a free slot is worth ---------------------------------------------------------


@pytest.mark.parametrize(
    ("decode_s", "running", "comes_in"),
    [(1 / 256, 1, True), (1 / 257, 1, False), (1 / 256, 2, False), (1 / 128, 2, True)],
)
def test_a_free_slot_is_worth_its_output_beside_what_it_pushes_out(
    decode_s: float, running: int, comes_in: bool
) -> None:
    """16 tokens of output over ``running`` calls, beside 4 blocks too many: 64 tokens anew."""
    engine = Counted(output=16, decode_s=decode_s)
    engine.arrive("a", 59 * BLOCK - 8)
    engine.step()
    engine.arrive("b", 38 * BLOCK - 8)
    assert engine.working.claimed == 60
    engine.let_in(running)
    assert engine.working.has("b") is comes_in


@pytest.mark.parametrize(("lost", "comes_in"), [(31, True), (32, True), (33, False)])
def test_it_counts_what_the_members_are_known_to_find_lost(lost: int, comes_in: bool) -> None:
    """As above; with 64 tokens too many a call of each of two members lost so many."""
    engine = Counted(output=16, decode_s=1 / 256)
    for _ in range(10_000):
        engine.working.losses.call_began(64, lost)
    for name in "ac":
        engine.arrive(name, 29 * BLOCK - 8)
    engine.step()
    engine.arrive("b", 38 * BLOCK - 8)
    assert engine.working.claimed == 60
    engine.let_in()
    assert engine.working.has("b") is comes_in


@pytest.mark.parametrize(("prefix", "comes_in"), [(2, True), (3, False)])
def test_a_types_prefix_counts_among_what_a_program_would_push_out(
    prefix: int, comes_in: bool
) -> None:
    engine = Counted(output=16, decode_s=1 / 256)
    engine.working.growth.call_ended(("default", "u"), 16)
    engine.working.growth.first_call(("default", "u"), prefix * BLOCK)
    engine.arrive("a", 59 * BLOCK - 8)
    engine.step()
    # Beside 60 blocks of 95 it needs 37 and its prefix, so that 2 and the prefix are too many.
    engine.arrive("b", (36 + prefix) * BLOCK - 8, "u")
    engine.let_in()
    assert engine.working.has("b") is comes_in


# -- who is looked at ------------------------------------------------------------------


def full() -> Counted:
    """60 of 95 blocks are claimed, and the next in the order wants 60."""
    engine = Counted()
    engine.wants("a", 60)
    engine.step()
    engine.wants("large", 60)
    return engine


def test_one_that_has_no_room_does_not_hold_up_one_that_has_and_keeps_its_turn() -> None:
    engine = full()
    engine.wants("b", 30)
    engine.wants("c", 5)
    engine.let_in()
    assert engine.inside() == {"a", "b", "c"}
    for name in "abc":
        engine.end_program(name)
    engine.wants("d", 60)
    engine.let_in()
    assert engine.inside() == {"large"}


@pytest.mark.parametrize(("before", "comes_in"), [(LOOKED_AT - 1, True), (LOOKED_AT, False)])
def test_so_many_are_looked_at_and_no_more(before: int, comes_in: bool) -> None:
    engine = full()
    for n in range(before - 1):
        engine.wants(f"large{n}", 60)
    engine.wants("b", 30)
    engine.let_in()
    assert engine.working.has("b") is comes_in


@pytest.mark.parametrize(("running", "comes_in"), [(7, True), (8, False)])
def test_nobody_is_passed_where_no_slot_is_free(running: int, comes_in: bool) -> None:
    engine = full()
    engine.wants("b", 30)
    engine.let_in(running)
    assert engine.working.has("b") is comes_in


def test_nobody_passes_the_oldest_when_it_is_next_for_its_age() -> None:
    engine = full()
    engine.wants("b", 30)
    engine.working.came_in = FIFO_EVERY - 1
    engine.let_in()
    assert engine.inside() == {"a"}


# -- what is learned -------------------------------------------------------------------


def test_a_call_that_put_out_nothing_teaches_that() -> None:
    engine = Admitting("memory")
    call = engine.arrive("a", BLOCK)
    engine.step()
    engine.end(call, output=0)
    assert isinstance(engine.admission, WorkingSet)
    assert engine.admission.growth.output(KIND) == 0


def test_of_many_types_those_seen_last_are_remembered() -> None:
    growth = Growth()
    for n in range(1025):
        growth.call_ended(("default", f"t{n}"), 7)
    known = [growth.output(("default", f"t{n}")) for n in (0, 1, 1024)]
    assert known == [256, 7, 7]


def test_a_first_call_that_found_nothing_does_not_say_that_nothing_is_shared() -> None:
    growth = Growth()
    for cached in (0, 96, 0, 0):
        growth.first_call(KIND, cached)
    assert growth.shared(KIND) == 96


def test_what_is_pushed_out_is_lost_once_till_more_is_known_and_then_as_members_find() -> None:
    losses = Losses()
    assert losses.per_token(5) == 1.0
    for _ in range(8):
        losses.call_began(100, 80)
    # Half is known by now: each of five calls lost .8 of what was too much.
    assert losses.per_token(5) == pytest.approx(0.5 + 0.5 * 5 * 0.8)


@pytest.mark.parametrize(
    ("claimed", "known", "shared", "cached", "learned"),
    [
        (95, 100, 0, 0, None),  # there was room
        (96, 100, 0, 40, (16, 60)),
        (97, 100, 0, 300, (32, 0)),
        (96, 0, 64, 16, (16, 48)),  # a first call has lost what is left of its type's prefix
        (96, 0, 64, 0, (16, 64)),
        (96, 0, 500, 0, (16, 399)),  # the last token of a prompt is computed in any case
    ],
)
def test_losses_are_learned_from_calls_that_begin_where_too_much_is_claimed(
    claimed: int, known: int, shared: int, cached: int, learned: tuple[int, int] | None
) -> None:
    engine = Counted()
    engine.working.growth.first_call(KIND, shared)
    engine.contexts["a"] = known
    call = engine.queues.calls[engine.arrive("a", 400 - known)]
    engine.let_in(0)
    engine.working.claimed = claimed
    engine.working.call_began(call, cached, engine.now)
    expected = Losses()
    if learned is not None:
        expected.call_began(*learned)
    assert engine.working.losses.per_token(3) == expected.per_token(3)
