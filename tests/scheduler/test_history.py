"""What `adaptive` learns from finished programs: estimates, and what they are kept in.

A program here is served in small pieces and asked about after each, as a running one is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.errors import ConfigError
from agentrt.scheduler import ProcessTable, ProgramRow
from agentrt.scheduler.policies.adaptive.estimate import (
    _ASKED,
    _CELLS,
    _DOUBT,
    _MEMORY,
    LONGEST_S,
    SMALLEST_S,
    Cell,
    History,
    age_bin,
    bin_edge,
)

LIFES = int(_MEMORY)
BIN = math.sqrt(2.0)
"""A bin is half a doubling wide."""


class Past:
    """A history, and programs that live for it."""

    def __init__(self) -> None:
        self.history = History()
        self.table = ProcessTable()
        self._started = 0

    def begin(self, type: str = "t", hint: float | None = None, **who: Any) -> ProgramRow:
        self._started += 1
        row = self.table.start_program(f"p{self._started}", type, 0.0, **who)
        row.size_hint = hint
        return row

    def serve(self, row: ProgramRow, seconds: float) -> None:
        """One more call of a program, from its beginning to its end."""
        row.attained_s += seconds
        self.table.call_ended(row, "c", 0.0, None, seconds, 0.0)

    def ask(self, row: ProgramRow, node: str = "") -> float:
        return self.history.expect(row, node, row.path_s)

    def live(
        self,
        pieces: Sequence[float],
        nodes: Callable[[int], str] = lambda index: "",
        **what: Any,
    ) -> None:
        """A program that is served in ``pieces``, and ends."""
        row = self.begin(**what)
        for index, seconds in enumerate(pieces):
            self.ask(row, nodes(index))
            self.serve(row, seconds)
        self.history.learn(row)
        self.table.end_program(row.program_id)

    def expect_at(self, attained: float, **what: Any) -> float:
        """What a program of one call that attained so much would be expected to need still."""
        row = self.begin(**what)
        if attained:
            self.serve(row, attained)
        return self.ask(row)


@pytest.fixture
def past() -> Past:
    return Past()


# -- estimates -------------------------------------------------------------------------


def test_a_cell_remembers_so_many_and_no_more() -> None:
    cell = Cell()
    for _ in range(2 * LIFES):
        cell.add(1.0)
    assert (cell.n, cell.mean_s) == (_MEMORY, 1.0)
    assert (age_bin(SMALLEST_S), age_bin(1.001 * SMALLEST_S)) == (0, 1)


@pytest.mark.parametrize("path_s", [0.05, 0.3, 1.0, 7.7, 12345.6])
def test_where_nothing_is_known_the_estimate_is_atlas_path(past: Past, path_s: float) -> None:
    row = past.begin(hint=40.0, session="s")
    row.attained_s, row.finished_calls = 3.0 * path_s, 5
    assert past.history.expect(row, "plan", path_s) == path_s
    assert past.history.expect(row, "plan", 0.0) == SMALLEST_S


def test_after_equal_programs_what_remains_is_known_to_a_bins_width(past: Past) -> None:
    """At ``a`` seconds of 16, 16 - a are left; ``a`` is known up to a factor of 1.41."""
    for _ in range(LIFES):
        past.live([16.0])
    for attained in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0):
        slack = (BIN - 1.0) * attained + 0.03 * 16.0
        assert past.expect_at(attained) == pytest.approx(16.0 - attained, abs=slack)


def test_few_samples_count_little_and_many_count_almost_wholly(past: Past) -> None:
    found = []
    for _ in range(3 * int(_DOUBT)):
        found.append(past.expect_at(1.0))
        past.live([101.0])
    assert found == sorted(found)
    assert found[0] == 1.0
    assert found[int(_DOUBT)] == pytest.approx(51.0, rel=0.01)


def test_a_program_that_may_be_short_or_long_is_long_once_it_got_past_the_short(
    past: Past,
) -> None:
    for index in range(LIFES):
        past.live([100.0 if index % 10 == 0 else 1.0])
    assert past.expect_at(0.0) == pytest.approx(10.9, rel=0.1)
    assert past.expect_at(2.0) == pytest.approx(98.0, rel=0.25)


@pytest.mark.parametrize(("before", "after"), [(4.0, 40.0), (40.0, 4.0)])
def test_a_type_that_changes_is_learned_anew(past: Past, before: float, after: float) -> None:
    for _ in range(3 * LIFES):
        past.live([before])
    for _ in range(2 * LIFES):
        past.live([after])
    left = abs(past.expect_at(0.0) - after) / abs(before - after)
    assert left < 0.16, "of the way from what it was: e to the power of -2"


def test_a_program_that_outlives_its_kin_is_expected_to_go_on_as_long(past: Past) -> None:
    """In the bin where its kin ended they still count; past it nobody has been."""
    for _ in range(LIFES):
        past.live([9.06])
    row = past.begin()
    while row.path_s < 1000.0:
        past.serve(row, row.path_s / 20.0 + 0.1)
        estimate = past.ask(row)
        assert estimate >= row.path_s * _DOUBT / (_MEMORY + _DOUBT)
        if row.path_s >= 9.06 * BIN:
            assert estimate >= row.path_s * 0.999


def test_tenants_do_not_influence_each_other(past: Past) -> None:
    """However their names are made up: one's may contain whatever stands between two."""
    for _ in range(50):
        past.live([99.0], type="b/c", tenant="a", session="d")
    assert past.expect_at(0.0, type="b/c", tenant="a") > 50.0
    for tenant, type, session in (
        ("b", "b/c", "d"),
        ("default", "b/c", "d"),
        ("a/b", "c", "d"),
        ("", "a/b/c", "a/d"),
    ):
        found = past.expect_at(0.5, type=type, tenant=tenant, session=session)
        assert found == 0.5


