"""Policies compared on the same programs, for people and for programs: tables' cells, JSON, CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

from agentrt.lab.reports.compare import MEASURES, Cell
from agentrt.lab.reports.tables import Spread

SHARES = ("waiting_share", "service_share", "tool_share", "prefix_hit_share")
"""Measures that read better as a percentage."""


def value(cell: Cell, measure: str) -> str:
    """A measure's median over the seeds, with the least and the greatest; a dash for unknown."""
    values = cell.values(measure)
    if any(map(math.isnan, values)):
        return "-"
    spread = Spread.of([100 * v for v in values] if measure in SHARES else values)
    unit = "%" if measure in SHARES else ""
    return in_digits(spread, unit) if len(values) > 1 else f"{digits(spread.median)}{unit}"


def ratio(cell: Cell, measure: str) -> str:
    """A measure over the baseline's in the same seed: the median, the least and the greatest."""
    ratios = cell.ratios(measure)
    if not ratios:
        return "-"
    return str(Spread.of(ratios)) if len(ratios) > 1 else f"{ratios[0]:.2f}"


def as_dicts(cells: Sequence[Cell], measures: Iterable[str] = MEASURES) -> list[dict[str, Any]]:
    """Each cell as JSON-able values, by seed, too; None is not known."""
    names = tuple(measures)
    return [
        {
            "workload": cell.setting.source.name,
            "arrivals": str(cell.setting.pressure),
            "policy": cell.policy,
            "seeds": cell.seeds,
            "programs": next(iter(cell.summaries.values())).programs,
            "measures": {measure: _measured(cell, measure) for measure in names},
            "by_seed": {measure: _by_seed(cell, measure) for measure in names},
        }
        for cell in cells
    ]


def as_csv(cells: Sequence[Cell], measures: Iterable[str] = MEASURES) -> str:
    """A line per cell and measure, with a head."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    names = ("workload", "arrivals", "policy", "programs", "seeds")
    kinds = ("median", "min", "max", "ratio", "ratio_min", "ratio_max")
    out.writerow([*names, "measure", *kinds])
    for cell in as_dicts(cells, measures):
        cell["seeds"] = len(cell["seeds"])
        for measure, found in cell["measures"].items():
            out.writerow([*(cell[n] for n in names), measure, *(found[k] for k in kinds)])
    return text.getvalue()


def _by_seed(cell: Cell, measure: str) -> list[float | None]:
    """In the order of ``seeds``."""
    return [None if math.isnan(value) else value for value in cell.values(measure)]


def _measured(cell: Cell, measure: str) -> dict[str, float | None]:
    values = cell.values(measure)
    known = not any(map(math.isnan, values))
    return {
        **_spread(values if known else [], ("median", "min", "max")),
        **_spread(cell.ratios(measure), ("ratio", "ratio_min", "ratio_max")),
    }


def _spread(values: Sequence[float], names: Sequence[str]) -> dict[str, float | None]:
    """A median, a least and a greatest value; None where there is none."""
    if not values:
        return dict.fromkeys(names)
    spread = Spread.of(values)
    return dict(zip(names, (spread.median, spread.least, spread.most), strict=True))


def in_digits(spread: Spread, unit: str = "") -> str:
    """A spread whose values may be of any size."""
    return f"{digits(spread.median)}{unit} ({digits(spread.least)}-{digits(spread.most)})"


def digits(value: float) -> str:
    """Three digits that count, or all before the point."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"
