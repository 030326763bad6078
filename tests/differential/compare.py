"""What differs between two servers' answers to the same request."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.differential.answers import Answer

_GROWING = (
    *("content", "text", "arguments", "reasoning", "delta", "partial_json", "thinking"),
    *("token_ids", "tokens", "logprobs", "token_logprobs", "top_logprobs", "text_offset", "bytes"),
)
"""Fields of a stream's events whose texts and lists are parts of one."""
_COUNTING = ("sequence_number",)
"""They count events."""
_LAST = ("usage",)
"""Of these only the last matters, where events tell them again and again."""
_ABSENT = "(absent)"
_TOLERANCE = 0.03
"""Of log probabilities: a batch of another size is computed in another order, in bfloat16."""


class Difference(NamedTuple):
    """``where`` is a path of keys and indices: ``status``, ``body.error.message``, …"""

    where: str
    stock: Any
    ours: Any


def differences(stock: Answer, ours: Answer) -> list[Difference]:
    """All places where the answers differ."""
    found = [
        *_differing("status", stock.status, ours.status),
        *_differing("content-type", stock.content_type, ours.content_type),
    ]
    if (stock.events is None) != (ours.events is None):
        return [*found, Difference("streamed", stock.events is not None, ours.events is not None)]
    if stock.events is None or ours.events is None:
        return [*found, *_differing("body", stock.body, ours.body)]
    if not same_events(stock, ours):
        found += _differing("stream", joined(stock.events), joined(ours.events))
    return found


def same_events(stock: Answer, ours: Answer) -> bool:
    """Whether two streams are alike event by event.

    They need not be: an engine that is ahead of its reader puts several tokens into one event.
    """
    return not list(_differing("", stock.events, ours.events))


def joined(events: tuple[Any, ...]) -> dict[str, Any]:
    """A stream as if each of its texts had come at once.

    By field: the text, or the values that follow each other. Fields of a choice are apart from
    those of the others.
    """
    whole: dict[str, Any] = {}
    for event in events:
        for name, value in _fields(event, ""):
            key = name.rpartition(".")[2]
            if key in _COUNTING or value is None:
                continue
            if key in _GROWING and isinstance(value, str | list):
                whole[name] = whole[name] + value if name in whole else value
            elif key in _LAST:
                whole[name] = value
            elif whole.setdefault(name, [value])[-1] != value:
                whole[name].append(value)
    return whole


def _fields(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The leaves of an event, and their paths; members of a list go by their index field."""
    key = path.rpartition(".")[2]
    if isinstance(value, dict) and key not in _LAST:
        for name, one in value.items():
            yield from _fields(one, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and key in ("choices", "tool_calls"):
        for one in value:
            yield from _fields(one, f"{path}.{one.get('index', 0)}")
    else:
        yield path, value


def _differing(where: str, stock: Any, ours: Any) -> Iterator[Difference]:
    if isinstance(stock, dict) and isinstance(ours, dict):
        for key in [*stock, *(key for key in ours if key not in stock)]:
            yield from _differing(f"{where}.{key}", stock.get(key, _ABSENT), ours.get(key, _ABSENT))
    elif _are_lists(stock, ours) and len(stock) == len(ours):
        for index, (one, other) in enumerate(zip(stock, ours, strict=True)):
            yield from _differing(f"{where}.{index}", one, other)
    elif not _is_same(stock, ours):
        yield Difference(where, stock, ours)


def _are_lists(*values: Any) -> bool:
    return all(isinstance(value, list | tuple) for value in values)


def _is_same(stock: Any, ours: Any) -> bool:
    if isinstance(stock, float) and isinstance(ours, float):
        return math.isclose(stock, ours, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return type(stock) is type(ours) and bool(stock == ours)
