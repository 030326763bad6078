"""Moments: numbers that put the events of a process in order."""

from __future__ import annotations

from itertools import count

_MOMENTS = count()


def moment() -> int:
    """Return a number that is greater than all numbers that were returned before."""
    return next(_MOMENTS)
