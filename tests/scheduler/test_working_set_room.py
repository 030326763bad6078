"""Who comes in where there is no room for all, counted by hand (`Counted`)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agentrt.scheduler import QueuedCall
from agentrt.scheduler.admission.learned import Growth
from agentrt.scheduler.admission.memory import FIFO_EVERY, LOOKED_AT, WorkingSet
from tests.scheduler.admitting import BLOCK, KIND, Admitting, Counted

# -- who fills a free slot -------------------------------------------------------------


@pytest.mark.parametrize(
    ("branches", "running", "comes_in"), [(False, 1, False), (True, 3, True), (True, 4, False)]
)
def test_a_program_without_room_fills_half_of_the_batch_if_its_type_branches(
    branches: bool, running: int, comes_in: bool
) -> None:
    engine = Counted()
    for _ in range(4):
        engine.working.growth.call_arrived(("default", "u"), beside=branches)
    engine.wants("a", 60)
    engine.step()
    engine.wants("b", 60, "u")
    engine.let_in(running)
    assert engine.working.has("b") is comes_in


def test_a_type_branches_if_more_than_a_quarter_of_its_calls_come_beside_another() -> None:
    growth = Growth()
    found = []
    for beside in (False, False, False, True, True):
        growth.call_arrived(KIND, beside=beside)
        found.append(growth.branches(KIND))
    assert found == [False, False, False, False, True]
    assert not growth.branches(("other", KIND[1]))


def test_branches_are_counted_each_and_what_they_share_once() -> None:
    engine = Counted()
    claims = []
    for tokens, beside in ((10, 0), (20, 0), (16, 15)):
        engine.arrive("a", tokens * BLOCK, beside=beside * BLOCK)
        engine.step()
        claims.append(engine.working.claimed)
    # A block more for the rest of each call; 15 of the third one's are the second one's, too.
    assert claims == [10 + 1, 30 + 2, 31 + 3]


def test_a_chain_is_counted_with_what_it_comes_back_for() -> None:
    engine = Counted()
    call = engine.arrive("a", 10 * BLOCK)
    engine.step()
    engine.end(call, output=0)
    assert engine.working.claimed == 10
    engine.arrive("a", 2 * BLOCK, beside=0)
    assert engine.working.claimed == 12 + 1
    engine.arrive("a", 4 * BLOCK, fresh=True)
    assert engine.working.claimed == 12 + 4 + 2


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


class Eager(WorkingSet):
    """Looks at those outside whenever it is asked."""

    looks = 0

    def let_in(self, now: float, running: int) -> list[QueuedCall]:
        self._nobody_at = None
        return super().let_in(now, running)


def play(admission: str, seed: int) -> tuple[list[list[str]], int]:
    """What began in each step of a random life, and how often those outside were looked at."""
    draw, looks = random.Random(seed), 0
    engine = Admitting(admission, blocks=40, slots=3, policy="adaptive")
    working: Any = engine.admission
    look = working._look

    def counted(now: float, running: int) -> Any:
        nonlocal looks
        looks += 1
        return look(now, running)

    working._look = counted
    began = []
    for _ in range(300):
        for _ in range(draw.randrange(5)):
            happen(engine, draw)
        began.append(engine.step(draw.choice([0.01, 0.5])))
    return began, looks


def happen(engine: Admitting, draw: random.Random) -> None:
    """Something happens to a program."""
    name = f"p{draw.randrange(12)}"
    event = draw.choice(["arrive", "arrive", "end", "end", "end", "tool", "human", "back", "over"])
    if event == "arrive":
        engine.arrive(name, draw.randrange(16, 200), draw.choice("ab"))
    elif event == "end" and engine.queues.calls:
        engine.end(draw.choice(sorted(engine.queues.calls)), draw.randrange(1, 60))
    elif event in ("tool", "human"):
        seconds = draw.choice([None, 0.1, 1e6])
        engine.admission.interrupt_began(name, event, seconds, engine.now)
    elif event == "back":
        engine.admission.interrupt_ended(name, "tool", engine.now)
    elif event == "over" and name in engine.table:
        engine.end_program(name)


@pytest.mark.parametrize("seed", range(20))
def test_who_looks_only_after_a_change_lets_in_the_same(seed: int) -> None:
    began, looks = play("memory", seed)
    eager, more = play(f"{__name__}:Eager", seed)
    assert began == eager
    assert any(began)
    assert looks < more
