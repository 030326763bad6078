"""Generated programs have the published means, the shapes they claim, and one fate per seed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from random import Random
from statistics import correlation, fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.errors import ConfigError
from agentrt.lab.workloads.shape import CallShape, ProgramShape, with_hints
from benchmarks.workloads.generate import WORKLOADS, generate
from benchmarks.workloads.lats import LIMIT, WIDTH
from benchmarks.workloads.sizes import Gaps, Sizes


@cache
def programs(name: str, n: int = 3000) -> Sequence[ProgramShape]:
    return tuple(generate(name, n, seed=1))


def calls(of: Sequence[ProgramShape]) -> list[CallShape]:
    return [call for program in of for call in program.calls]


def fresh(program: ProgramShape, call: CallShape) -> int:
    """Tokens of a prompt that are not the earlier prompt and output."""
    if call.extends is None:
        return call.prompt_tokens - program.system_tokens
    parent = program.calls[call.extends]
    return call.prompt_tokens - parent.prompt_tokens - parent.output_tokens


def test_chat_has_the_means_of_sharegpt() -> None:
    some = programs("chat")
    each = calls(some)
    assert len(each) / len(some) == pytest.approx(6.66, rel=0.06)
    assert max(len(program.calls) for program in some) <= 80
    assert fmean(call.output_tokens for call in each) == pytest.approx(277, rel=0.05)
    added = fmean(fresh(program, call) for program in some for call in program.calls)
    assert added == pytest.approx(256, rel=0.06)


def test_react_has_the_means_of_bfcl() -> None:
    some = programs("react")
    each = calls(some)
    assert len(each) / len(some) == pytest.approx(10.75, rel=0.05)
    assert max(len(program.calls) for program in some) <= 70
    assert fmean(call.output_tokens for call in each) == pytest.approx(34.14, rel=0.05)
    assert fmean(call.prompt_tokens for call in each) == pytest.approx(735.06, rel=0.06)


def test_lats_has_the_means_of_lats() -> None:
    some = programs("lats", 900)
    each = calls(some)
    assert len(each) / len(some) == pytest.approx(159.7, rel=0.06)
    assert fmean(call.output_tokens for call in each) == pytest.approx(72.6, rel=0.05)
    assert fmean(call.prompt_tokens for call in each) == pytest.approx(467.2, rel=0.06)


def test_chats_are_longer_tailed_than_agents() -> None:
    def tail(name: str) -> float:
        counts = [len(program.calls) for program in programs(name)]
        return fmean(n**2 for n in counts) / fmean(counts) ** 2

    assert tail("chat") > 1.5 * tail("react")


@pytest.mark.parametrize("name", ["chat", "react"])
def test_a_chain_extends_the_call_before(name: str) -> None:
    for program in programs(name)[:200]:
        for index, call in enumerate(program.calls):
            before = None if index == 0 else index - 1
            assert call.extends == before
            assert call.after == (() if before is None else (before,))


def test_a_search_fans_out_and_joins() -> None:
    for program in programs("lats", 900)[:50]:
        nodes = Counter(call.node for call in program.calls)
        iterations = nodes["expand"] // WIDTH
        assert 1 <= iterations <= LIMIT
        assert nodes == +Counter(
            expand=WIDTH * iterations, evaluate=WIDTH * iterations, reflect=iterations - 1
        )
        for index, call in enumerate(program.calls):
            if call.node == "evaluate":
                assert call.after == (call.extends,)
            elif call.node == "reflect":
                assert call.after == tuple(range(index - WIDTH, index))
            elif call.after:
                assert [program.calls[i].node for i in call.after] == ["reflect"]


def test_searches_end_early_or_at_the_limit() -> None:
    counts = Counter(len(program.calls) for program in programs("lats", 900))
    longest = LIMIT * (2 * WIDTH + 1) - 1
    assert max(counts) == longest
    assert 0.15 < counts[longest] / 900 < 0.4
    assert min(counts) == 2 * WIDTH


@pytest.mark.parametrize(("name", "types"), [("mixed", 3), ("graphs8", 8)])
def test_types_have_equal_shares_in_random_order(name: str, types: int) -> None:
    some = generate(name, 20 * types, seed=3)
    assert set(Counter(program.type for program in some).values()) == {20}
    order = [program.type for program in some]
    assert order[:types] != order[types : 2 * types]


def test_the_eight_types_differ_in_size_by_more_than_an_order_of_magnitude() -> None:
    sizes: dict[str, list[int]] = {}
    for program in programs("graphs8", 320):
        sizes.setdefault(program.type, []).append(program.output_tokens)
    means = sorted(fmean(some) for some in sizes.values())
    assert len(means) == 8
    assert means[-1] > 30 * means[0]
    # And each varies: the coefficient of variation is that of real work, not of a constant.
    for some in sizes.values():
        assert fmean(n**2 for n in some) / fmean(some) ** 2 - 1 > 0.1


def test_graphs_fan_out_and_join_as_they_say() -> None:
    by_type = {program.type: program for program in programs("graphs8", 320)}
    judge = by_type["best_of_n"].calls[-1]
    assert judge.node == "judge"
    assert judge.after == tuple(range(len(by_type["best_of_n"].calls) - 1))
    reduces = [call for call in by_type["map_reduce"].calls if call.node == "reduce"]
    assert all(1 <= len(call.after) <= 8 for call in reduces)
    for call in by_type["debate"].calls:
        if call.node == "rebut":
            assert call.extends in call.after
            assert len(call.after) >= 3
    assert by_type["plan_execute"].calls[0].node == "plan"
    assert by_type["rag"].calls[1].gap_s > 0


@given(
    name=st.sampled_from(sorted(WORKLOADS)),
    n=st.integers(0, 12),
    more=st.integers(0, 12),
    seed=st.integers(0, 2**40),
)
@settings(max_examples=40, deadline=None)
def test_a_program_is_the_same_whatever_n_is(name: str, n: int, more: int, seed: int) -> None:
    few, many = generate(name, n, seed), generate(name, n + more, seed)
    assert many[:n] == few
    assert len({program.program_id for program in many}) == n + more


@given(name=st.sampled_from(sorted(WORKLOADS)), seed=st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_every_program_has_one_root_level_and_prompts_that_hold_what_they_extend(
    name: str, seed: int
) -> None:
    for program in generate(name, 3, seed):
        assert program.arrives_s == 0
        assert program.calls[0].after == ()
        for call in program.calls:
            assert fresh(program, call) >= 1
            assert math.isfinite(call.gap_s)
            assert not call.human


def test_another_seed_gives_other_programs() -> None:
    assert generate("chat", 5, 1) != generate("chat", 5, 2)


def test_humans_take_time_only_when_asked() -> None:
    chats = generate("chat", 50, 1, gaps=Gaps(human_s=20))
    later = [call for program in chats for call in program.calls[1:]]
    assert all(call.human and call.gap_s > 0 for call in later)
    assert not any(program.calls[0].human for program in chats)
    assert [p.output_tokens for p in generate("react", 9, 1, gaps=Gaps(tool_s=0))]


def test_tools_take_a_second_in_the_median() -> None:
    gaps = sorted(call.gap_s for call in calls(programs("react")) if call.after)
    assert gaps[len(gaps) // 2] == pytest.approx(1.0, rel=0.05)


def test_calls_of_one_program_are_alike_in_size() -> None:
    pairs = [program.calls[:2] for program in programs("chat") if len(program.calls) > 1]
    first, second = ([math.log(pair[i].output_tokens) for pair in pairs] for i in (0, 1))
    assert 0.3 < correlation(first, second) < 0.5


@pytest.mark.parametrize("wanted", [0.0, 0.5, 0.9, 1.0])
def test_hints_correlate_as_asked(wanted: float) -> None:
    hinted = with_hints(programs("react"), wanted, seed=5)
    truth = [math.log(program.output_tokens) for program in hinted]
    hints = [math.log(program.hint_tokens or 0) for program in hinted]
    assert correlation(truth, hints) == pytest.approx(wanted, abs=0.05)
    assert hinted == with_hints(programs("react"), wanted, seed=5)


def test_exact_hints_are_the_truth() -> None:
    for program in with_hints(programs("mixed", 30), 1.0):
        assert program.hint_tokens == pytest.approx(program.output_tokens)


def test_an_unknown_workload_is_refused_with_a_guess() -> None:
    with pytest.raises(ConfigError, match="did you mean 'react'"):
        generate("raect", 1, 0)


@given(
    mean=st.floats(2, 500),
    spread=st.floats(0.2, 1.5),
    room=st.floats(2, 100),
    seed=st.integers(0, 1000),
)
@settings(max_examples=20, deadline=None)
def test_sizes_have_their_mean_after_the_cut(
    mean: float, spread: float, room: float, seed: int
) -> None:
    sizes = Sizes(mean, spread, high=mean * room)
    rng = Random(seed)
    drawn = [sizes.draw(rng) for _ in range(2000)]
    assert min(drawn) >= 1
    assert max(drawn) <= mean * room + 1
    error = math.sqrt(max(sizes.square() - mean**2, 1.0) / len(drawn))
    assert abs(fmean(drawn) - mean) < 6 * error


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="no lognormal"):
        Sizes(mean=5, spread=1, high=4).at(0.0)
