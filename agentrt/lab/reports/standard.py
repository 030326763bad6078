"""The metrics that every comparison of programs has, under the names that vLLM gives them.

Of calls they are those of ``vllm bench serve`` (TTFT, TPOT, E2EL, throughput, goodput), counted at
the engine: aiperf calls them time to first token, inter token latency and request latency. A job is
a program from its arrival to its end. Names end in their unit; what is not known is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from agentrt.errors import ConfigError
from agentrt.lab.outcome import Outcome, ServedCall, quantile
from agentrt.lab.reports.tables import Spread, digits, in_digits, markdown

_TAILS = {"p95": 0.95, "p99": 0.99, "p99.9": 0.999}
_TURNS = ((1, 1), (2, 2), (3, 5), (6, 10), (11, None))
_THIRDS = ("small", "medium", "large")
SHORT = {
    "jobs_per_hour": "jobs/h",
    "mean_jct_s": "JCT mean, s",
    "p99_jct_s": "P99",
    "median_ttft_ms": "TTFT P50, ms",
    "p99_ttft_ms": "P99",
    "median_tpot_ms": "TPOT P50, ms",
    "request_goodput": "goodput, calls/s",
    "prefix_cache_hit_rate": "hits",
    "infinite_cache_hit_rate": "at best",
    "slowdown_small": "slowdown: small",
    "slowdown_large": "large",
}
"""What tables show of them, by head: JCT is a job's completion time."""
_SHARES = ("prefix_cache_hit_rate", "infinite_cache_hit_rate")
Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a good call, and a good job, keeps: milliseconds."""

    ttft: float = 2_000.0
    tpot: float = 100.0
    jct: float = 60_000.0

    @classmethod
    def parse(cls, words: Iterable[str]) -> Limits:
        """Of ``ttft:2000`` and the like, as vLLM's ``--goodput``. Raises `ConfigError`."""
        found = {}
        for word in words:
            name, _, number = word.partition(":")
            try:
                found[name] = float(number)
            except ValueError:
                found[name] = math.nan
            if name not in cls.__slots__ or not found[name] > 0:
                raise ConfigError(f"--goodput {word!r}: give ms as in ttft:2000,tpot:100,jct:60000")
        return cls(**found)


def standard(jobs: Sequence[Outcome], limits: Limits | None = None) -> dict[str, float]:
    """The metrics of jobs that ended; nothing of none."""
    if not jobs:
        return {}
    limits = limits or Limits()
    seconds = max(one.ended_s for one in jobs) - min(one.arrived_s for one in jobs)
    times = [one.latency_s for one in jobs]
    good = sum(1e3 * one <= limits.jct for one in times)
    found = {
        "completed": len(jobs),
        "duration": seconds,
        "jobs_per_hour": 3600 * len(jobs) / seconds,
        "job_goodput_per_hour": 3600 * good / seconds,
        **_of("jct_s", times),
        "ms_per_token": 1e3 * fmean(one.token_latency_s for one in jobs),
    }
    calls = [call for one in jobs for call in one.calls]
    found |= _of_calls(calls, limits, seconds) if calls else {}
    if not any(math.isnan(one.ideal_s) for one in jobs):
        found |= dict(_fairness(jobs))
    return found


def _of_calls(calls: Sequence[ServedCall], limits: Limits, seconds: float) -> dict[str, float]:
    prompt, output = (
        sum(getattr(one, f"{n}_tokens") for one in calls) for n in ("prompt", "output")
    )
    good = sum(1e3 * c.ttft_s <= limits.ttft and 1e3 * c.tpot_s <= limits.tpot for c in calls)
    found = {
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": len(calls) / seconds,
        "request_goodput": good / seconds,
        "output_throughput": output / seconds,
        "total_token_throughput": (prompt + output) / seconds,
        **_of("ttft_ms", [1e3 * one.ttft_s for one in calls]),
        **_of("tpot_ms", [1e3 * one.tpot_s for one in calls if one.output_tokens > 1]),
        **_of("e2el_ms", [1e3 * one.e2el_s for one in calls]),
        "prefix_cache_hit_rate": sum(one.cached_tokens for one in calls) / max(1, prompt),
        "infinite_cache_hit_rate": sum(one.cacheable_tokens for one in calls) / max(1, prompt),
    }
    for first, last in _TURNS:
        some = [one.ttft_s for one in calls if first <= one.turn <= (last or math.inf)]
        if some:
            name = f"{first}" if last == first else f"{first}-{last or ''}"
            found[f"median_ttft_ms_turn_{name}"] = 1e3 * median(some)
    return found


def _fairness(jobs: Sequence[Outcome]) -> Iterator[tuple[str, float]]:
    """Slowdowns (time over the time alone) of all, and of each third by the time alone."""
    ordered = [one.latency_s / one.ideal_s for one in sorted(jobs, key=lambda one: one.ideal_s)]
    yield "slowdown", fmean(ordered)
    yield "max_slowdown", max(ordered)
    for at, name in enumerate(_THIRDS):
        ends = [len(ordered) * edge // len(_THIRDS) for edge in (at, at + 1)]
        if some := ordered[slice(*ends)]:
            yield f"slowdown_{name}", fmean(some)


def _of(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    tails = {f"{tail}_{name}": quantile(ordered, share) for tail, share in _TAILS.items()}
    return {f"mean_{name}": fmean(values), f"median_{name}": median(values), **tails}


def short_table(
    runs: Mapping[str, Sequence[Metrics]],
    more: Mapping[str, Sequence[str]] | None = None,
    first: str = "contender",
) -> str:
    """A row for each of those that ran, with medians over the seeds (least-most); ``more`` columns
    have their texts by head.
    """
    shown = [name for name in SHORT if any(name in one for some in runs.values() for one in some)]
    heads = [first, *(SHORT[name] for name in shown), *(more or {})]
    texts = zip(*(more or {}).values(), strict=True) if more else [()] * len(runs)
    rows = [
        [who, *(_cell(some, name) for name in shown), *beside]
        for (who, some), beside in zip(runs.items(), texts, strict=True)
    ]
    return markdown(heads, rows)


def _cell(some: Sequence[Metrics], name: str) -> str:
    scale, unit = (100, "%") if name in _SHARES else (1, "")
    values = [scale * one[name] for one in some if name in one]
    if not values:
        return "-"
    return in_digits(Spread.of(values), unit) if len(values) > 1 else f"{digits(values[0])}{unit}"
