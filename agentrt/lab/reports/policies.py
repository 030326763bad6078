"""Policies side by side, for people: what ran, in words, and the tables of what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrt.lab.reports.compare import MEASURES, SHARES, Series, as_dicts, ratio, value
from agentrt.lab.reports.tables import markdown
from agentrt.lab.runs.grid import RunSpec
from agentrt.lab.runs.machine import Machine
from agentrt.scheduler.config import SchedulerConfig

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
    cells: Sequence[Series], specs: Sequence[RunSpec], common: Mapping[str, Any]
) -> dict[str, Any]:
    """A comparison as JSON-able values."""
    complete = sum(len(cell.seeds) for cell in cells) == len(specs)
    return {"settings": common, "complete": complete, "cells": as_dicts(cells)}


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


# -- tables: one setting with measures down, or a row for each cell ----------------------


def values_table(cells: Sequence[Series]) -> str:
    """All measures of all policies under one setting."""
    rows = [[text, *(value(cell, measure) for cell in cells)] for measure, text in MEASURES.items()]
    return markdown(["", *(cell.name for cell in cells)], rows)


def ratios_table(cells: Sequence[Series], baseline: str) -> str:
    """The other policies' measures over the baseline's."""
    cells = [cell for cell in cells if cell.name != baseline]
    rows = [
        [text, *(ratio(cell, measure) for cell in cells)]
        for measure, text in MEASURES.items()
        if measure not in SHARES
    ]
    return markdown([f"ratio to {baseline}", *(cell.name for cell in cells)], rows)
