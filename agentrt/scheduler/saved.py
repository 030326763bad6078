"""Checks of values that come from a file of what was learned."""

from __future__ import annotations

from typing import Any


def word(value: Any) -> str:
    """The string that it has to be. Raises `TypeError`."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value
