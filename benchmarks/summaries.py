"""Summaries of runs with further statistics, which benchmarks show, and the runs of their grids."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from agentrt.lab.engine.virtual import EngineCounts
from agentrt.lab.outcome import Outcome, RunOutcome, Summary, quantile, summarize
from agentrt.lab.runs.grid import RunResult, RunSpec, arrivals, run
from agentrt.request import Usage


@dataclass(frozen=True, slots=True)
class FullSummary(Summary):
    """Further statistics over many programs. None means unknown.

    - ``unloaded_token_s`` is the token latency that the programs would have if each ran alone.
    - ``mean_steps`` and ``p95_steps`` are latencies in engine steps.
    - ``balance`` is the busy time of the busiest engine, divided by the mean of all engines.
    - ``steady_per_s`` is the number of programs that ended by the last arrival, and
      ``offered_per_s`` the number of all programs, both divided by the time from the first to the
      last arrival; None if all programs arrived at once.
    - ``prefix_hit_share`` is the share of prompt tokens that were in the prefix cache, and
      ``recomputed_tokens`` is the number of tokens that were computed again after a preemption.
    - ``cpu_us`` is the scheduler's CPU time per step in microseconds.
    """

    token_p95_s: float | None = None
    token_p99_s: float | None = None
    mean_steps: float | None = None
    p95_steps: float | None = None
    prefix_hit_share: float | None = None
    recomputed_tokens: float | None = None
    cpu_us: float | None = None
    balance: float = 1.0
    steady_per_s: float | None = None
    offered_per_s: float | None = None
    unloaded_token_s: float = math.nan


def full_summary(ran: RunOutcome) -> FullSummary:
    """Summarize a run."""
    summary, busy_s = _of_programs(ran.outcomes), ran.busy_s
    if any(busy_s):
        summary = replace(summary, balance=max(busy_s) * len(busy_s) / sum(busy_s))
    return replace(summary, **_of_engine(ran.outcomes, ran.counts)) if ran.engines else summary


def _of_programs(outcomes: Sequence[Outcome]) -> FullSummary:
    tokens = sorted(o.token_latency_s for o in outcomes)
    last = max(o.arrived_s for o in outcomes)
    paced_s = last - min(o.arrived_s for o in outcomes)
    return FullSummary(
        **asdict(summarize(outcomes)),
        token_p95_s=quantile(tokens, 0.95),
        token_p99_s=quantile(tokens, 0.99),
        steady_per_s=sum(o.ended_s <= last for o in outcomes) / paced_s if paced_s else None,
        offered_per_s=len(outcomes) / paced_s if paced_s else None,
        unloaded_token_s=sum(o.ideal_s / o.output_tokens for o in outcomes) / len(outcomes),
    )


def _of_engine(outcomes: Sequence[Outcome], counts: EngineCounts) -> dict[str, Any]:
    """Return the fields of a `FullSummary` that are known only if the engines have counts."""
    steps = sorted(float(o.steps) for o in outcomes)
    return {
        "mean_steps": sum(steps) / len(steps),
        "p95_steps": quantile(steps, 0.95),
        "prefix_hit_share": hit_share(counts.usage),
        "recomputed_tokens": counts.usage.recomputed_tokens,
        "cpu_us": None if counts.cpu_us is None else counts.cpu_us / max(1, counts.steps),
    }


def hit_share(usage: Usage) -> float:
    """Return the share of prompt tokens that were in the prefix cache."""
    return usage.cached_tokens / max(1, usage.prompt_tokens)


def with_ideals(ran: RunOutcome, known: RunOutcome) -> RunOutcome:
    """Return a run with the ideal latencies of another run of the same programs, because a real
    engine does not know the ideal latencies.
    """
    ideals = {outcome.program_id: outcome.ideal_s for outcome in known.outcomes}
    outcomes = [replace(outcome, ideal_s=ideals[outcome.program_id]) for outcome in ran.outcomes]
    return replace(ran, outcomes=outcomes)


@dataclass(frozen=True, slots=True)
class TypedResult(RunResult):
    """The result of a run: a summary of all programs, and one for each program type, without the
    engines' counts.
    """

    by_type: Mapping[str, Summary] = field(default_factory=dict)


def do(spec: RunSpec) -> TypedResult:
    """Do a run in this process."""
    ran = run(spec, arrivals(spec))
    types: dict[str, list[Outcome]] = {}
    for outcome in ran.outcomes:
        types.setdefault(outcome.type, []).append(outcome)
    return TypedResult(spec, full_summary(ran), {n: _of_programs(types[n]) for n in sorted(types)})
