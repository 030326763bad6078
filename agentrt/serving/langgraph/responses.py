"""Responses of this API: values of graphs as JSON, and errors as ``{"detail": "…"}``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import PurePath
from re import Pattern
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import sqlalchemy as sa
from fastapi import HTTPException, Response
from langgraph.types import Send
from pydantic import ValidationError

from agentrt.errors import text_of

_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
_MAX_DEPTH = 64
_NOT_OBJECTS = ("model_attributes_type", "dict_type")
"""Types of pydantic's errors about a value that is not an object."""
_MAX_ERRORS = 5
"""Maximum number of faults of a request that an error message lists."""
_RETRY_S = "5"
_DIGITS = 20
"""Number of digits of the largest integer of 64 bits."""
_TIMES = {"created_at", "updated_at", "state_updated_at", "end_time", "next_run_date"}
"""The columns with times in seconds since 1970 that clients get as texts."""

# -- responses ----------------------------------------------------------------------------


class JSON(Response):
    """A JSON response; its content may hold values of graphs, such as messages."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encode(content)


def summary(errors: Sequence[Any]) -> str:
    """Return a text that says what is wrong with a request, field by field."""
    parts = [f"{_field(error['loc'])}: {_fault(error)}" for error in errors[:_MAX_ERRORS]]
    left = len(errors) - _MAX_ERRORS
    return "; ".join(parts) + (f"; and {left} more" if left > 0 else "")


def reason(error: Exception) -> str:
    """Return one line that says why a graph refuses values: the faults of the fields if pydantic
    has refused them, else the first line of the error.
    """
    if isinstance(error, ValidationError):
        faults = error.errors(include_url=False)
        return summary([{**fault, "loc": (error.title, *fault["loc"])} for fault in faults])
    return text_of(error).partition("\n")[0] or type(error).__name__


def _field(location: Sequence[Any]) -> str:
    """Return the path of a field, without the part of the request (such as ``body``) before it."""
    return ".".join(map(str, location[1:])) or str(location[0] if location else "request")


def _fault(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "not supported here"
    # FastAPI does not read a body of another content type as JSON.
    if error["type"] in _NOT_OBJECTS and tuple(error["loc"]) == ("body",):
        return "must be a JSON object, sent as content-type application/json"
    message: str = error["msg"]
    return message.removeprefix("Value error, ")


def not_found(kind: str, key: object) -> HTTPException:
    """Return the error for an object that does not exist, or that belongs to another tenant.
    Clients cannot tell these cases apart.
    """
    return HTTPException(404, f"{kind} {str(key)!r} not found")


def conflict(detail: str) -> HTTPException:
    """Return the error for a request that conflicts with the present state."""
    return HTTPException(409, detail)


def invalid(detail: str) -> HTTPException:
    """Return the error for a request with an invalid path, query, header or body."""
    return HTTPException(422, detail)


def later(status: int, detail: str) -> HTTPException:
    """Return the error for a request that the client may repeat after a few seconds."""
    return HTTPException(status, detail, {"Retry-After": _RETRY_S})


def row_json(row: sa.Row[Any], *hidden: str) -> dict[str, Any]:
    """Return a row in the form that clients get: without the ``hidden`` columns, and with times as
    texts.
    """
    return {
        name: timestamp(value) if name in _TIMES and value is not None else value
        for name, value in row._mapping.items()
        if name not in hidden
    }


# -- JSON ---------------------------------------------------------------------------------


def encode(value: Any) -> bytes:
    """Encode ``value`` as JSON. Messages, models, named tuples, mappings and errors become objects,
    sets and deques become lists, and bytes become texts. As on LangGraph's own server, a decimal
    becomes a number, a duration its seconds, and a path or an IP address a text. A value of any
    other class that orjson does not support becomes its ``repr``. An integer of more than 64 bits
    becomes a text, and NaN becomes null.
    """
    try:
        return orjson.dumps(value, default=_plain, option=_OPTIONS)
    except TypeError:  # for example a lone surrogate, or an integer of more than 64 bits
        return orjson.dumps(_repaired(value, 0), default=_shown, option=_OPTIONS)


def to_json(value: Any) -> Any:
    """Convert ``value`` to plain JSON values without NUL characters, which PostgreSQL refuses."""
    encoded = encode(value)
    plain = orjson.loads(encoded)
    return _without_nul(plain) if rb"\u0000" in encoded else plain


def timestamp(seconds: float) -> str:
    """Format seconds since 1970 in ISO 8601, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def error_json(error: BaseException) -> dict[str, str]:
    """Return an error in the form that clients get, with a message that a database can store."""
    return {"error": type(error).__name__, "message": to_json(text_of(error))}


