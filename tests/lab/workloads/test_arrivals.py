"""Programs arrive at the rates asked for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.lab.workloads.arrivals import at_once, bursts, poisson
from agentrt.lab.workloads.shape import CallShape, ProgramShape


def programs(n: int, output_tokens: int = 10) -> list[ProgramShape]:
    return [ProgramShape(f"p{i}", "toy", (CallShape(output_tokens),)) for i in range(n)]


def ids(some: object) -> list[str]:
    assert isinstance(some, list | tuple)
    return [program.program_id for program in some]


def test_poisson_keeps_its_rate_and_spreads_as_it_should() -> None:
    arrived = poisson(programs(5000), rate_per_s=4.0, seed=1)
    assert arrived[-1].arrives_s == pytest.approx(5000 / 4, rel=0.05)
    gaps = [b.arrives_s - a.arrives_s for a, b in pairwise(arrived)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance == pytest.approx(mean**2, rel=0.1)


def test_bursts_keep_the_mean_rate() -> None:
    arrived = bursts(programs(8000), 5.0, seed=2, period_programs=100)
    assert arrived[-1].arrives_s == pytest.approx(8000 / 5, rel=0.06)


def test_bursts_alternate_between_the_two_loads() -> None:
    """With a mean load of 0.8, high 1.9 and low 0.1, 7/18 of each period is high."""
    period_s, rate = 200 / 5.0, 5.0
    arrived = bursts(programs(8000), rate, seed=2, period_programs=200)
    bins: dict[int, int] = {}
    for program in arrived:
        slot = int(program.arrives_s / (period_s / 18))
        bins[slot] = bins.get(slot, 0) + 1
    slots = range(max(bins))
    loads = [bins.get(slot, 0) / (period_s / 18) / rate * 0.8 for slot in slots]
    assert sum(load > 1.0 for load in loads) / len(loads) == pytest.approx(7 / 18, abs=0.05)
    high = [load for load in loads if load > 1.3]
    low = [load for load in loads if load < 0.6]
    assert sum(high) / len(high) == pytest.approx(1.9, rel=0.08)
    assert sum(low) / len(low) == pytest.approx(0.1, abs=0.05)


@given(
    n=st.integers(0, 60),
    rate=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**30),
    load=st.floats(0.2, 1.8),
    period=st.floats(0.5, 500),
)
@settings(max_examples=50, deadline=None)
def test_arrivals_rise_and_lose_nobody(
    n: int, rate: float, seed: int, load: float, period: float
) -> None:
    some = programs(n)
    burst = bursts(some, rate, seed, load, period)
    for arrived in (burst, poisson(some, rate, seed), at_once(some)):
        assert ids(arrived) == ids(some)
        times = [program.arrives_s for program in arrived]
        assert times == sorted(times)
        assert all(at_s >= 0 for at_s in times)
    assert poisson(some, rate, seed)[: n // 2] == poisson(some[: n // 2], rate, seed)
