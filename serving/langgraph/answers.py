"""How this API answers: JSON, and errors as ``{"detail": "…"}``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from langgraph_sdk.auth.exceptions import HTTPException as RefusedByHook

from agentrt.serving.langgraph.encoding import BadJSONError, check_json, encode
from agentrt.serving.tenants import BusyError

_MANY = 5
"""So many faults of a body are named."""


class JSON(Response):
    """A value of a graph or of ours."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encode(content)


class Route(APIRoute):
    """A route of this API: what a client did wrong is told in one sentence."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                await _check_body(request)
                return await handle(request)
            except RequestValidationError as error:
                return _refused(422, _told(error.errors()))
            except BadJSONError as error:
                return _refused(422, str(error))
            except RefusedByHook as error:
                return _refused(error.status_code, error.detail, dict(error.headers or {}))
            except BusyError as error:
                return _refused(429, str(error), {"Retry-After": str(error.retry_after)})
            except HTTPException as error:
                return _refused(error.status_code, error.detail, dict(error.headers or {}))

        return handler


async def _check_body(request: Request) -> None:
    """Raise for a body that is no JSON, or none that can be kept."""
    body = await request.body()
    if not body:
        return
    try:
        value = await request.json()
    except (ValueError, RecursionError) as error:
        raise HTTPException(422, f"the body is no JSON: {error}") from None
    check_json(value)


def _refused(status: int, detail: Any, headers: dict[str, str] | None = None) -> JSON:
    return JSON({"detail": detail}, status, headers)


def _told(errors: Sequence[Any]) -> str:
    """What is wrong with a request, field by field."""
    parts = [f"{_place(error['loc'])}: {_fault(error)}" for error in errors[:_MANY]]
    left = len(errors) - _MANY
    return "; ".join(parts) + (f"; and {left} more" if left > 0 else "")


def _place(location: Sequence[Any]) -> str:
    named = [str(part) for part in location if part not in ("body", "query", "path")]
    return ".".join(named) or str(location[0] if location else "request")


def _fault(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "not supported here"
    message: str = error["msg"]
    return message.removeprefix("Value error, ")


def missing(what: str, key: object) -> HTTPException:
    """There is none, or it is another tenant's: nobody can tell which."""
    return HTTPException(404, f"{what} {str(key)!r} not found")


def conflict(detail: str) -> HTTPException:
    """It cannot be now."""
    return HTTPException(409, detail)


def unfit(detail: str) -> HTTPException:
    """The request is well-formed, and cannot be."""
    return HTTPException(422, detail)
