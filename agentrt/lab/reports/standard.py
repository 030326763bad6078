"""The metrics of every comparison of programs, with the names that vLLM uses.

The metrics of calls are the metrics of ``vllm bench serve``, measured at the engine: TTFT, TPOT,
E2EL, throughput and goodput. aiperf calls TTFT time to first token, TPOT inter token latency, and
E2EL request latency. A job is a program from its arrival to its end. The names of times contain
their unit, except ``duration``, which is in seconds. Unknown metrics are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from agentrt.lab.outcome import Outcome, ServedCall, quantile
from agentrt.lab.reports.tables import markdown, spread_text

_TAILS = {"p95": 0.95, "p99": 0.99, "p99.9": 0.999}
_TURNS = ((1, 1), (2, 2), (3, 5), (6, 10), (11, None))
_THIRDS = ("small", "medium", "large")
_SHARES = ("prefix_cache_hit_rate", "infinite_cache_hit_rate")
Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class GoodputLimits:
    """The limits, in milliseconds, that a call or a job must not exceed to count for goodput."""

    ttft: float = 2_000.0
    tpot: float = 100.0
    jct: float = 60_000.0


def standard(jobs: Sequence[Outcome], limits: GoodputLimits | None = None) -> dict[str, float]:
    """Return the metrics of ended jobs; an empty dict if there are no jobs."""
    if not jobs:
        return {}
    limits = limits or GoodputLimits()
    seconds = max(job.ended_s for job in jobs) - min(job.arrived_s for job in jobs)
    times = [job.latency_s for job in jobs]
    good = sum(1e3 * time <= limits.jct for time in times)
    metrics = {
        "completed": len(jobs),
        "duration": seconds,
        "jobs_per_hour": 3600 * len(jobs) / seconds,
        "job_goodput_per_hour": 3600 * good / seconds,
        **_of("jct_s", times),
        "ms_per_token": 1e3 * fmean(job.token_latency_s for job in jobs),
    }
    calls = [call for job in jobs for call in job.calls]
    metrics |= _of_calls(calls, limits, seconds) if calls else {}
    if not any(math.isnan(job.ideal_s) for job in jobs):
        metrics |= dict(_fairness(jobs))
    return metrics


def _of_calls(
    calls: Sequence[ServedCall], limits: GoodputLimits, seconds: float
) -> dict[str, float]:
    prompt, output = (
        sum(getattr(call, f"{n}_tokens") for call in calls) for n in ("prompt", "output")
    )
    good = sum(1e3 * c.ttft_s <= limits.ttft and 1e3 * c.tpot_s <= limits.tpot for c in calls)
    metrics = {
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": len(calls) / seconds,
        "request_goodput": good / seconds,
        "output_throughput": output / seconds,
        "total_token_throughput": (prompt + output) / seconds,
        **_of("ttft_ms", [1e3 * call.ttft_s for call in calls]),
        **_of("tpot_ms", [1e3 * call.tpot_s for call in calls if call.output_tokens > 1]),
        **_of("e2el_ms", [1e3 * call.e2el_s for call in calls]),
        "prefix_cache_hit_rate": sum(call.cached_tokens for call in calls) / max(1, prompt),
        "infinite_cache_hit_rate": sum(call.cacheable_tokens for call in calls) / max(1, prompt),
    }
    for first, last in _TURNS:
        times = [call.ttft_s for call in calls if first <= call.turn <= (last or math.inf)]
        if times:
            name = f"{first}" if last == first else f"{first}-{last or ''}"
            metrics[f"median_ttft_ms_turn_{name}"] = 1e3 * median(times)
    return metrics


def _fairness(jobs: Sequence[Outcome]) -> Iterator[tuple[str, float]]:
    """Yield the mean and the maximum slowdown (latency divided by ideal latency). Then sort the
    jobs by ideal latency, and yield the mean slowdown of the small, the medium and the large third.
    """
    ordered = [job.latency_s / job.ideal_s for job in sorted(jobs, key=lambda job: job.ideal_s)]
    yield "slowdown", fmean(ordered)
    yield "max_slowdown", max(ordered)
    for at, name in enumerate(_THIRDS):
        ends = [len(ordered) * edge // len(_THIRDS) for edge in (at, at + 1)]
        if third := ordered[slice(*ends)]:
            yield f"slowdown_{name}", fmean(third)


def _of(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    tails = {f"{tail}_{name}": quantile(ordered, share) for tail, share in _TAILS.items()}
    return {f"mean_{name}": fmean(values), f"median_{name}": median(values), **tails}


def short_table(
    first: str,
    heads: Mapping[str, str],
    runs: Mapping[str, Sequence[Metrics]],
    columns: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Return a table with a row for each contender. Each cell has a metric over the
    seeds as `spread_text`.

    ``first`` is the head of the first column, and ``heads`` has the shown metrics with the heads of
    their columns. ``columns`` maps the heads of further columns to the texts of their rows.
    """
    known = {name for by_seed in runs.values() for metrics in by_seed for name in metrics}
    shown = [name for name in heads if name in known]
    line = [first, *(heads[name] for name in shown), *(columns or {})]
    texts = zip(*(columns or {}).values(), strict=True) if columns else [()] * len(runs)
    rows = [
        [contender, *(_cell(by_seed, name) for name in shown), *beside]
        for (contender, by_seed), beside in zip(runs.items(), texts, strict=True)
    ]
    return markdown(line, rows)


def _cell(by_seed: Sequence[Metrics], name: str) -> str:
    values = [metrics[name] for metrics in by_seed if name in metrics]
    return spread_text(values, percent=name in _SHARES)
