"""Sides that take turns, and figures over those of a base."""

from __future__ import annotations

import gc

import pytest

from agentrt.lab.runs.grid import turns
from benchmarks.harness import no_collections, percentile, ratios


def test_every_repeat_begins_with_another_side() -> None:
    assert [[*turns("abc", repeat)] for repeat in range(2)] == [["a", "b", "c"], ["b", "c", "a"]]


def test_ratios_are_to_the_base_of_the_same_repeat() -> None:
    mine, base = {"p50_ms": 6.0, "calls": 9.0}, {"p50_ms": 4.0, "calls": 3.0}
    assert ratios(mine, base, ["calls"], "_to_stock") == {"calls_to_stock": 3.0}
    assert ratios(mine, base, ["p50_"], "to_stock", of="ms") == {"p50_to_stock": 1.5}


@pytest.mark.parametrize(("share", "value"), [(0.5, 2), (0.75, 3), (0.99, 4), (0.01, 1)])
def test_a_percentile_is_one_of_the_values(share: float, value: float) -> None:
    assert percentile([4, 1, 3, 2], share) == value


def test_the_collector_rests_and_goes_on() -> None:
    assert gc.isenabled()
    with no_collections():
        assert not gc.isenabled()
    assert gc.isenabled()
