"""What reports teach of a fleet's speed, and of a replica's pace."""

from __future__ import annotations

import pytest

from agentrt.request import CallReport
from agentrt.router.speed import Pace, Speed


def test_speed_is_learned_from_reports() -> None:
    """Steps, calls beside and prompt tokens are told apart, from calls that differ in them."""
    speed, true = Speed(), (0.05, 0.002, 0.0008)
    for number in range(400):
        steps, beside, computed = 10 + number % 7 * 20, number % 5, number * 37 % 900
        seconds = steps * (true[0] + true[1] * beside) + computed * true[2]
        report = CallReport(service_s=seconds, steps=steps, prompt_tokens=computed)
        speed.learn(report, beside)
    assert (speed.step_s, speed.beside_s, speed.prefill_s) == pytest.approx(true, rel=0.05)
    assert speed.expected_s(report, beside) == pytest.approx(seconds, rel=0.05)


def test_the_mean_service_is_of_all_calls_at_first_and_then_of_the_last() -> None:
    """A call without a step or without service counts for nothing."""
    speed = Speed()
    speed.learn(CallReport(service_s=1.0, steps=1), 0)
    assert speed.service_s == 1.0
    speed.learn(CallReport(service_s=9.0), 0)
    speed.learn(CallReport(steps=9), 0)
    speed.learn(CallReport(service_s=3.0, steps=100), 0)
    assert speed.service_s == 2.0
    for _ in range(48):
        speed.learn(CallReport(service_s=2.0, steps=100), 0)
    for _ in range(2):
        before = speed.service_s
        speed.learn(CallReport(service_s=4.0, steps=100), 0)
        assert speed.service_s == pytest.approx(before + 0.02 * (4.0 - before))


def test_speed_is_fitted_at_the_fourth_call_and_then_every_sixteen() -> None:
    speed, fits = Speed(), []
    for number in range(1, 50):
        before = speed.step_s
        speed.learn(CallReport(service_s=2.0, steps=100), 0)
        if speed.step_s != before:
            fits.append(number)
    assert fits == [4, 16, 32, 48]


def test_the_first_values_count_as_a_hundredth_of_a_call() -> None:
    """What the calls say nothing of stays as it was."""
    speed, first_s = Speed(), 6e-3
    for _ in range(4):
        speed.learn(CallReport(service_s=1.0, steps=100), 0)
    calls = sum(0.995**age for age in range(4))
    trust = 0.01 / first_s**2
    fitted_s = (calls * 100 + trust * first_s) / (calls * 100**2 + trust)
    assert speed.step_s == pytest.approx(fitted_s, rel=1e-9)
    assert (speed.beside_s, speed.prefill_s) == pytest.approx((1e-4, 25e-6), rel=1e-9)


def test_speed_falls_to_a_quarter_at_most_in_one_fit_and_old_calls_are_forgotten() -> None:
    speed = Speed()
    for _ in range(4):
        speed.learn(CallReport(service_s=0.1, steps=100), 0)
    assert speed.step_s == pytest.approx(6e-3 / 4)
    for _ in range(1200):
        speed.learn(CallReport(service_s=0.1, steps=100), 0)
    assert speed.step_s == pytest.approx(1e-3, rel=0.01)
    for _ in range(1200):
        speed.learn(CallReport(service_s=0.4, steps=100), 0)
    assert speed.step_s == pytest.approx(4e-3, rel=0.05)


def test_a_pace_that_is_unsure_is_one() -> None:
    pace = Pace()
    assert {pace.learn(2.0) for _ in range(31)} == {1.0}
    assert pace.learn(2.0) == pytest.approx(2.0)
    moved = Pace()
    for ratio in [3.0, 1.0] + [2.0] * 30:
        last = moved.learn(ratio)
    assert last == pytest.approx(2.0)
    for _ in range(40):
        last = moved.learn(4.0)
    mean = 2.0
    for calls in range(33, 73):
        mean += max(0.02, 1 / calls) * (4.0 - mean)
    assert last == pytest.approx(mean)
    steady = Pace()
    assert {steady.learn(1.1) for _ in range(100)} == {1.0}
