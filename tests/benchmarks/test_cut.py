"""Programs cut to an engine's room, or scaled: what is left is a program still."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.errors import ConfigError
from agentrt.lab.workloads.replay import Scales
from agentrt.lab.workloads.shape import (
    CallShape,
    ProgramShape,
)
from benchmarks.workloads.generate import generate
from benchmarks.workloads.source import (
    WHOLE,
    Cut,
    rescaled,
)

CHAIN = ProgramShape(
    "p",
    "chat",
    (
        CallShape(10, 100),
        CallShape(10, 150, after=(0,), extends=0, gap_s=3.0, tool="shell"),
        CallShape(10, 300, after=(1,), extends=1),
    ),
)


def test_what_comes_after_a_call_that_does_not_fit_goes_with_it() -> None:
    assert WHOLE.of(CHAIN) is CHAIN
    assert len(Cut(calls=2).of(CHAIN).calls) == 2
    assert len(Cut(tokens=309).of(CHAIN).calls) == 2
    assert Cut(tokens=310).of(CHAIN) is CHAIN
    fan = ProgramShape(
        "f",
        "fan",
        (
            CallShape(1, 5),
            CallShape(9, 500, after=(0,)),
            CallShape(2, 7, after=(0,)),
            CallShape(3, 5, after=(1,)),
            CallShape(4, 9, after=(2,), extends=2),
        ),
    )
    left = Cut(tokens=100).of(fan)
    assert [call.output_tokens for call in left.calls] == [1, 2, 4]
    assert left.calls[2].after == (1,)
    assert left.calls[2].extends == 1


def test_a_program_of_which_nothing_is_left_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"program p: its first call.*50 tokens"):
        Cut(tokens=50).of(CHAIN)


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 99),
    calls=st.integers(1, 30),
    tokens=st.integers(1500, 3000),
)
def test_what_is_left_fits_and_keeps_its_order(seed: int, calls: int, tokens: int) -> None:
    for program in generate("react", 2, seed):
        left = Cut(calls, tokens).of(program)
        assert 1 <= len(left.calls) <= calls
        assert all(c.prompt_tokens + c.output_tokens <= tokens for c in left.calls)


def test_scaling_keeps_edges_and_tools() -> None:
    half = rescaled(CHAIN, Scales(0.5, 0.5, 0.5))
    assert [call.prompt_tokens for call in half.calls] == [50, 75, 150]
    assert [call.output_tokens for call in half.calls] == [5, 5, 5]
    assert (half.calls[1].gap_s, half.calls[1].tool) == (1.5, "shell")
    assert [call.after for call in half.calls] == [call.after for call in CHAIN.calls]
    assert rescaled(CHAIN, Scales()) == CHAIN


def test_scaling_includes_limits_hints_and_the_time_after_the_last_call() -> None:
    calls = (CallShape(10, 100, max_tokens=12), CallShape(10, 100, max_tokens=10))
    program = ProgramShape("p", "p", calls, hint_tokens=20.0, tail_s=8.0)
    scaled = rescaled(program, Scales(output=2.0, gap=0.5))
    assert [(call.output_tokens, call.max_tokens) for call in scaled.calls] == [(20, 24), (20, 20)]
    assert (scaled.hint_tokens, scaled.tail_s) == (40.0, 4.0)
