"""Ages by counting the edges of their bins, for tests that compare with what is learned."""

from __future__ import annotations


def bin_of(seconds: float) -> int:
    """Return the number of passed edges; each edge is half a doubling above the previous edge."""
    return sum(1 for n in range(80) if 0.05 * 2 ** (n / 2) <= seconds) if seconds > 0.05 else 0


def edge(number: int) -> float:
    """Return the lower edge of a bin in seconds."""
    return float(0.05 * 2 ** ((number - 1) / 2)) if number else 0.0
