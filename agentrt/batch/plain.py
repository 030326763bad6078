"""Converting the results of programs to JSON that people can read. Every value can be converted."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from agentrt.request.text import ReadsAsText

_MOST_BITS = 4096
_DEEPEST = 100


def tidy(value: Any, around: tuple[int, ...] = ()) -> Any:
    """Return ``value`` with text as the keys of all mappings. Parts that contain themselves or are
    nested too deeply are replaced by ``…``. Whole numbers of more than 4096 bits become
    hexadecimal text.
    """
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return hex(value)  # Python refuses to write very large numbers in decimal
    if not isinstance(value, Mapping | list | tuple):
        return value
    if id(value) in around or len(around) > _DEEPEST:
        return "…"
    inner = (*around, id(value))
    if isinstance(value, Mapping):
        return {_text(key): tidy(item, inner) for key, item in value.items()}
    return [tidy(item, inner) for item in value]


def plain(value: Any) -> Any:
    """Convert a value that JSON cannot represent to a value that JSON can represent. Pass this
    function to `json.dumps` as ``default``.
    """
    try:
        return tidy(_plain(value))
    except Exception:  # the code of its class may raise any error
        return _text(value)


def readable(value: Any) -> Any:
    """Convert a model's reply to its text, and any other value as `plain` does."""
    return value.text if isinstance(value, ReadsAsText) else plain(value)


def as_json(value: Any, default: Callable[[Any], Any] = readable) -> str:
    """Return any value as one line of standard JSON, with NaN and infinity as texts. ``default``
    converts values that JSON cannot represent.
    """
    try:
        return json.dumps(tidy(value), default=default, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(tidy(value), default=default)
        return json.dumps(json.loads(text, parse_constant=str), ensure_ascii=False)


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__qualname__}>"


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return str(value)
