"""Simulated runs for people and for programs: Markdown, JSON, CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrt.lab.reports.cells import SHARES, ratio, value
from agentrt.lab.reports.compare import MEASURES, Cell, Sustained
from agentrt.lab.reports.tables import markdown
from agentrt.lab.runs.grid import RunSpec

COMPARED = {
    "mean_s": "mean",
    "p95_s": "P95",
    "p99_s": "P99",
    "slowdown": "slowdown",
    "token_latency_s": "s/token",
}
OFFLINE = {"makespan_s": "makespan", "mean_s": "mean", "token_latency_s": "s/token"}
"""What a sweep compares to the baseline, by a short name for a column's head."""


def conditions(specs: Sequence[RunSpec], seeds: Sequence[int], baseline: str) -> dict[str, Any]:
    """What all runs have in common, as JSON-able values."""
    spec = specs[0]
    scheduler = spec.contender.scheduler.to_dict()
    del scheduler["policy"]
    return {
        **spec.machine.to_dict(),
        "seeds": list(seeds),
        "baseline": baseline,
        "hints": next(
            (spec.contender.hints for spec in specs if spec.contender.hints is not None), None
        ),
        "scheduler": scheduler,
    }


def in_words(conditions: dict[str, Any]) -> str:
    """The conditions in one line, for a table's head."""
    seeds = conditions["seeds"]
    which = f"seeds {seeds[0]}-{seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    spread = "; medians over seeds (least-most)" if len(seeds) > 1 else ""
    hints = conditions["hints"]
    told = "" if hints is None else f" +hints: sizes are guessed with a correlation of {hints:g}."
    return f"Batch {conditions['batch']}, {_engine(conditions)}, {which}{spread}.{told}"


def _engine(conditions: dict[str, Any]) -> str:
    if conditions["depth"] == "steps":
        return f"{1000 * conditions['step_s']:g} ms per step"
    times = conditions["step_time"]
    return (
        f"virtual engine with {conditions['kv_blocks']} KV blocks and "
        f"{conditions['max_num_batched_tokens']} tokens a step at most, "
        f"step times {_measured_on(times)}"
    )


def _measured_on(times: dict[str, Any]) -> str:
    if times["model"] == times["hardware"]:  # both are "made up"
        return str(times["model"])
    return f"of {times['model']} on {times['hardware']}"


# -- one setting: measures down, policies across ---------------------------------------


def values_table(cells: Sequence[Cell]) -> str:
    """All measures of all policies under one setting."""
    rows = [[text, *(value(cell, measure) for cell in cells)] for measure, text in MEASURES.items()]
    return markdown(["", *(cell.policy for cell in cells)], rows)


def ratios_table(cells: Sequence[Cell], baseline: str) -> str:
    """The other policies' measures over the baseline's."""
    cells = [cell for cell in cells if cell.policy != baseline]
    rows = [
        [text, *(ratio(cell, measure) for cell in cells)]
        for measure, text in MEASURES.items()
        if measure not in SHARES
    ]
    return markdown([f"ratio to {baseline}", *(cell.policy for cell in cells)], rows)


# -- many settings: a row per cell -----------------------------------------------------


def sweep_table(cells: Sequence[Cell], baseline: str) -> str:
    """Ratios of latencies (or makespans) to the baseline's; below 1 is better."""
    offline = cells[0].setting.pressure.kind == "at-once"
    measures = OFFLINE if offline else COMPARED
    first = next(iter(measures))
    head = ["workload", cells[0].setting.axis, "policy", MEASURES[first]]
    rows = [
        [
            cell.setting.source.name,
            cell.setting.label,
            cell.policy,
            value(cell, first),
            *(ratio(cell, measure) for measure in measures),
        ]
        for cell in cells
    ]
    return markdown([*head, *(f"{name} / {baseline}" for name in measures.values())], rows)


def sustained_table(answers: Sequence[Sustained], baseline: str) -> str:
    """Throughput at equal latency."""
    rows = [
        [
            answer.workload,
            f"{1000 * answer.limit_s:.0f}",
            answer.policy,
            f"{answer.bound}{answer.load:.3g}",
            f"{answer.ratio:.2f}",
        ]
        for answer in answers
    ]
    head = ["workload", "limit, ms/token", "policy", "load sustained", f"/ {baseline}"]
    return markdown(head, rows)


# -- for programs ----------------------------------------------------------------------


def sustained_dicts(answers: Sequence[Sustained]) -> list[dict[str, Any]]:
    """Throughput at equal latency as JSON-able values."""
    return [
        {
            "workload": answer.workload,
            "policy": answer.policy,
            "limit_s_per_token": answer.limit_s,
            "load": answer.load,
            "bound": answer.bound or "=",
            "ratio": answer.ratio,
        }
        for answer in answers
    ]