def test_another_type_is_not_kin(past: Past) -> None:
    for _ in range(50):
        past.live([99.0], type="long")
    assert past.expect_at(0.5, type="short") == 0.5


@given(st.floats(0.0, 1e8))
def test_an_age_lies_between_the_edges_of_its_bin(seconds: float) -> None:
    age = age_bin(seconds)
    assert bin_edge(age) <= seconds * (1 + 1e-9)
    assert seconds <= bin_edge(age + 1) * (1 + 1e-9)
    assert age_bin(math.inf) == age_bin(LONGEST_S)


# -- what is known beside the age ------------------------------------------------------


def test_a_hint_counts_when_it_tells_sizes_apart(past: Past) -> None:
    for _ in range(100):
        past.live([2.0], hint=100.0)
        past.live([50.0], hint=1000.0)
    small, none, large = (past.expect_at(0.0, hint=hint) for hint in (100.0, None, 1000.0))
    assert small < 4.0
    assert none == pytest.approx(26.0, rel=0.2)
    assert large > 40.0


def test_hints_are_told_apart_to_a_factor_of_two_in_any_unit(past: Past) -> None:
    for _ in range(100):
        past.live([2.0], hint=0.0125)
        past.live([50.0], hint=0.05)
    first, same, other = (past.expect_at(0.0, hint=hint) for hint in (0.0125, 0.01, 0.025))
    assert first == same < 4.0
    assert other == past.expect_at(0.0), "no hint was like it: it counts as none"


def test_a_hint_that_tells_nothing_changes_little(past: Past) -> None:
    for index in range(200):
        past.live([26.0], hint=(100.0, 1000.0)[index % 2])
    small, large = (past.expect_at(0.0, hint=hint) for hint in (100.0, 1000.0))
    assert small == pytest.approx(large, rel=0.01)


@pytest.mark.parametrize("hint", [0.0, -5.0, 1e-300, 1e300, math.inf, math.nan, "40", [1], None])
def test_no_hint_is_too_odd(past: Past, hint: Any) -> None:
    """One that is no positive number counts as none."""
    past.live([1.0], hint=hint)
    assert math.isfinite(past.expect_at(1.0, hint=hint))
    told = {what for *_, what, _, _ in past.history.to_dict()["cells"] if "hint" in what}
    assert bool(told) == (hint in (1e-300, 1e300))


@pytest.mark.parametrize(("hint", "usual"), [(None, 30.0), (1.0, 10.0), (2.0, 50.0), (4.0, 30.0)])
def test_what_is_usual_is_the_mean_size_of_those_with_such_a_hint(
    past: Past, hint: float | None, usual: float
) -> None:
    assert past.history.usual(past.begin(hint=hint)) is None
    for _ in range(20):
        past.live([10.0], hint=1.0)
        past.live([50.0], hint=2.0)
    assert past.history.usual(past.begin(hint=hint)) == pytest.approx(usual)


def test_the_turn_tells_programs_of_the_same_age_apart(past: Past) -> None:
    """After 4 s in one call 60 are to come; after 4 s in sixteen calls, nearly none."""
    for _ in range(100):
        past.live([4.0, 60.0])
        past.live([0.25] * 17)
    one, many = past.begin(), past.begin()
    past.serve(one, 4.0)
    for _ in range(16):
        past.serve(many, 0.25)
    assert past.ask(one) > 40.0
    assert past.ask(many) < 4.0


