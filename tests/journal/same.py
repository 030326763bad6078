"""Compares values: equal, with equal types all the way down, as the language sees them.

This module does not know how a journal writes values: it looks at types, attributes and identities.
"""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

_PLAIN = (int, str, bytes, bytearray, range, type, type(None))


def difference(value: Any, other: Any) -> str:
    """Return the path of the first part in which the values differ; "" if they are equal."""
    return _difference(value, other, "value", {})


def _difference(value: Any, other: Any, path: str, twins: dict[int, tuple[Any, int]]) -> str:
    kind = type(value)
    if kind is not type(other):
        return f"{path}: {kind.__name__} and {type(other).__name__}"
    if id(value) in twins and kind not in (*_PLAIN, float, tuple):
        return "" if twins[id(value)][1] == id(other) else f"{path}: shared in one only"
    twins[id(value)] = value, id(other)
    if kind is float:
        is_same = struct.pack("d", value) == struct.pack("d", other)
        return "" if is_same else f"{path}: {value!r} and {other!r}"
    if issubclass(kind, PurePath):  # it caches parts
        return "" if value == other and str(value) == str(other) else f"{path}: {value} and {other}"
    if kind in _PLAIN:
        return "" if value == other else f"{path}: {value!r:.40} and {other!r:.40}"
    parts, others = list(_parts(value)), list(_parts(other))
    if [name for name, _ in parts] != [name for name, _ in others]:
        return f"{path}: other parts"
    if not parts and repr(value) != repr(other):
        return f"{path}: {value!r:.40} and {other!r:.40}"
    for (name, part), (_, twin) in zip(parts, others, strict=True):
        if wrong := _difference(part, twin, f"{path}{name}", twins):
            return wrong
    return ""


def _parts(value: Any) -> Iterator[tuple[str, Any]]:  # noqa: C901 - a rule for each kind
    if isinstance(value, Mapping):
        for index, (key, item) in enumerate(value.items()):
            yield f".key{index}", key
            yield f"[{index}]", item
        if isinstance(value, defaultdict):
            yield ".default_factory", value.default_factory
    elif isinstance(value, set | frozenset):
        for index, item in enumerate(sorted(value, key=repr)):
            yield f"{{{index}}}", item
    elif isinstance(value, list | tuple | deque):
        for index, item in enumerate(value):
            yield f"[{index}]", item
        if isinstance(value, deque):
            yield ".maxlen", value.maxlen
    elif hasattr(value, "dtype"):
        yield ".dtype", str(value.dtype)
        yield ".shape", value.shape
        yield ".data", value.tobytes()
        yield ".strides", value.strides
        yield ".writeable", bool(value.flags.writeable)
    if isinstance(value, BaseException):
        yield "str", str(value)
        yield "repr", repr(value)
        for name in ("args", "__cause__", "__context__", "__suppress_context__"):
            yield f".{name}", getattr(value, name)
    for name in ("tzinfo", "fold", "real", "imag", "pattern", "flags", "key", "start", "stop"):
        if not isinstance(value, Mapping) and hasattr(value, name) and name not in _own(value):
            part = getattr(value, name)
            if not callable(part) and type(part) is not type(value) and name != "flags":
                yield f".{name}", part
    yield from _own(value).items()


def _own(value: Any) -> dict[str, Any]:
    """Return the attributes of an instance."""
    attributes = {f".{name}": item for name, item in getattr(value, "__dict__", {}).items()}
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        if not kind.__flags__ & 1 << 9:  # a class of the interpreter
            continue
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") or name.startswith("__pydantic_"):
                item = getattr(value, name, None)
                attributes[f".{name}"] = sorted(item) if isinstance(item, set) else item
    return attributes
