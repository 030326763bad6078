"""Learned statistics: exponentially weighted means, durations, step times, and typical values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.scheduler import limits as module
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.learned.costs import StepCost
from agentrt.scheduler.learned.durations import (
    LONGEST_S,
    RESOLUTION_S,
    Durations,
    Forecast,
    age_bin,
    bin_edge,
)
from agentrt.scheduler.learned.means import DOUBT, WINDOW, Mean
from tests.scheduler.ages import bin_of, edge

ANY, GREP = ("acme", "agent", ""), ("acme", "agent", "grep")
KIND = ("acme", "agent")


# -- means -----------------------------------------------------------------------------


def test_a_mean_moves_a_prior_as_far_as_its_samples_count() -> None:
    mean = Mean()
    assert mean.refine(3.0) == 3.0
    for _ in range(int(DOUBT)):
        mean.add(11.0)
    assert mean.refine(3.0) == 7.0


def test_a_mean_remembers_so_many_samples_and_old_ones_fade() -> None:
    mean = Mean()
    for _ in range(2 * int(WINDOW)):
        mean.add(1.0)
    assert (mean.n, mean.value) == (WINDOW, 1.0)
    for _ in range(2 * int(WINDOW)):
        mean.add(0.0)
    assert mean.value == pytest.approx(math.exp(-2), rel=0.01)


# -- durations -------------------------------------------------------------------------


@given(st.floats(0.0, 1e8))
def test_an_age_lies_between_the_edges_of_its_bin(seconds: float) -> None:
    age = age_bin(seconds)
    assert bin_edge(age) <= seconds * (1 + 1e-9)
    assert seconds <= bin_edge(age + 1) * (1 + 1e-9)


def test_bins_are_half_a_doubling_wide_and_end_somewhere() -> None:
    assert (age_bin(RESOLUTION_S), age_bin(1.001 * RESOLUTION_S)) == (0, 1)
    assert [age_bin(RESOLUTION_S * 2**n) for n in (1, 2, 3)] == [3, 5, 7]
    assert bin_edge(5) == RESOLUTION_S * 4
    assert age_bin(math.inf) == age_bin(LONGEST_S)


@pytest.mark.parametrize("elapsed", [0.0, 0.05, 0.3, 7.7, 12345.6])
def test_an_unknown_duration_is_expected_to_last_as_long_again(elapsed: float) -> None:
    assert Durations().expect([ANY, GREP], elapsed) == Forecast(1.0, max(elapsed, RESOLUTION_S))


def refined(prior: float, samples: Sequence[float]) -> float:
    """The mean of the samples, with the prior counted as eight samples."""
    return (sum(samples) + 8 * prior) / (len(samples) + 8)


totals = st.one_of(st.sampled_from([0.0, 0.05, 0.1, 0.4, 3.2]), st.floats(0.0, 5000.0))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(totals, st.sampled_from(["", "grep", "build"]), st.booleans()), max_size=40),
    totals,
)
def test_a_forecast_uses_all_samples_that_reached_the_age(
    story: list[tuple[float, str, bool]], elapsed: float
) -> None:
    """Sample by sample: a failed end says nothing about the duration, and the most specific kind
    comes last.
    """
    durations, age = Durations(), bin_of(elapsed)
    for total, what, well in story:
        durations.learn((*KIND, what), total, well=well)
    chance, seconds = 1.0, max(elapsed, 0.05)
    for what in ("", "grep"):
        known = [(t, well) for t, name, well in story if name == what and bin_of(t) >= age]
        chance = refined(chance, [float(well) for _, well in known])
        seconds = max(refined(seconds, [t - edge(age) for t, well in known if well]), 0.05)
    found = durations.expect([ANY, GREP], elapsed)
    assert found.chance == pytest.approx(chance)
    assert found.seconds == pytest.approx(seconds)


def test_samples_of_an_age_do_not_change_other_ages() -> None:
    durations = Durations()
    durations.entry(GREP, 3).learn(9.0, well=True)
    durations.entry(GREP, 3).learn(-1.0, well=True)
    known = durations.at(GREP, 3)
    assert known is not None
    assert (known.left_s.value, known.left_s.n) == (4.5, 2.0), "nothing lasts for less than 0"
    assert durations.at(GREP, 2) is durations.at(ANY, 3) is None


def test_tenants_do_not_influence_each_other() -> None:
    """This holds for any names, even with the separator between two names in a name."""
    durations = Durations()
    for _ in range(50):
        durations.learn(("a", "b/c", "d"), 99.0)
    for kind in (("b", "b/c", "d"), ("a/b", "c", "d"), ("a", "b", "c/d"), ("", "a/b/c", "d")):
        assert durations.expect([kind], 0.5) == Forecast(1.0, 0.5)


def test_the_number_of_kinds_is_limited_and_the_longest_unseen_is_dropped_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_KINDS", 3)
    durations, learned = Durations(), Learned()
    for name in "abcad":
        durations.learn((*KIND, name), 1.0)
        learned.call_ended(("t", name), 7)
    kept = [name for name in "abcd" if durations.at((*KIND, name), 0)]
    assert kept == sorted(name for _, name in learned._types) == ["a", "c", "d"]
    assert [kind[2] for kind, age, _ in durations.entries() if age == 0] == ["c", "a", "d"]


# -- steps and calls -------------------------------------------------------------------


def test_a_prompt_token_costs_the_extra_time_of_steps_with_prompts() -> None:
    costs = StepCost()
    assert costs.token_s == 0.0
    costs.step(0.25, 4, 4)
    assert costs.token_s == 0.0, "no prompt was seen"
    costs.step(0.75, 5, 4)
    assert costs.token_s == 0.5, "a token of a prompt is one more than the calls"
    costs.step(0.75, 36, 4)
    assert costs.token_s == 0.5 / 32, "each token counts, not each step"
    for _ in range(9):
        costs.step(0.125, 20, 4)
    assert costs.token_s == 0.0, "no step takes less than one without prompts"


@pytest.mark.parametrize("usual", [1, 8, 500])
def test_a_step_during_which_the_process_was_suspended_changes_no_estimate(usual: int) -> None:
    """A step of a minute, in which a kernel is compiled or the machine sleeps, at any time."""
    costs = StepCost()
    for _ in range(usual):
        costs.step(0.02, 4, 4)
        costs.step(0.07, 504, 4)
    costs.step(60.0, 504, 4)
    costs.step(60.0, 4, 4)
    for _ in range(3):
        costs.step(0.02, 4, 4)
        costs.step(0.07, 504, 4)
    assert costs.token_s == pytest.approx(0.05 / 500)
    assert costs.decode_s == pytest.approx(0.02)


@pytest.mark.parametrize("stalls", [1, 3])
def test_stalled_steps_with_many_tokens_do_not_outweigh_many_short_prompts(stalls: int) -> None:
    """The first steps take a minute, with 8,000 tokens each; all later prompts are short."""
    costs = StepCost()
    for _ in range(stalls):
        costs.step(60.0, 8004, 4)
    for _ in range(8):
        costs.step(0.02, 4, 4)
        costs.step(0.025, 54, 4)
    assert costs.token_s == pytest.approx(0.005 / 50)


def test_a_stall_is_no_service() -> None:
    costs = StepCost()
    assert costs.without_stall(60.0, 504, 4) == 60.0, "nothing is known that explains it"
    for _ in range(3):
        costs.step(0.02, 4, 4)
        costs.step(0.07, 504, 4)
    assert costs.without_stall(60.0, 504, 4) == pytest.approx(0.07)
    assert costs.without_stall(60.0, 4, 4) == pytest.approx(0.02)
    assert costs.without_stall(0.3, 504, 4) == 0.3, "steps differ"


def test_long_steps_that_short_prompts_explain_count() -> None:
    """Their tokens cost half as much as those of short prompts, so short prompts explain them."""
    costs = StepCost()
    for _ in range(8):
        costs.step(0.02, 4, 4)
        costs.step(0.03, 14, 4)
    costs.step(0.02 + 8000 * 0.0005, 8004, 4)
    assert costs.token_s == pytest.approx(0.0005)


def test_an_engine_with_prompts_in_every_step_knows_what_a_token_costs() -> None:
    """The cost is learned from the differences between steps with more and with fewer prompt
    tokens.
    """
    costs = StepCost()
    for tokens in [50, 200, 120, 400, 80] * 4:
        costs.step(0.03 + 2e-5 * tokens, tokens + 8, 8)
    costs.step(60.0, 108, 8)
    assert costs.token_s == pytest.approx(2e-5)
    assert costs.decode_s == pytest.approx(0.03)


def test_a_larger_batch_does_not_raise_the_cost_of_a_prompt_token() -> None:
    """Steps without prompts were seen with a small batch; a step of the full batch takes longer."""
    costs = StepCost()
    for _ in range(9):
        costs.step(0.02, 1, 1)
    for tokens in [50, 200, 120, 400, 80] * 20:
        costs.step(0.05 + 2e-5 * tokens, tokens + 64, 64)
    assert costs.token_s == pytest.approx(2e-5)
    assert costs.decode_s == pytest.approx(0.05)
    for _ in range(70):
        costs.step(0.04, 64, 64)
    assert costs.decode_s == pytest.approx(0.04)


def test_prompts_of_equal_length_are_compared_with_steps_without_prompts() -> None:
    costs = StepCost()
    costs.step(0.02, 4, 4)
    for _ in range(100):
        costs.step(0.07, 504, 4)
    assert costs.token_s == pytest.approx(1e-4)
    assert costs.decode_s == pytest.approx(0.02)


def test_outputs_are_learned_by_type_and_over_all_types() -> None:
    learned = Learned()
    assert learned.output(KIND) == 0
    for _ in range(int(DOUBT)):
        learned.call_ended(KIND, 100)
    assert (learned.output(KIND), learned.output(("acme", "other"))) == (100, 100)
    for _ in range(int(DOUBT)):
        learned.call_ended(("acme", "other"), 0)
    assert (learned.output(KIND), learned.output(("acme", "other"))) == (75, 25)


def test_a_type_branches_if_more_than_a_quarter_of_its_calls_are_parallel() -> None:
    learned, found = Learned(), []
    for beside in (False, False, False, True, True):
        learned.of_type(KIND).beside.add(beside)
        found.append(learned.of_type(KIND).branches)
    assert found == [False, False, False, False, True]
    assert not learned.of_type(("other", "agent")).branches
