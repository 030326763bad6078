"""Ages by counting the edges of their bins, for tests that compare with what is learned."""

from __future__ import annotations


def bin_of(seconds: float) -> int:
    """How many of the edges, each half a doubling above the one before, were passed."""
    return sum(1 for n in range(80) if 0.05 * 2 ** (n / 2) <= seconds) if seconds > 0.05 else 0


def edge(number: int) -> float:
    """The least seconds of a bin."""
    return float(0.05 * 2 ** ((number - 1) / 2)) if number else 0.0
