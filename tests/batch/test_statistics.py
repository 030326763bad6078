"""What files of results say: intervals, pass@k, sign tests, and how two files differ."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest

from agentrt.batch import Result, compare, summarize
from agentrt.batch.statistics import interval, pass_at, sign_test


@pytest.mark.parametrize("samples", range(1, 8))
def test_pass_at_k_is_the_share_of_choices_with_one_that_passed(samples: int) -> None:
    """Compared with counting all choices of k samples."""
    for passed, k in itertools.product(range(samples + 1), range(1, samples + 1)):
        outcomes = [number < passed for number in range(samples)]
        choices = list(itertools.combinations(outcomes, k))
        assert pass_at(k, samples, passed) == pytest.approx(sum(map(any, choices)) / len(choices))


@pytest.mark.parametrize(("k", "samples", "passed"), [(0, 3, 1), (4, 3, 1), (1, 3, 4)])
def test_pass_at_k_of_what_cannot_be(k: int, samples: int, passed: int) -> None:
    with pytest.raises(ValueError, match="pass@"):
        pass_at(k, samples, passed)


def test_the_sign_test_counts_all_outcomes() -> None:
    for better, worse in itertools.product(range(6), repeat=2):
        count = better + worse
        sums = [sum(each) for each in itertools.product((0, 1), repeat=count)]
        unequal = abs(better - worse)
        expected = sum(abs(2 * each - count) >= unequal for each in sums) / len(sums)
        assert sign_test(better, worse) == pytest.approx(expected)
    tail = sum(math.comb(901, each) for each in range(421))
    assert sign_test(420, 481) == pytest.approx(2 * tail / 2**901)


def test_the_interval_has_the_mean_about_as_often_as_it_says() -> None:
    """Of 200 samples of a known distribution, its mean is in 88% to 99% of the intervals."""
    rng = random.Random(48)
    inside = 0
    for _ in range(200):
        low, high = interval([rng.gauss(5, 2) for _ in range(40)]) or (0.0, 0.0)
        inside += low <= 5 <= high
    assert 176 <= inside <= 198
    assert interval([1.0]) is None
    assert interval([2.0, 2.0]) == (2.0, 2.0)
    assert interval([1.0, 2.0, 4.0], seed=1) == interval([1.0, 2.0, 4.0], seed=1)


def test_the_interval_of_many_values_is_that_of_a_binomial_distribution() -> None:
    """Values of which few are distinct: drawing each of a million 10,000 times takes minutes."""
    low, high = interval([1.0] * 300_000 + [0.0] * 700_000) or (0.0, 0.0)
    half = 1.96 * (0.3 * 0.7 / 1_000_000) ** 0.5
    assert (low, high) == pytest.approx((0.3 - half, 0.3 + half), abs=half / 10)
    assert interval([2.0] * 3_000) == (2.0, 2.0)


def results(*outcomes: Any, score: str = "right") -> Iterator[Result]:
    """Results of inputs a, b, …: for each, the scores of its samples; a text is a failure."""
    for name, samples in zip("abcdef", outcomes, strict=False):
        for sample, value in enumerate(samples):
            if isinstance(value, str):
                yield Result(name, sample, "failed", error=value, seconds=1.0)
            else:
                scores = {score: float(value)}
                yield Result(name, sample, "done", result=value, scores=scores, seconds=2.0)


def test_a_summary_of_samples() -> None:
    """Means are over inputs; a sample that failed is no score, and has not passed."""
    summary = summarize(results((1, 0, 0, 0), (1, 1, "Oops", 1), ("Oops",) * 4))
    assert (summary["results"], summary["inputs"]) == (12, 3)
    assert (summary["done"], summary["failed"], summary["stopped"]) == (7, 5, 0)
    right = summary["scores"]["right"]
    assert right["mean"] == pytest.approx((0.25 + 1) / 2)
    assert (right["scored"], right["errors"], right["missing"]) == (7, 0, 5)
    assert right["pass"] == pytest.approx({"1": (0.25 + 0.75) / 3, "2": (0.5 + 1) / 3, "4": 2 / 3})
    assert summary["failures"][0] == {"id": "b", "sample": 2, "error": "Oops"}
    assert len(summary["slowest"]) == 5


def test_a_score_that_raised_is_counted_apart() -> None:
    broken = Result("a", 0, "done", score_errors={"right": "KeyError: 'answer'"})
    summary = summarize([broken, *results((), (1, 0))])
    right = summary["scores"]["right"]
    assert (right["errors"], right["first_error"]) == (1, "a: KeyError: 'answer'")
    assert right["mean"] == 0.5
    only = summarize([broken])["scores"]["right"]
    assert (only["mean"], only["low"], only.get("pass")) == (None, None, None)


def test_a_score_that_is_no_yes_or_no_has_no_pass_at_k() -> None:
    assert "pass" not in summarize(results((0.5, 1)))["scores"]["right"]
    assert "pass" not in summarize(results((1,), (0,)))["scores"]["right"]


def test_nothing_yet() -> None:
    assert summarize([])["results"] == 0
    assert compare([], [])["both"] == 0


def test_two_files_are_compared_input_by_input() -> None:
    """a is better, b is worse and then fails, c is as it was, d is only there before."""
    before = results((0, 0), (1, 1), (1,), (1,))
    after = results((1, 0), (0, "Oops"), (1,))
    report = compare(before, after)
    assert (report["both"], report["only_before"], report["only_after"]) == (5, 1, 0)
    assert report["states"] == {"done -> done": 4, "done -> failed": 1}
    right = report["scores"]["right"]
    assert (right["better"], right["worse"], right["same"], right["p"]) == (1, 1, 1, 1.0)
    assert right["difference"] == pytest.approx((0.5 - 1 + 0) / 3)
    assert right["after"] - right["before"] == pytest.approx(right["difference"])
    changed = {(each["id"], each["sample"]): each["scores"] for each in report["changed"]}
    assert changed == {
        ("a", 0): {"right": [0.0, 1.0]},
        ("b", 0): {"right": [1.0, 0.0]},
        ("b", 1): {"right": [1.0, None]},
    }
    assert report["other_results"] == 3
