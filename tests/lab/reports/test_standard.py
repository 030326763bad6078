"""The standard metrics, on jobs that are counted by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from agentrt.lab.outcome import Outcome, ServedCall, served
from agentrt.lab.reports.standard import GoodputLimits, short_table, standard
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.request import CallReport


def call(turn: int, ttft_s: float, e2el_s: float, tokens: int = 11) -> ServedCall:
    return ServedCall(turn, ttft_s, e2el_s, tokens, 100, 40, 80)


def job(name: str, since: float, until: float, alone_s: float, *calls: ServedCall) -> Outcome:
    return Outcome(name, "t", since, until, alone_s, 10, 0.0, 0.0, 0.0, calls=calls)


JOBS = [
    job("a", 0.0, 10.0, 10.0, call(1, 1.0, 2.0), call(2, 3.0, 5.0)),
    job("b", 10.0, 30.0, 5.0, call(1, 0.5, 0.5, tokens=1)),
    job("c", 20.0, 100.0, 20.0),
]


def test_each_metric_is_what_its_name_says() -> None:
    found = standard(JOBS, GoodputLimits(ttft=2000, tpot=150, jct=20_000))
    assert (found["completed"], found["duration"]) == (3, 100.0)
    assert found["jobs_per_hour"] == pytest.approx(108)
    assert found["job_goodput_per_hour"] == pytest.approx(72)
    assert found["mean_jct_s"] == pytest.approx(110 / 3)
    assert found["median_jct_s"] == 20.0
    assert found["p99.9_jct_s"] == pytest.approx(79.88)
    assert found["mean_ttft_ms"] == pytest.approx(1500)
    assert [found[f"median_ttft_ms_turn_{turn}"] for turn in (1, 2)] == [750.0, 3000.0]
    assert found["mean_tpot_ms"] == pytest.approx(150), "a call of one token has none"
    assert found["request_throughput"] == pytest.approx(0.03)
    assert found["request_goodput"] == pytest.approx(0.02), "the second turn began too late"
    assert found["output_throughput"] == pytest.approx(0.23)
    assert found["prefix_cache_hit_rate"] == pytest.approx(0.4)
    assert found["infinite_cache_hit_rate"] == pytest.approx(0.8)
    assert found["ms_per_token"] == pytest.approx(11_000 / 3)


def test_fairness_is_the_slowdown_of_small_and_large_jobs() -> None:
    found = standard(JOBS)
    slow = [found[f"slowdown_{name}"] for name in ("small", "medium", "large")]
    assert slow == [4.0, 1.0, 4.0]
    assert (found["slowdown"], found["max_slowdown"]) == (3.0, 4.0)


def test_what_is_not_known_is_left_out() -> None:
    found = standard([replace(one, ideal_s=math.nan, calls=()) for one in JOBS])
    assert not any("ttft" in name or "slowdown" in name or "hit" in name for name in found)
    assert standard([]) == {}
    table = short_table("run", {"mean_jct_s": "JCT", "mean_ttft_ms": "TTFT"}, {"a": [found]})
    assert "| 36.7 " in table
    assert "TTFT" not in table


def test_a_first_token_comes_before_what_is_decoded() -> None:
    """Its call waits, is computed, is stopped before it said anything, and again."""
    spans = [["queued", 1.0], ["prefill", 2.0], ["preempted", 4.0], ["recompute", 8.0]]
    report = CallReport(spans=[*spans, ["decode", 16.0], ["preempted", 32.0], ["decode", 64.0]])
    first = CallShape(10, 50)
    again = CallShape(10, 80, after=(0,), extends=0)
    shape = ProgramShape("p", "t", (first, replace(first, after=(0,)), again), system_tokens=30)
    found = list(served(shape, {0: report, 2: replace(report, cached_tokens=7)}))
    assert [(one.turn, one.ttft_s, one.e2el_s) for one in found] == [(1, 15, 127), (2, 15, 127)]
    assert [(one.cached_tokens, one.cacheable_tokens) for one in found] == [(0, 30), (7, 60)]
    assert list(served(shape, {0: CallReport()})) == []
