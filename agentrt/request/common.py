"""The common beginning of two sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def common_length(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return the length of the common beginning of two sequences.

    Slices of the sequences must be comparable with ``==``. The length is searched by bisection,
    because comparing slices is faster than comparing single items.
    """
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