@pytest.mark.parametrize(("other", "counts"), [(1.3, False), (40.0, True)])
def test_a_node_counts_only_if_it_is_telling(past: Past, other: float, counts: bool) -> None:
    """Of four programs, three have 1 s to come at their node, one at another has ``other``."""
    for index in range(200):
        seconds, node = (1.0, "answer") if index % 4 else (other, "search")
        past.live([seconds], nodes=lambda index, node=node: node)  # type: ignore[misc]
    row = past.begin()
    answer, search, unknown = (past.ask(row, node) for node in ("answer", "search", "?"))
    if counts:
        assert answer < unknown / 2.0
        assert search > unknown * 2.0
    else:
        assert answer == search == unknown


@pytest.mark.parametrize(("mean", "expected"), [(0.0, 0.5), (0.01, 1.0), (2.99, 1.0), (3.0, 2.0)])
def test_a_node_that_halves_or_doubles_is_telling(past: Past, mean: float, expected: float) -> None:
    told = cell(tenant="default", age=0, what="node x", n=_DOUBT, mean=mean)
    past.history.load(told)
    assert past.history.expect(past.begin(), "x", 1.0) == expected


# -- bounds ----------------------------------------------------------------------------


def test_cells_are_bounded_and_the_least_used_go_first(past: Past) -> None:
    for _ in range(20):
        past.live([9.0], type="first")
    for index in range(_CELLS // 4):
        past.live([9.0], type=f"type {index}")
        past.live([9.0], type="kept")
    assert len(past.history) == _CELLS
    assert past.expect_at(1.0, type="first") == 1.0
    assert past.expect_at(0.0, type="kept") > 8.0


pieces = st.lists(st.floats(0.0, 1e4), max_size=60)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(pieces, st.sampled_from("abc"), st.booleans()), max_size=12))
def test_estimates_are_sane_and_asked_bounded_whatever_comes(
    lives: list[tuple[list[float], str, bool]],
) -> None:
    past = Past()
    for services, name, ends in lives:
        row = past.begin(type=name, session=name, hint=len(services))
        for index, seconds in enumerate(services):
            assert SMALLEST_S <= past.ask(row, f"n{index}") <= 1e8
            past.serve(row, seconds)
        assert len(past.history._asked.get(row.program_id, ())) <= _ASKED
        (past.history.learn if ends else past.history.forget)(row)
        assert row.program_id not in past.history._asked
    assert not past.history._asked


# -- what survives ---------------------------------------------------------------------


def test_a_history_survives_json(past: Past) -> None:
    for index in range(8):
        past.live([0.5, 2.0, index / 2], hint=index, type="t/ü")
    text = json.dumps(past.history.to_dict())
    other = Past()
    other.history.load(json.loads(text))
    assert json.dumps(other.history.to_dict()) == text
    for attained in (0.0, 1.0, 3.0, 50.0):
        what: dict[str, Any] = {"type": "t/ü", "hint": 7.0}
        assert other.expect_at(attained, **what) == past.expect_at(attained, **what)


def cell(**changes: Any) -> dict[str, Any]:
    values = {"tenant": "d", "type": "t", "age": 1, "what": "", "n": 1.0, "mean": 1.0, **changes}
    return {"version": 2, "cells": [list(values.values())]}


@pytest.mark.parametrize("good", [cell(), cell(n=0.0, mean=0.0), cell(n=_MEMORY, mean=LONGEST_S)])
def test_the_helper_makes_good_files(past: Past, good: dict[str, Any]) -> None:
    past.history.load(good)
    assert past.history.to_dict() == good


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        "history",
        {},
        {"version": 2},
        {"version": 2, "cells": 7},
        {"version": 2, "cells": [["d", "t", 1]]},
        cell(tenant=None),
        cell(type=["t"]),
        cell(age="high"),
        cell(age=math.inf),
        cell(age=math.nan),
        cell(n=-1.0),
        cell(n=math.nan),
        cell(n=1e300),
        cell(mean="long"),
        cell(mean=-1.0),
        cell(mean=math.nan),
        cell(mean=math.inf),
        cell(mean=1e300),
    ],
)
def test_what_is_no_history_is_refused_and_changes_nothing(past: Past, values: Any) -> None:
    past.live([3.0])
    before = past.history.to_dict()
    with pytest.raises(ConfigError, match=r"this is not a history of programs: (?!\w+\(None\))"):
        past.history.load(values)
    assert past.history.to_dict() == before


@pytest.mark.parametrize("version", [0, 1, "one", None])
def test_another_version_is_refused_whatever_is_in_it(past: Past, version: Any) -> None:
    with pytest.raises(ConfigError, match=f"version {version}, not 2"):
        past.history.load({"version": version, "rows": []})
