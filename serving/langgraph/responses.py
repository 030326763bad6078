"""Responses of this API: values of graphs as JSON, and errors as ``{"detail": "…"}``."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from langgraph_sdk.auth.exceptions import HTTPException as HookHTTPException

from agentrt.errors import ProgramLoadError
from agentrt.serving.tenants import BusyError

_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
_MAX_DEPTH = 64
_INTEGERS = range(-(2**63), 2**64)
_MAX_ERRORS = 5
"""How many faults of a body are named."""

# -- responses ----------------------------------------------------------------------------


class JSON(Response):
    """A response with a value of a graph, or one of ours."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encode(content)


class Route(APIRoute):
    """A route of this API: a bad request is answered with one sentence."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                await _check_body(request)
                return await handle(request)
            except RequestValidationError as error:
                return JSON({"detail": _summary(error.errors())}, 422)
            except BadJSONError as error:
                return JSON({"detail": str(error)}, 422)
            except ProgramLoadError as error:  # a factory that cannot make its graph for this
                return JSON({"detail": str(error)}, 500)
            except BusyError as error:
                headers = {"Retry-After": str(error.retry_after)}
                return JSON({"detail": str(error)}, 429, headers)
            except (HookHTTPException, HTTPException) as error:
                return JSON({"detail": error.detail}, error.status_code, dict(error.headers or {}))

        return handler


async def _check_body(request: Request) -> None:
    """Raise for a body that is not JSON, or JSON that cannot be stored."""
    if not await request.body():
        return
    try:
        value = await request.json()
    except (ValueError, RecursionError) as error:
        raise HTTPException(422, f"the body is no JSON: {error}") from None
    check_json(value)


def _summary(errors: Sequence[Any]) -> str:
    """What is wrong with a request, field by field."""
    parts = [f"{_field(error['loc'])}: {_fault(error)}" for error in errors[:_MAX_ERRORS]]
    left = len(errors) - _MAX_ERRORS
    return "; ".join(parts) + (f"; and {left} more" if left > 0 else "")


def _field(location: Sequence[Any]) -> str:
    named = [str(part) for part in location if part not in ("body", "query", "path")]
    return ".".join(named) or str(location[0] if location else "request")


def _fault(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "not supported here"
    message: str = error["msg"]
    return message.removeprefix("Value error, ")


def not_found(what: str, key: object) -> HTTPException:
    """It does not exist, or belongs to another tenant: clients cannot tell which."""
    return HTTPException(404, f"{what} {str(key)!r} not found")


def conflict(detail: str) -> HTTPException:
    """The present state does not allow it."""
    return HTTPException(409, detail)


def invalid(detail: str) -> HTTPException:
    """The request is well-formed, but cannot be carried out."""
    return HTTPException(422, detail)


# -- JSON ---------------------------------------------------------------------------------


class BadJSONError(ValueError):
    """JSON that cannot be stored: the message says what, and where."""


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


def timestamp(seconds: float) -> str:
    """Seconds since 1970 as clients get them: in ISO 8601, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def error_json(error: BaseException) -> dict[str, str]:
    """An error as clients see it."""
    return {"error": type(error).__name__, "message": str(error)}


def check_json(value: Any, where: str = "body", depth: int = 0) -> None:
    """Raise `BadJSONError` for JSON that a database or an encoder would refuse."""
    if depth > _MAX_DEPTH:
        raise BadJSONError(f"{where} is nested more than {_MAX_DEPTH} deep")
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
    """One step towards JSON, for types that orjson does not know."""
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
    """``value`` as plain values, with what JSON cannot express replaced."""
    if depth > _MAX_DEPTH:
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
