"""The life table: what programs still need at each age, where most still live."""

from __future__ import annotations

from random import Random
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.scheduler.ages import BINS, LONGEST_S, SMALLEST_S, age_bin, bin_edge
from agentrt.scheduler.lifetable import LifeTable

WIDTH = 2.0**0.5
"""From one age to the next."""


@given(st.floats(0.0, LONGEST_S))
def test_an_age_is_between_its_edges(seconds: float) -> None:
    age = age_bin(seconds)
    assert bin_edge(age) <= seconds * (1 + 1e-9)
    assert seconds <= bin_edge(age + 1) * (1 + 1e-9)


def test_no_age_is_past_the_last() -> None:
    assert age_bin(float("inf")) == age_bin(LONGEST_S) == BINS - 1


def test_where_nobody_ended_as_much_is_expected_as_was_attained() -> None:
    table = LifeTable()
    table.come(age_bin(10.0), 1.0)
    assert 10.0 / WIDTH <= table.rest[age_bin(10.0)] <= 10.0 * WIDTH
    assert table.left_s == table.rest[age_bin(10.0)]


@pytest.mark.parametrize("size", [0.3, 20.0])
def test_programs_of_one_size_are_expected_to_need_what_is_left_of_it(size: float) -> None:
    table = LifeTable()
    for _ in range(500):
        table.end(age_bin(size))
    for attained in (0.0, size / 2):
        rest = table.rest[age_bin(attained)]
        assert (size - attained) / WIDTH <= rest <= (size - attained) * WIDTH


@pytest.mark.parametrize("seed", range(3))
def test_the_living_count_for_the_ages_that_they_have_reached(seed: int) -> None:
    """The shortest end first: of 300 sizes around 50 s, those above 40 s still live."""
    rng = Random(seed)
    sizes = [rng.expovariate(1 / 50.0) for _ in range(300)]
    table = LifeTable()
    for size in sizes:
        if size > 40.0:
            table.come(age_bin(40.0), 1.0)
    ended = sorted(size for size in sizes if size <= 40.0)
    for size in ended:
        table.end(age_bin(size))
    assert mean(ended) < 20.0
    assert 30.0 < table.rest[0] < 90.0


def test_what_was_long_ago_fades() -> None:
    table = LifeTable()
    for _ in range(400):
        table.end(age_bin(100.0))
    for _ in range(1600):
        table.end(age_bin(1.0))
    assert table.rest[0] < 5.0
    assert sum(table.ended) == pytest.approx(400.0, rel=0.01)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("clen"), st.integers(0, 40)), max_size=120))
def test_what_is_left_is_that_of_all_who_live(events: list[tuple[str, int]]) -> None:
    """Of programs that come, grow older, leave and end, at the ages given."""
    table = LifeTable()
    live: list[tuple[int, float]] = []
    for event, age in events:
        unit = 1.0 + age
        if event == "c":
            table.come(age, unit)
            live.append((age, unit))
        elif live:
            old, unit = live.pop()
            table.leave(old, unit)
            if event == "n":
                table.come(max(age, old), unit)
                live.append((max(age, old), unit))
            elif event == "e":
                table.end(old)
    assert table.left_s == pytest.approx(sum(u * table.rest[a] for a, u in live), abs=1e-6)
    assert all(rest >= SMALLEST_S / 4 for rest in table.rest)


def test_another_table_takes_over_what_one_learned() -> None:
    rng, one, other = Random(5), LifeTable(), LifeTable()
    for _ in range(200):
        one.end(age_bin(rng.lognormvariate(2.0, 1.0)))
    other.learned(one.passed, one.ended)
    assert other.rest == pytest.approx(one.rest)
