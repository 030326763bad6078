"""Members that wait for something other than a call: how long they are held, and which of them
leave.
"""

from __future__ import annotations

import pytest

from agentrt.scheduler.state import CachedBlocks
from tests.scheduler.admitting import KIND, WORTH_S, Admitting, Counted


def learn(engine: Admitting, seconds: float, *, well: bool = True) -> None:
    """Let the engine learn how long a tool takes, and whether its programs return."""
    for name in ("", "grep"):
        for _ in range(400):
            engine.learned.gaps.learn((*KIND, name), seconds, well=well)


@pytest.mark.parametrize(
    ("seconds", "well", "kept_s"),
    [
        (None, True, WORTH_S),
        (WORTH_S, True, WORTH_S),
        (2 * WORTH_S, True, 0.0),
        (1e-3, False, 0.0),
    ],
)
def test_a_program_in_a_tool_is_held_as_long_as_its_blocks_are_worth(
    seconds: float | None, well: bool, kept_s: float
) -> None:
    """It is held as long as the whole cache takes to compute, and not at all if it is expected
    later.
    """
    engine = Counted()
    call = engine.wants("a", 60)
    engine.step(0.0)
    if seconds is not None:
        learn(engine, seconds, well=well)
    engine.now = 100.0
    engine.end(call, output=0)
    engine.begins("a")
    engine.wants("b", 60)
    if kept_s:
        engine.now += kept_s - 1e-3
        engine.let_in()
        assert engine.inside() == {"a"}
        engine.now = 100.0 + kept_s
    engine.let_in()
    assert engine.inside() == {"b"}


def test_a_program_that_asks_a_human_is_held_until_another_program_needs_room() -> None:
    engine = Counted()
    call = engine.wants("a", 60)
    engine.step()
    engine.end(call, output=0)
    engine.begins("a", "human")
    engine.let_in()
    assert engine.inside() == {"a"}
    engine.wants("b", 60)
    engine.let_in()
    assert engine.inside() == {"b"}


@pytest.mark.parametrize(
    ("wants", "inside"),
    [
        (71, {"a", "b", "c"}),
        (60, {"c", "new"}),
        (40, {"b", "c", "new"}),
        (10, {"a", "b", "c", "new"}),
    ],
)
def test_only_needed_members_leave_and_none_for_a_program_that_would_not_fit(
    wants: int, inside: set[str]
) -> None:
    """Each program has 30 blocks: the time of a is up, then the time of b, and c runs."""
    engine = Counted()
    calls = {name: engine.wants(name, 30) for name in "abc"}
    engine.step(0.0)
    for name in "ab":
        engine.end(calls[name], output=0)
        engine.now += 1e-3
    engine.now += WORTH_S
    engine.wants("new", wants)
    engine.let_in()
    assert engine.inside() == inside


def test_a_program_whose_time_was_up_is_held_again_after_its_return() -> None:
    engine = Counted()
    call = engine.wants("a", 60)
    engine.wants("c", 20)
    engine.step(0.0)
    engine.end(call, output=0)
    engine.wants("large", 90)
    engine.now = WORTH_S
    engine.let_in()
    call = engine.arrive("a", 0)
    engine.step(0.0)
    engine.end(call, output=0)
    engine.wants("b", 30)
    engine.let_in()
    assert engine.inside() == {"a", "c"}
    engine.now += WORTH_S
    engine.let_in()
    assert engine.inside() == {"b", "c"}


def test_an_earlier_tool_does_not_count_once_the_program_was_back() -> None:
    engine = Counted()
    for at in (0.0, WORTH_S / 2):
        engine.now = at
        call = engine.wants("a", 60)
        engine.contexts.clear()
        engine.step(0.0)
        engine.end(call, output=0)
        if not at:
            engine.begins("a")
    engine.wants("b", 60)
    engine.now = WORTH_S
    engine.let_in()
    assert engine.inside() == {"a"}
    engine.now = 1.5 * WORTH_S
    engine.let_in()
    assert engine.inside() == {"b"}


def test_a_returning_program_goes_before_new_programs_of_its_level() -> None:
    engine, changed = Counted(), list[CachedBlocks]()
    call = engine.wants("a", 60)
    engine.step()
    engine.end(call, output=0)
    engine.begins("a", "human")
    engine.core.owners.changed = changed.append
    other = engine.wants("b", 60)
    engine.step()
    row = engine.table.get("a")
    assert row is not None
    assert (row.resident, row.was_resident) == (False, True)
    assert row.cached in changed
    engine.wants("c", 60)
    engine.contexts.clear()
    engine.answered("a", "human")
    engine.wants("a", 60)
    engine.end(other, output=0)
    engine.end_program("b")
    engine.let_in()
    assert engine.inside() == {"a"}
