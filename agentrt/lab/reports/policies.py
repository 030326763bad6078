"""The text of a comparison of policies: a description of the runs, and tables of their measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrt.lab.reports.compare import MEASURES, SHARES, Series, as_dicts, ratio, value
from agentrt.lab.reports.tables import markdown
from agentrt.lab.runs.grid import RunSpec
from agentrt.scheduler.config import SchedulerConfig

NOTHING_WAITED = """No call waited for the engine, so all policies give the same times. A smaller
engine (--max-num-seqs, --kv-blocks) or a higher --load shows their differences."""

# -- the description of the runs -------------------------------------------------------


def conditions(specs: Sequence[RunSpec], seeds: Sequence[int], baseline: str) -> dict[str, Any]:
    """Return the settings of the runs as JSON values. ``scheduler`` has the scheduler's settings of
    the first contender.
    """
    return {
        **specs[0].machine.to_dict(),
        "seeds": list(seeds),
        "baseline": baseline,
        "hints": next((h for spec in specs if (h := spec.contender.hints) is not None), None),
        "scheduler": (specs[0].contender.config or SchedulerConfig()).to_dict(),
    }


def as_values(
    cells: Sequence[Series], specs: Sequence[RunSpec], common: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a comparison as JSON values."""
    complete = sum(len(cell.seeds) for cell in cells) == len(specs)
    return {"settings": common, "complete": complete, "cells": as_dicts(cells)}


def about_seeds(seeds: Sequence[int]) -> str:
    """Return a text that says over which seeds the medians are computed."""
    if len(seeds) == 1:
        return f"Seed {seeds[0]}"
    return f"{len(seeds)} seeds ({seeds[0]}-{seeds[-1]}): medians (least-most)"


def about_hints(specs: Sequence[RunSpec]) -> str:
    """Return a text about the correlation of size hints with the true sizes; "" if no policy gets
    hints.
    """
    hints = next((h for spec in specs if (h := spec.contender.hints) is not None), None)
    if hints is None:
        return ""
    return f"\n+hints: size hints have a correlation of {hints:g} with the true sizes."


# -- tables: a row for each measure, a column for each policy ----------------------------


def values_table(cells: Sequence[Series]) -> str:
    """Return a table of all measures of all policies under one setting."""
    rows = [[text, *(value(cell, measure) for cell in cells)] for measure, text in MEASURES.items()]
    return markdown(["", *(cell.name for cell in cells)], rows)


def ratios_table(cells: Sequence[Series], baseline: str) -> str:
    """Return a table of the ratios of each other policy's measures to the baseline's measures."""
    cells = [cell for cell in cells if cell.name != baseline]
    rows = [
        [text, *(ratio(cell, measure) for cell in cells)]
        for measure, text in MEASURES.items()
        if measure not in SHARES
    ]
    head = f"ratio to {baseline} (times: below 1 is faster)"
    return markdown([head, *(cell.name for cell in cells)], rows)
