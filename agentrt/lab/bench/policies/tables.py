"""What the contenders came to: Markdown for people, JSON and CSV for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrt.lab.bench.policies import equal
from agentrt.lab.bench.policies.equal import Carried
from agentrt.lab.reports import cells as text
from agentrt.lab.reports.compare import MEASURES, OF_ENGINE, Cell
from agentrt.lab.reports.tables import markdown
from agentrt.lab.runs.contenders import STOCK

ALL = {**MEASURES, **OF_ENGINE}
"""Everything that is measured; JSON and CSV have it all."""

_LATENCIES = {"mean_s": "mean", "p50_s": "P50", "p95_s": "P95", "p99_s": "P99"}
_TOKENS = {
    "token_latency_s": "s/token",
    "token_p95_s": "s/token P95",
    "token_p99_s": "s/token P99",
}
_SHARES = {
    "waiting_share": "waiting",
    "service_share": "in engine",
    "tool_share": "in tools",
    "prefix_hit_share": "prefix hits",
}
_COSTS = {"recomputed_tokens": "recomputed", "preemptions": "preemptions"}
_STEPS = {"mean_steps": "mean steps", "p95_steps": "P95 steps"}

_EQUAL = """Throughput at equal latency: the highest load, interpolated, at which the programs'
token latency stays below a level. ≥ and ≤: the sweep bounds it only; ~: repeats differ in how."""


def latencies(cells: Sequence[Cell]) -> str:
    """Latencies of programs, and per token; ratios below 1 are better."""
    head = ("mean, s", *(f"{n} / {STOCK}" for n in (_LATENCIES | _TOKENS).values()), "ms/token")
    rows = [
        (
            text.value(cell, "mean_s"),
            *(text.ratio(cell, name) for name in _LATENCIES | _TOKENS),
            f"{1000 * cell.median('token_latency_s'):.1f}",
        )
        for cell in cells
    ]
    return _table(cells, head, rows)


def where_it_went(cells: Sequence[Cell]) -> str:
    """Shares of the programs' time, the prefix cache, preemptions; in real time the CPU, too."""
    columns = _SHARES | _COSTS
    real = any(cell.ratios("cpu_us") for cell in cells)
    head = [*columns.values(), f"programs/s / {STOCK}"]
    head += [f"{name} / {STOCK}" for name in _STEPS.values()]
    head += ["CPU us/step", f"CPU / {STOCK}"] if real else []
    rows = [
        (
            *(text.value(cell, name) for name in columns),
            *(text.ratio(cell, name) for name in ("throughput_per_s", *_STEPS)),
            *((text.value(cell, "cpu_us"), text.ratio(cell, "cpu_us")) if real else ()),
        )
        for cell in cells
    ]
    return _table(cells, head, rows)


def _table(cells: Sequence[Cell], head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    axis = cells[0].setting.axis
    whole = [(cell.setting.label, cell.policy, *row) for cell, row in zip(cells, rows, strict=True)]
    return markdown((axis, "policy", *head), whole)


def as_markdown(head: str, cells: Sequence[Cell], carried: Sequence[Carried]) -> str:
    """The head's words and all tables."""
    parts = [head, latencies(cells), where_it_went(cells)]
    if carried:
        parts += [_EQUAL, equal.table(carried, STOCK)]
    return "\n\n".join(parts)


def as_dict(about: dict[str, Any], cells: Sequence[Cell], carried: Sequence[Carried]) -> Any:
    """The same and more as one JSON-able value."""
    return {
        **about,
        "cells": text.as_dicts(cells, ALL),
        "equal_latency": equal.as_dicts(carried),
    }


def as_csv(cells: Sequence[Cell]) -> str:
    """A line per rate, policy and measure."""
    return text.as_csv(cells, ALL)
