"""Medians with their spread, and Markdown tables that are also readable as plain text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """The median, the smallest and the largest of several values."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f}-{self.most:.2f})"


def markdown(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table with padded columns, so that it is readable as plain text, too."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def spread_text(values: Sequence[float], *, percent: bool = False) -> str:
    """Return the median of some values, and in parentheses the smallest and the largest value; a
    single value alone; "-" without values. With ``percent``, the values are shares of 1.
    """
    if not values:
        return "-"
    factor, unit = (100, "%") if percent else (1, "")
    spread = Spread.of([factor * value for value in values])
    return in_digits(spread, unit) if len(values) > 1 else f"{digits(spread.median)}{unit}"


def in_digits(spread: Spread, unit: str = "") -> str:
    """Return a spread as text. Each value is formatted by `digits`."""
    return f"{digits(spread.median)}{unit} ({digits(spread.least)}-{digits(spread.most)})"


def digits(value: float) -> str:
    """Return a number as text with at most three significant digits; from 100 on, with all digits
    before the decimal point.
    """
    if not math.isfinite(value):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"
