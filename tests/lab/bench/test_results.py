"""What benchmarks share: turns, and figures that a side cannot tell."""

from __future__ import annotations

from math import nan

from agentrt.lab.bench.results import Column, Results, in_turns, ratios


def test_every_repeat_begins_with_another_side() -> None:
    turns = list(in_turns("abc", 2))
    assert turns == [(0, "a"), (0, "b"), (0, "c"), (1, "b"), (1, "c"), (1, "a")]


def test_a_figure_that_one_repeat_lacks_is_not_shown() -> None:
    measured = Results({"side": "", "size": "size"})
    measured.expect([("b", 2), ("a", 1)])
    for known in (1.0, 3.0):
        measured.add("a", 1, figures={"s": known, "steps": nan if known > 1 else 2.0})
        measured.add("b", 2, figures={"s": 2 * known, **ratios({"s": 4.0}, None, ["s"], "_to_a")})
    columns = (
        Column("s", "s"),
        Column("in all", "s", "{total:.0f}"),
        Column("x", "steps", "", "-"),
    )
    rows = [line.replace(" ", "") for line in measured.table(columns).splitlines()[2:]]
    assert rows == ["|b|2|4.00(2.00-6.00)|8|-|", "|a|1|2.00(1.00-3.00)|4|-|"]
    assert measured.medians() == [
        {"side": "b", "size": 2, "s": 4.0},
        {"side": "a", "size": 1, "s": 2.0},
    ]
