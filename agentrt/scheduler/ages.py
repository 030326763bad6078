"""Ages of programs: attained service in bins of half a doubling."""

from __future__ import annotations

import math

SMALLEST_S = 0.05
"""Seconds of service below which programs are not told apart."""
LONGEST_S = 1e9
"""No program is expected to need more, whatever a file says."""


def age_bin(seconds: float) -> int:
    """The bin of an attained service; 0 up to `SMALLEST_S`."""
    if not seconds > SMALLEST_S:
        return 0
    return 1 + int(2.0 * math.log2(min(seconds, LONGEST_S) / SMALLEST_S))


def bin_edge(level: int) -> float:
    """The least service of a bin, in seconds."""
    return SMALLEST_S * 2.0 ** ((level - 1) / 2.0) if level else 0.0


BINS = age_bin(LONGEST_S) + 1
"""How many bins there are."""
