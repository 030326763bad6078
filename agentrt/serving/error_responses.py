"""Errors as they are answered, in the form of the API that the path belongs to: they name the field
at fault, and say why.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentrt.errors import (
    AgentrtError,
    CallRejectedError,
    CallTimeoutError,
    EngineDiedError,
    NotServedError,
    PromptTooLongError,
    UsageError,
)
from agentrt.serving.tenants import BusyError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {413: "request_too_large"}


def is_openai(path: str) -> bool:
    """Whether the path belongs to the OpenAI API."""
    return path.startswith("/v1/")


def openai_error(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, object]:
    """The body of an error in OpenAI's API."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def in_form_of(path: str, body: dict[str, object], status: int | None = None) -> dict[str, object]:
    """An OpenAI error as the API that ``path`` belongs to has it; some ``status`` have a type of
    their own there.
    """
    error = body["error"]
    assert isinstance(error, dict)
    if not path.startswith("/v1/messages"):
        return body
    kind = "api_error" if error["type"] == "server_error" else error["type"]
    kind = _ANTHROPIC_TYPES.get(status or 0, kind)
    return {"type": "error", "error": {"type": kind, "message": error["message"]}}


def error_response(
    path: str,
    status: int,
    message: str,
    *,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """An OpenAI or Anthropic error for their paths, ``{"detail": "…"}`` for all others."""
    body: dict[str, object] = {"detail": message}
    if is_openai(path):
        body = in_form_of(path, openai_error(status, message, code=code), status)
    return Response(json.dumps(body), status, dict(headers or {}), "application/json")


# -- what is raised, and how it is answered ------------------------------------------------


_MOST_WORDS = 400
_CLIENT_GONE = 499
_INTERNAL = 500
_LOG = logging.getLogger(__name__)


class ApiError(HTTPException):
    """A request that is refused: ``param`` is the field at fault."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(status, message)
        self.param, self.code = param, code


class CalledOffError(AgentrtError):
    """A call whose program was ended while it was under way."""

    status = 409

    def __init__(self, program_id: str) -> None:
        super().__init__(f"the call was called off: its program {program_id} was ended")


class SupersededError(AgentrtError):
    """A call whose client has sent the same request again."""

    status = 409

    def __init__(self) -> None:
        super().__init__(
            "the call was called off: its client sent the request again, with the same "
            "Idempotency-Key or as a retry that it counts, and the later one is answered"
        )


_STATUSES: Sequence[tuple[type[AgentrtError], int, str]] = (
    (NotServedError, 404, "model_not_found"),
    (PromptTooLongError, 400, "context_length_exceeded"),
    (UsageError, 400, "invalid_request"),
    (CallRejectedError, 400, "invalid_request"),
    (CallTimeoutError, 408, "deadline_exceeded"),
    (EngineDiedError, 503, "engine_died"),
    (CalledOffError, 409, "cancelled"),
    (SupersededError, 409, "superseded"),
)
"""How errors are answered: the first that fits."""


class OpenAIRoute(APIRoute):
    """A route whose errors are in OpenAI's shape, and whose JSON is read strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with errors turned into answers."""
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await handle(_Request(request.scope, request.receive))
            except (RequestValidationError, HTTPException, AgentrtError) as error:
                return answer_to(error)

        return handler


class _Request(Request):
    """Its JSON has no NaN, no lone surrogates, and an end to its depth."""

    async def json(self) -> Any:
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from error


def answer_to(error: Exception) -> Response:
    """The answer to a request that failed with ``error``."""
    status, body, headers = describe(error)
    log_fault(status, error)
    return JSONResponse(body, status, headers)


def log_fault(status: int, error: BaseException) -> None:
    """Say in the log what is the server's own fault."""
    if status == _INTERNAL:
        _LOG.error("a request failed", exc_info=error)


def describe(error: BaseException) -> tuple[int, dict[str, object], dict[str, str]]:
    """Status, body and headers for an error. What is none of ours is a fault of the server."""
    if isinstance(error, RequestValidationError):
        param, message = _first(error.errors())
        return 400, openai_error(400, message, param=param, code="invalid_value"), {}
    if isinstance(error, ApiError):
        body = openai_error(error.status_code, error.detail, param=error.param, code=error.code)
        return error.status_code, body, {}
    if isinstance(error, HTTPException):
        body = openai_error(error.status_code, str(error.detail))
        return error.status_code, body, dict(error.headers or {})
    if isinstance(error, BusyError):
        headers = {"retry-after": str(error.retry_after)}
        return 429, openai_error(429, str(error), code="rate_limit_exceeded"), headers
    found = ((status, code) for kind, status, code in _STATUSES if isinstance(error, kind))
    status, code = next(found, (_INTERNAL, "internal_error"))
    message = str(error) if isinstance(error, AgentrtError) else "the server failed"
    param = "model" if isinstance(error, NotServedError) else None
    return status, openai_error(status, message, param=param, code=code), {}


def client_gone() -> Response:
    """What nobody reads; the status is for logs."""
    return Response(status_code=_CLIENT_GONE)


def _first(errors: Sequence[Any]) -> tuple[str | None, str]:
    """The field at fault and what is wrong with it, of pydantic's list."""
    chosen = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    field = ".".join(str(part) for part in chosen["loc"] if part != "body")
    message = chosen["msg"]
    if chosen["type"] == "extra_forbidden":
        message = f"this server does not know the field {field!r}; leave it out"
    elif chosen["type"] == "json_invalid":
        message = "the body is not JSON"
    elif not field:
        message = "the body must be a JSON object, sent as content-type application/json"
    else:
        message = f"{field}: {message[:1].lower()}{message[1:]}"
    return field or None, message[:_MOST_WORDS]
