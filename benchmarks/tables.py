"""Tables of policies by load, with a row for each cell and a column for each measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from statistics import median

from agentrt.lab.reports.compare import MEASURES, PLAIN, Series, about_seeds, ratio, value
from agentrt.lab.workloads.replay import Scales
from benchmarks.harness import Column, table
from benchmarks.workloads.source import WorkloadSource

_OF_ENGINE = {
    "token_p95_s": ("s/token P95", "P95 of token latency, s/token"),
    "token_p99_s": ("s/token P99", "P99 of token latency, s/token"),
    "mean_steps": ("mean steps", "mean latency, engine steps"),
    "p95_steps": ("P95 steps", "P95 latency, engine steps"),
    "prefix_hit_share": ("prefix hits", "prefix hits, share of prompt tokens"),
    "recomputed_tokens": ("recomputed", "tokens computed again after preemptions"),
    "cpu_us": ("CPU us/step", "the scheduler's CPU per step, us"),
}
"""Further fields of `Summary` for comparisons, each with the head of its column and a longer text
with its unit. Some fields are unknown for some engines.
"""
_OF_FLEET = {"balance": "balance", "steady_per_s": "ended in time"}
"""Fields of `Summary` that only tables show, with the heads of their columns."""
SHORT = {name: short for name, (short, _) in (PLAIN | _OF_ENGINE).items()} | _OF_FLEET
ALL = {name: text for name, (_, text) in (PLAIN | _OF_ENGINE).items()}
_COMPARED = ("mean_s", "p95_s", "p99_s", "slowdown", "token_latency_s")
_OFFLINE = ("makespan_s", "mean_s", "token_latency_s")
"""The measures that a sweep compares with the baseline when all programs arrive at once."""
_LATENCIES = (
    *("mean_s", "p50_s", "p95_s", "p99_s"),
    *("token_latency_s", "token_p95_s", "token_p99_s"),
)
_WHERE = (
    *("waiting_share", "service_share", "tool_share"),
    *("prefix_hit_share", "recomputed_tokens", "preemptions"),
)


_AXES = {"at-once": "programs at once", "rate": "arrivals, programs per second"}
WORKLOAD = Column("workload", lambda cell: cell.setting.source.name)
LOAD = Column("load", lambda cell: cell.setting.label)
POLICY = Column("policy", lambda cell: cell.name)
MS_PER_TOKEN = Column("ms/token", lambda cell: f"{1000 * cell.median('token_latency_s'):.1f}")


def median_ratio(cell: Series, measure: str) -> float:
    """Return the median ratio of a measure to the baseline; NaN if there is no ratio."""
    return median(cell.ratios(measure) or [math.nan])


def axis_of(cells: Sequence[Series]) -> str:
    """Return the name of the quantity that the labels of the cells' settings show."""
    return _AXES.get(cells[0].setting.pressure.kind, "load")


def values(*measures: str) -> list[Column]:
    """Return a column for each measure, with its values."""
    return [Column(SHORT[measure], partial(value, measure=measure)) for measure in measures]


def ratios(*measures: str, over: str) -> list[Column]:
    """Return a column for each measure, with its ratio to the same measure of the baseline
    ``over``.
    """
    return [
        Column(f"{SHORT[measure]} / {over}", partial(ratio, measure=measure))
        for measure in measures
    ]


def about_scales(scales: Scales) -> str:
    """Describe the scales of programs."""
    return f"prompts x {scales.context:g}, outputs x {scales.output:g}, gaps x {scales.gap:g}"


def about_workload(source: WorkloadSource, programs: int, seeds: Sequence[int]) -> str:
    """Describe the programs, their scales, and the seeds of the medians."""
    cut = "" if source.cut.calls is None else f"; at most {source.cut.calls} calls"
    room = "" if source.cut.tokens is None else f"; no call above {source.cut.tokens} tokens"
    return (
        f"Workload: {source.name}, {programs} programs a run; "
        f"{about_scales(source.scales)}{cut}{room}. {about_seeds(seeds)}; "
        "ratios are to stock in the same repeat; below 1 is better, except for throughput."
    )


def sweep_table(cells: Sequence[Series], baseline: str) -> str:
    """Return a table of the ratios of latencies (or makespans) to the baseline's values; less is
    better.
    """
    measures = _OFFLINE if cells[0].setting.pressure.kind == "at-once" else _COMPARED
    first = Column(MEASURES[measures[0]], lambda cell: value(cell, measures[0]))
    return table(cells, WORKLOAD, _load(cells), POLICY, first, *ratios(*measures, over=baseline))


def latencies(cells: Sequence[Series], baseline: str) -> str:
    """Return a table of the latencies of programs and of the latencies per token; ratios below 1
    are better.
    """
    mean = Column("mean, s", lambda cell: value(cell, "mean_s"))
    over = ratios(*_LATENCIES, over=baseline)
    return table(cells, _load(cells), POLICY, mean, *over, MS_PER_TOKEN)


def where_it_went(cells: Sequence[Series], baseline: str) -> str:
    """Return a table of the shares of the programs' time, prefix hits, preemptions, and the ratios
    of throughput and of latency in steps; in real time also of the scheduler's CPU time.
    """
    real = ("cpu_us",) if any(cell.ratios("cpu_us") for cell in cells) else ()
    over = ratios("throughput_per_s", "mean_steps", "p95_steps", *real, over=baseline)
    return table(cells, _load(cells), POLICY, *values(*_WHERE, *real), *over)


def _load(cells: Sequence[Series]) -> Column:
    """Return the column with the load, or with the number of programs that arrive at once."""
    return LOAD._replace(head=axis_of(cells))
