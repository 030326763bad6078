"""Policies side by side, for people: what ran, in words, and the tables of what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrt.lab.reports.compare import (
    LOAD,
    MEASURES,
    MS_PER_TOKEN,
    POLICY,
    SHARES,
    WORKLOAD,
    Cell,
    Column,
    as_dicts,
    ratio,
    ratios,
    table,
    value,
    values,
)
from agentrt.lab.reports.tables import markdown
from agentrt.lab.runs.grid import RunSpec, Source
from agentrt.lab.runs.machine import Machine
from agentrt.lab.workloads.replay import Scales
from agentrt.scheduler.config import SchedulerConfig

_COMPARED = ("mean_s", "p95_s", "p99_s", "slowdown", "token_latency_s")
_OFFLINE = ("makespan_s", "mean_s", "token_latency_s")
"""What a sweep compares to the baseline."""
_LATENCIES = (
    *("mean_s", "p50_s", "p95_s", "p99_s"),
    *("token_latency_s", "token_p95_s", "token_p99_s"),
)
_WHERE = (
    *("waiting_share", "service_share", "tool_share"),
    *("prefix_hit_share", "recomputed_tokens", "preemptions"),
)


# -- what ran --------------------------------------------------------------------------


def conditions(specs: Sequence[RunSpec], seeds: Sequence[int], baseline: str) -> dict[str, Any]:
    """What all runs have in common, as JSON-able values."""
    return {
        **specs[0].machine.to_dict(),
        "seeds": list(seeds),
        "baseline": baseline,
        "hints": next((h for spec in specs if (h := spec.contender.hints) is not None), None),
        "scheduler": (specs[0].contender.config or SchedulerConfig()).to_dict(),
    }


def as_values(
    cells: Sequence[Cell], specs: Sequence[RunSpec], common: Mapping[str, Any]
) -> dict[str, Any]:
    """A comparison as JSON-able values."""
    complete = sum(len(cell.seeds) for cell in cells) == len(specs)
    return {"settings": common, "complete": complete, "cells": as_dicts(cells)}


def about_scales(scales: Scales) -> str:
    """What programs were multiplied by."""
    return f"prompts x {scales.context:g}, outputs x {scales.output:g}, gaps x {scales.gap:g}"


def about_engine(machine: Machine) -> str:
    """The simulated engine, in two sentences."""
    return machine.in_words()


def about_seeds(seeds: Sequence[int]) -> str:
    """Over what the medians are."""
    if len(seeds) == 1:
        return f"Seed {seeds[0]}"
    return f"{len(seeds)} seeds ({seeds[0]}-{seeds[-1]}): medians (least-most)"


def about_hints(specs: Sequence[RunSpec]) -> str:
    """How good the guesses of sizes are, if anybody is told some."""
    hints = next((h for spec in specs if (h := spec.contender.hints) is not None), None)
    return "" if hints is None else f"\n+hints: sizes are guessed with a correlation of {hints:g}."


def about_workload(source: Source, programs: int, seeds: Sequence[int]) -> str:
    """The programs, how they were scaled, and over what the medians are."""
    cut = "" if source.cut.calls is None else f"; at most {source.cut.calls} calls"
    room = "" if source.cut.tokens is None else f"; no call above {source.cut.tokens} tokens"
    return (
        f"Workload: {source.name}, {programs} programs a run; "
        f"{about_scales(source.scales)}{cut}{room}. {about_seeds(seeds)}; "
        "ratios are to stock in the same repeat, and in all but throughput below 1 is better."
    )


# -- tables: one setting with measures down, or a row for each cell ----------------------


def values_table(cells: Sequence[Cell]) -> str:
    """All measures of all policies under one setting."""
    rows = [[text, *(value(cell, measure) for cell in cells)] for measure, text in MEASURES.items()]
    return markdown(["", *(cell.name for cell in cells)], rows)


def ratios_table(cells: Sequence[Cell], baseline: str) -> str:
    """The other policies' measures over the baseline's."""
    cells = [cell for cell in cells if cell.name != baseline]
    rows = [
        [text, *(ratio(cell, measure) for cell in cells)]
        for measure, text in MEASURES.items()
        if measure not in SHARES
    ]
    return markdown([f"ratio to {baseline}", *(cell.name for cell in cells)], rows)


def sweep_table(cells: Sequence[Cell], baseline: str) -> str:
    """Ratios of latencies (or makespans) to the baseline's; below 1 is better."""
    measures = _OFFLINE if cells[0].setting.pressure.kind == "at-once" else _COMPARED
    first = Column(MEASURES[measures[0]], lambda cell: value(cell, measures[0]))
    return table(cells, WORKLOAD, _load(cells), POLICY, first, *ratios(*measures, over=baseline))


def latencies(cells: Sequence[Cell], baseline: str) -> str:
    """Latencies of programs, and per token; ratios below 1 are better."""
    mean = Column("mean, s", lambda cell: value(cell, "mean_s"))
    over = ratios(*_LATENCIES, over=baseline)
    return table(cells, _load(cells), POLICY, mean, *over, MS_PER_TOKEN)


def where_it_went(cells: Sequence[Cell], baseline: str) -> str:
    """Shares of the programs' time, the prefix cache, preemptions; in real time the CPU, too."""
    real = ("cpu_us",) if any(cell.ratios("cpu_us") for cell in cells) else ()
    over = ratios("throughput_per_s", "mean_steps", "p95_steps", *real, over=baseline)
    return table(cells, _load(cells), POLICY, *values(*_WHERE, *real), *over)


def _load(cells: Sequence[Cell]) -> Column:
    """The load, or how many programs come at once."""
    return replace(LOAD, head=cells[0].setting.axis)
