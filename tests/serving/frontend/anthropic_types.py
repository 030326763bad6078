"""Examples of what Anthropic's API takes, made from the types of its own package."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterator
from typing import Any, Literal, NotRequired, Required, get_args, get_origin

from typing_extensions import is_typeddict

_TEXTS = {"media_type": "text/plain", "url": "https://example.com/a", "data": "aGVsbG8="}
_PLAIN: dict[Any, Any] = {bool: True, int: 1024, float: 0.5, object: {}}
_AROUND = (Required, NotRequired, typing.Annotated, typing.Union)
_DEPTH = 8


def examples(kind: Any, *, whole: bool, name: str = "", depth: int = 0) -> Iterator[Any]:
    """Values of a type: one for each alternative of a union. ``whole`` ones have all fields, and
    others those alone that are required.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        yield from arguments
    elif origin in _AROUND:
        inner = arguments if origin is typing.Union else arguments[:1]
        for alternative in inner:
            if alternative is not type(None):
                yield from examples(alternative, whole=whole, name=name, depth=depth)
    elif is_typeddict(kind):
        yield from _objects(kind, whole=whole, depth=depth)
    elif origin is dict:
        yield {"key": next(examples(arguments[1], whole=whole, depth=depth + 1))}
    elif arguments:  # a list, by one of several names
        yield [] if depth > _DEPTH else list(examples(*arguments, whole=whole, depth=depth))
    elif not hasattr(kind, "model_fields"):  # blocks of answers are those of requests again
        yield _PLAIN[kind] if kind in _PLAIN else _TEXTS.get(name, f"the {name or 'text'}")


def _objects(kind: Any, *, whole: bool, depth: int) -> Iterator[dict[str, Any]]:
    """Objects that differ in one field of several alternatives, the first such field."""
    hints = typing.get_type_hints(kind, include_extras=True)
    required = [name for name, hint in hints.items() if get_origin(hint) is Required]
    names = list(hints) if whole and depth < _DEPTH else required
    values = {
        name: list(examples(hints[name], whole=whole, name=name, depth=depth + 1)) or [None]
        for name in names
    }
    longest = max(map(len, values.values()), default=1)
    for place in range(longest):
        yield {name: each[min(place, len(each) - 1)] for name, each in values.items()}


def distinct(values: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """The values without those that are equal."""
    kept: list[dict[str, Any]] = []
    for value in itertools.islice(values, 5000):
        if value not in kept:
            kept.append(value)
    return kept
