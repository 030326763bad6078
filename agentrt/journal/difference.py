"""Where the code asks for another thing than is recorded: both, in words."""

from __future__ import annotations

import json
from typing import Any

_LONGEST = 160


def difference(recorded: str, asked: str) -> str:
    """The first place at which two JSON texts differ, and what each has there."""
    if not recorded:
        return f"its question was not kept; now it is {_short(asked)}"
    where, one, other = _first(json.loads(recorded), json.loads(asked), "")
    return f"{where.lstrip('.') or 'all'} was {_short(one)} and is {_short(other)}"


def _first(one: Any, other: Any, where: str) -> tuple[str, Any, Any]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in (*one, *(key for key in other if key not in one)):
            if one.get(key) != other.get(key) or (key in one) != (key in other):
                return _first(one.get(key), other.get(key), f"{where}.{key}")
    if isinstance(one, list) and isinstance(other, list):
        for index, pair in enumerate(zip(one, other, strict=False)):
            if pair[0] != pair[1]:
                return _first(*pair, f"{where}[{index}]")
        longer = one if len(one) > len(other) else other
        at = min(len(one), len(other))
        if at < len(longer):
            there, here = (rest[at] if at < len(rest) else None for rest in (one, other))
            return f"{where}[{at}]", there, here
    return where, one, other


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return repr(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")