def check_json(value: Any) -> None:
    """Raise `ValueError` for JSON that the database or the encoder would refuse."""
    try:
        encoded = orjson.dumps(value)
    except TypeError as error:  # for example a lone surrogate, or an integer of more than 64 bits
        raise ValueError(str(error)) from None
    if rb"\u0000" in encoded and _without_nul(value) != value:
        raise ValueError("a text contains a NUL character")


def _plain(value: Any) -> Any:
    """Convert a value that orjson cannot encode to a simpler value, whose parts orjson encodes in
    turn.
    """
    try:
        return _step(value)
    except Exception:  # the code of the value's class may raise anything
        return _shown(value)


def _shown(value: Any) -> str:
    try:
        return repr(value).encode("utf-8", "replace").decode()
    except Exception:
        return f"<{type(value).__qualname__}>"


def _step(value: Any) -> Any:
    if isinstance(value, BaseException):
        return error_json(value)
    for method in ("model_dump", "_asdict", "to_json"):
        dump = getattr(value, method, None)
        if callable(dump) and not isinstance(value, type):
            return dump()
    for kind, convert in _CONVERSIONS:
        if isinstance(value, kind):
            return convert(value)
    return repr(value)


def _number(value: Decimal) -> int | float | str:
    """Return a decimal as an integer if it has no places after the point, else as a float. An
    integer of more than 64 bits becomes a text.
    """
    if not value.is_finite() or int(value.as_tuple().exponent) < 0:
        return float(value)
    return int(value) if value.adjusted() < _DIGITS else str(value)


_CONVERSIONS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    ((tuple, set, frozenset, deque), list),
    (Decimal, _number),
    (timedelta, timedelta.total_seconds),
    ((timezone, ZoneInfo), lambda zone: zone.tzname(None) or str(zone)),
    (
        (
            *(PurePath, IPv4Address, IPv4Interface, IPv4Network),
            *(IPv6Address, IPv6Interface, IPv6Network),
        ),
        str,
    ),
    (Pattern, lambda pattern: pattern.pattern),
    (Send, lambda send: {"node": send.node, "args": send.arg}),
    ((bytes, bytearray), lambda data: data.decode("utf-8", "replace")),
    (Mapping, dict),
)


def _repaired(value: Any, depth: int) -> Any:
    """Replace the texts, numbers and keys in ``value`` that orjson refuses, and encode the parts
    that need no repair as they are.
    """
    if depth > _MAX_DEPTH:
        return _shown(value)
    try:
        return orjson.Fragment(orjson.dumps(value, default=_plain, option=_OPTIONS))
    except TypeError:
        pass
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int):
        return _decimal(value)
    if isinstance(value, dict):
        return {_key(key): _repaired(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list) or type(value) is tuple:
        return [_repaired(item, depth + 1) for item in value]
    if isinstance(value, Enum):
        return _repaired(value.value, depth + 1)
    if is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name, None) for field in dataclass_fields(value)}
        shown = {name: item for name, item in fields.items() if not name.startswith("_")}
        return _repaired(shown, depth + 1)
    return _repaired(_plain(value), depth + 1)


def _key(key: Any) -> str:
    """Return the key of an object as orjson encodes it, or its text if orjson refuses it."""
    try:
        return str(next(iter(orjson.loads(orjson.dumps({key: None}, option=_OPTIONS)))))
    except TypeError:
        text = _decimal(key) if isinstance(key, int) else str(key)
        return text.encode("utf-8", "replace").decode()


def _decimal(value: int) -> str:
    try:
        return str(value)
    except ValueError:  # the number has more digits than Python converts
        return hex(value)


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "�")
    if isinstance(value, dict):
        return {_without_nul(key): _without_nul(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_nul(inner) for inner in value]
    return value
