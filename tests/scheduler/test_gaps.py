"""What is learned of the gaps between calls, against the slow way: gap by gap."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.errors import ConfigError
from agentrt.scheduler.retention.gaps import PRIOR_CHANCE, PRIOR_S, Gaps


def test_gaps_shrink_to_a_prior_and_are_bounded() -> None:
    gaps = Gaps()
    unknown = gaps.expect("t", "x", "grep", 0.0)
    assert (unknown.chance, unknown.seconds) == (PRIOR_CHANCE, PRIOR_S)
    assert gaps.expect("t", "x", "grep", 50.0).seconds == 50.0
    for _ in range(2000):
        gaps.learn("t", "x", "grep", 2.0, returned=True)
    known = gaps.expect("t", "x", "grep", 0.0)
    assert known.seconds == pytest.approx(2.0, rel=0.2)
    assert known.chance > 0.98
    assert gaps.expect("other", "x", "grep", 0.0) == unknown
    for n in range(5000):
        gaps.learn("t", f"type {n}", "grep", 1.0, returned=False)
    assert len(gaps) == 1024
    assert gaps.expect("t", "type 4999", "grep", 0.0).chance < PRIOR_CHANCE
    assert gaps.expect("t", "type 0", "grep", 0.0) == unknown, "the longest unseen is forgotten"


def test_gaps_longer_than_all_bins_count_in_the_last() -> None:
    """Which begins after 43 half doublings of the shortest; what was loaded has as many."""
    gaps, loaded = Gaps(), Gaps()
    for seconds in (1e5, 1e30):
        gaps.learn("t", "x", "(any)", seconds, returned=False)
    loaded.load([["t", "x", "(any)", 1.0, [], [0.5], []]])
    loaded.learn("t", "x", "(any)", 1e30, returned=False)
    assert [len(row[5]) for row in gaps.to_rows()] == [44]
    assert loaded.to_rows()[0][5] == [2.5, *[2.0] * 43]
    again = Gaps()
    again.load(loaded.to_rows())
    assert again.to_rows() == loaded.to_rows()
    assert loaded.expect("t", "x", "(any)", 1e30).chance < PRIOR_CHANCE


@given(
    st.lists(st.tuples(st.floats(0.0, 5000.0), st.booleans()), max_size=40),
    st.floats(0.0, 5000.0),
)
def test_a_question_is_answered_from_all_gaps_that_lasted_as_long(
    gaps: list[tuple[float, bool]], elapsed: float
) -> None:
    """Against the slow way, gap by gap; gaps of one bin of half a doubling are not told apart."""
    learned = Gaps()
    for seconds, returned in gaps:
        learned.learn("t", "agent", "(any)", seconds, returned=returned)
    chance, seconds = PRIOR_CHANCE, max(elapsed, PRIOR_S)
    for _ in range(2):  # the gap's own file is the type's here, and asked twice
        as_long = [(gap, back) for gap, back in gaps for _ in "ab" if level(gap) >= level(elapsed)]
        back = [gap for gap, returned in as_long if returned]
        chance = (len(back) + 4 * chance) / (len(as_long) + 4)
        left = [max(middle(gap) - elapsed, 0.05) for gap in back]
        seconds = (sum(left) + 4 * seconds) / (len(back) + 4)
    outlook = learned.expect("t", "agent", "(any)", elapsed)
    assert outlook.chance == pytest.approx(chance)
    # Of gaps in longer bins it is the sum, and not each, that is at least the shortest.
    assert outlook.seconds == pytest.approx(seconds, abs=0.06)


def test_old_gaps_fade() -> None:
    """Halved twice here: after 256 gaps, when 128 are left, and after 128 more."""
    gaps = Gaps()
    for number in range(256 + 128 + 1):
        gaps.learn("t", "x", "grep", 0.0, returned=number < 256)
    left = [256 / 4 + 128 / 2 + 1, [256 / 4], [128 / 2 + 1], pytest.approx([256 / 4 * 0.05])]
    assert [row[3:] for row in gaps.to_rows()] == [left, left]


def level(seconds: float) -> int:
    return math.ceil(2 * math.log2(max(seconds, 0.05) / 0.05))


def middle(seconds: float) -> float:
    return float(0.05 * 2 ** ((level(seconds) - 0.5) / 2)) if level(seconds) else 0.05


def test_learned_gaps_survive_as_rows_and_are_bounded() -> None:
    learned, other = Gaps(), Gaps()
    for n in range(600):
        learned.learn("t", f"type {n % 30}", "grep", 0.1 * n, returned=n % 3 > 0)
    rows = json.loads(json.dumps(learned.to_rows()))
    other.load(rows)
    assert other.to_rows() == learned.to_rows()
    assert other.expect("t", "type 4", "grep", 3.0) == learned.expect("t", "type 4", "grep", 3.0)
    other.load([["t", f"type {n}", "x", 0.0, [], [], []] for n in range(2000)])
    assert len(other) == 1024


@pytest.mark.parametrize(
    "row",
    [
        ["t", "a", "g", 1.0, [1.0], []],
        ["t", "a", 7, 1.0, [1.0], [], [1.0]],
        ["t", "a", "g", -1.0, [1.0], [], [1.0]],
        ["t", "a", "g", math.nan, [1.0], [], [1.0]],
        ["t", "a", "g", math.inf, [1.0], [], [1.0]],
        ["t", "a", "g", 1.0, [1.0, 2.0], [], [1.0]],
        ["t", "a", "g", 1.0, [math.nan], [], [1.0]],
        ["t", "a", "g", 1.0, [math.inf], [], [1.0]],
        ["t", "a", "g", 1.0, [1.0] * 99, [], [1.0]],
        ["t", "a", "g", 1.0, [-1.0], [], [1.0]],
        ["t", "a", "g", 1.0, 5, [], []],
        7,
    ],
)
def test_rows_that_were_never_learned_are_refused(row: Any) -> None:
    with pytest.raises(ConfigError, match="these are not learned gaps"):
        Gaps().load([row])
