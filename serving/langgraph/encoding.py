"""Values of graphs as JSON, and JSON of clients that every database takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
_DEEPEST = 64
_INTEGERS = range(-(2**63), 2**64)


class BadJSONError(ValueError):
    """JSON that cannot be kept: the message says what, and where."""


def encode(value: Any) -> bytes:
    """``value`` as JSON. Messages and models become objects; what has no JSON, its ``repr``."""
    try:
        return orjson.dumps(value, default=_plain, option=_OPTIONS)
    except TypeError:  # half of a surrogate pair, an integer of more than 64 bits
        return orjson.dumps(_repaired(value, 0), default=repr, option=_OPTIONS)


def to_json(value: Any) -> Any:
    """``value`` as plain JSON values that every database takes: without NUL characters."""
    encoded = encode(value)
    plain = orjson.loads(encoded)
    return _without_nul(plain) if rb"\u0000" in encoded else plain


def instant(seconds: float) -> str:
    """Seconds since 1970 as clients get them: in ISO 8601, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def error_json(error: BaseException) -> dict[str, str]:
    """An error as clients see it."""
    return {"error": type(error).__name__, "message": str(error)}


def check_json(value: Any, where: str = "body", depth: int = 0) -> None:
    """Raise `BadJSONError` for JSON that a database or an encoder would refuse."""
    if depth > _DEEPEST:
        raise BadJSONError(f"{where} is nested more than {_DEEPEST} deep")
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_text(key, f"a key of {where}")
            check_json(inner, f"{where}.{key}", depth + 1)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            check_json(inner, f"{where}[{number}]", depth + 1)
    elif isinstance(value, str):
        _check_text(value, where)
    elif isinstance(value, float) and not math.isfinite(value):
        raise BadJSONError(f"{where} is {value}, which is no JSON")
    elif isinstance(value, int) and value not in _INTEGERS:
        raise BadJSONError(f"{where} is an integer of more than 64 bits")


def _check_text(text: str, where: str) -> None:
    if "\0" in text:
        raise BadJSONError(f"{where} has a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadJSONError(f"{where} has half of a surrogate pair") from None


def _plain(value: Any) -> Any:
    """One step towards JSON, for what orjson does not know."""
    if isinstance(value, BaseException):
        return error_json(value)
    for method in ("model_dump", "_asdict", "to_json"):
        dump = getattr(value, method, None)
        if callable(dump) and not isinstance(value, type):
            return dump()
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return dict(value)
    return repr(value)


def _repaired(value: Any, depth: int) -> Any:
    """``value`` of plain values only, with what JSON cannot say replaced."""
    if depth > _DEEPEST:
        return repr(value).encode("utf-8", "replace").decode()
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if value in _INTEGERS else str(value)
    if isinstance(value, Mapping):
        return {_repaired(str(k), 0): _repaired(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_repaired(one, depth + 1) for one in value]
    return _repaired(_plain(value), depth + 1)


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "�")
    if isinstance(value, dict):
        return {_without_nul(key): _without_nul(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_nul(inner) for inner in value]
    return value
