"""What a node was asked, as JSON that is only compared, and read by people; and how two differ.

The form of these texts does not change from version to version: a program goes on where the
fingerprint of its question is the recorded one. So it is apart from how answers are written.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import sys
import uuid
from collections.abc import Callable, Mapping
from hashlib import blake2b
from math import isfinite
from typing import Any

import orjson

from agentrt.journal.classes import name_of

_KIND = "$"
_DEEPEST = 200
DIGEST_BYTES = 16
"""The size of a fingerprint."""
_LOADED = "agentrt_program_"
"""What is before the name of a loaded file whose own name was taken, by chance of the order."""


class _UnclearError(Exception):
    """Nothing can be said of a value but its type."""


def _bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _sorted(value: Any) -> list[Any]:
    # In an order that is the same in each process, so that two of them can be compared.
    return sorted(value, key=repr)


def _delta(value: datetime.timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


_TEXTS: Mapping[type, tuple[str, Callable[[Any], Any]]] = {
    bytes: ("bytes", _bytes),
    datetime.datetime: ("datetime", str),
    datetime.date: ("date", str),
    datetime.time: ("time", str),
    datetime.timedelta: ("timedelta", _delta),
    uuid.UUID: ("uuid", str),
    decimal.Decimal: ("decimal", str),
    pathlib.PosixPath: ("path", str),
    float: ("float", repr),
    tuple: ("tuple", list),
    set: ("set", _sorted),
    frozenset: ("frozenset", _sorted),
}


def shown(value: Any) -> str:
    """A value as JSON that is only compared, and read by people: a tuple is a list there, and of
    a part of which nothing can be said its type stands.
    """
    try:
        return orjson.dumps(value, sketched, orjson.OPT_PASSTHROUGH_DATACLASS).decode()
    except TypeError:  # numbers of more than 64 bits, half of a surrogate pair, other keys
        pass
    try:
        return json.dumps(value, separators=(",", ":"), default=sketched)
    except (TypeError, ValueError, RecursionError):
        return json.dumps({_KIND: "?", "value": type(value).__qualname__})


def digest_of(*texts: str) -> str:
    """A fingerprint of texts."""
    whole = "\0".join(texts).encode("utf-8", "surrogatepass")
    return blake2b(whole, digest_size=DIGEST_BYTES).hexdigest()


def sketched(value: Any) -> Any:
    """What can be said of a value that JSON does not know."""
    try:
        if isinstance(value, Mapping):
            return dict(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [(one, getattr(value, one.name)) for one in dataclasses.fields(value)]
            return {one.name: item for one, item in fields if item is not one.default}
        return _written(value, 0)
    except Exception:  # whatever the code of its class raises
        return {_KIND: "?", "value": type(value).__qualname__}


def _written(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise _UnclearError
    kind = type(value)
    if value is None or kind in (str, int, bool) or (kind is float and isfinite(value)):
        return value
    if kind is list:
        return [_written(each, depth + 1) for each in value]
    if kind is dict:
        if _KIND not in value and all(type(key) is str for key in value):
            return {key: _written(item, depth + 1) for key, item in value.items()}
        pairs = [[_written(part, depth + 1) for part in pair] for pair in value.items()]
        return {_KIND: "dict", "value": pairs}
    if kind in _TEXTS:
        name, write = _TEXTS[kind]
        return {_KIND: name, "value": _written(write(value), depth + 1)}
    return {_KIND: _name_of(kind), **_instance(value, depth)}


def _instance(value: Any, depth: int) -> dict[str, Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, BaseException | enum.Enum):
        fields = [(one, getattr(value, one.name)) for one in dataclasses.fields(value) if one.init]
        return {
            one.name: _written(item, depth + 1) for one, item in fields if item is not one.default
        }
    if isinstance(value, enum.Enum):
        return {"value": _written(value.value, depth + 1)}
    if isinstance(value, BaseException):
        return _error(value, depth)
    if hasattr(value, "model_validate"):
        return {"value": _written(value.model_dump(mode="json"), depth + 1)}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return {"value": [_written(each, depth + 1) for each in value]}
    raise _UnclearError


def _error(error: BaseException, depth: int) -> dict[str, Any]:
    try:
        args = _written(list(error.args), depth + 1)
    except _UnclearError:
        args = [str(error)]
    state = {}
    for name, value in vars(error).items():
        try:
            state[name] = _written(value, depth + 1)
        except _UnclearError:
            continue
    return {"value": args, "state": state, "text": str(error)}


def _name_of(kind: type[Any]) -> str:
    if name_of(kind) is None:
        raise _UnclearError
    module = kind.__module__
    if module.startswith(_LOADED):
        file = getattr(sys.modules.get(module), "__file__", None)
        module = module if file is None else pathlib.Path(file).stem
    return f"{module}:{kind.__qualname__}"


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
