"""Convert errors to HTTP answers in the format of the API that the client called. An answer names
the field at fault, if a field is at fault.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentrt.errors import (
    AgentrtError,
    CallRejectedError,
    CallTimeoutError,
    EngineDiedError,
    JournalError,
    NotServedError,
    PromptTooLongError,
    UsageError,
)
from agentrt.serving.bodies import parse_json
from agentrt.serving.tenants import BusyError

_PACKAGE = str(Path(__file__).resolve().parents[1])
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {413: "request_too_large"}


def is_openai(path: str) -> bool:
    """Return whether the path is below ``/v1/``, where errors have the format of OpenAI's or of
    Anthropic's API.
    """
    return path.startswith("/v1/")


def openai_error(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, object]:
    """Return the body of an error in the format of OpenAI's API."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def in_form_of(path: str, body: dict[str, object], status: int | None = None) -> dict[str, object]:
    """Convert an error body of OpenAI's format to the format of the API at ``path``.

    In Anthropic's API, the type of an error may depend on its ``status``.
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
    """Return an error in the format of the API at ``path``: OpenAI's, Anthropic's, or
    ``{"detail": "…"}`` for all other paths.
    """
    body: dict[str, object] = {"detail": message}
    if is_openai(path):
        body = in_form_of(path, openai_error(status, message, code=code), status)
    return Response(json.dumps(body), status, dict(headers or {}), "application/json")


# -- errors and their answers --------------------------------------------------------------


_MOST_WORDS = 400
_CLIENT_GONE = 499
_INTERNAL = 500
_RETRIED, _RETRY_S = (429, 503), "5"
_LOG = logging.getLogger(__name__)


class ApiError(HTTPException):
    """An error that refuses a request. ``param`` is the field at fault."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(status, message)
        self.param, self.code = param, code


class CalledOffError(AgentrtError):
    """The error of a call that was cancelled because its program was ended."""

    status = 409

    def __init__(self, program_id: str) -> None:
        super().__init__(f"the call was cancelled because its run {program_id} was ended")


class StoppingError(AgentrtError):
    """The error of a call that was cancelled because the server stops before the call has ended."""

    status = 503

    def __init__(self) -> None:
        super().__init__(
            "the server is stopping: the call was cancelled before its end; send the request again "
            "when the server is back"
        )


class SupersededError(AgentrtError):
    """The error of a call that was cancelled because its client sent the request again."""

    status = 409

    def __init__(self) -> None:
        super().__init__(
            "the call was cancelled because its client sent the request again, as a retry or with "
            "the same Idempotency-Key; the later request is answered"
        )


_STATUSES: Sequence[tuple[type[AgentrtError], int, str]] = (
    (NotServedError, 404, "model_not_found"),
    (PromptTooLongError, 400, "context_length_exceeded"),
    (JournalError, _INTERNAL, "internal_error"),  # it is the server's own journal
    (UsageError, 400, "invalid_request"),
    (CallRejectedError, 400, "invalid_request"),
    (CallTimeoutError, 408, "deadline_exceeded"),
    (EngineDiedError, 503, "engine_died"),
    (CalledOffError, 409, "cancelled"),
    (SupersededError, 409, "superseded"),
    (StoppingError, 503, "stopping"),
)
"""The status and code of each type of error. The first type that matches applies."""


class OpenAIRoute(APIRoute):
    """A route with errors in OpenAI's format, which reads JSON strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the route's handler, wrapped so that errors become answers."""
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await handle(_StrictRequest(request.scope, request.receive))
            except (RequestValidationError, HTTPException, AgentrtError) as error:
                return answer_to(error)

        return handler


class _StrictRequest(Request):
    """A request that refuses JSON with NaN, lone surrogates or very deep nesting."""

    async def json(self) -> Any:
        try:
            return parse_json(await self.body())
        except ValueError as error:
            raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from error


def answer_to(error: Exception) -> Response:
    """Log ``error`` if it is the server's fault, and return the answer to its request."""
    status, body, headers = describe(error)
    log_fault(status, error)
    return JSONResponse(body, status, headers)


def log_fault(status: int, error: BaseException) -> None:
    """Log an error with its traceback if its status is 500, which means a fault of the server."""
    if status == _INTERNAL:
        _LOG.error("a request failed with an unexpected error", exc_info=error)


def describe(error: BaseException) -> tuple[int, dict[str, object], dict[str, str]]:
    """Return the status, the body (in OpenAI's format) and the headers of the answer for an error.
    Errors of unknown types get status 500. Answers with status 429 and 503 have ``Retry-After``.
    """
    status, body, headers = _described(error)
    if status in _RETRIED and not any(name.lower() == "retry-after" for name in headers):
        headers["retry-after"] = _RETRY_S
    return status, body, headers


def _described(error: BaseException) -> tuple[int, dict[str, object], dict[str, str]]:
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
    matches = ((status, code) for kind, status, code in _STATUSES if isinstance(error, kind))
    status, code = next(matches, (_INTERNAL, "internal_error"))
    message = str(error) if isinstance(error, AgentrtError) else "the server failed"
    param = "model" if isinstance(error, NotServedError) else None
    return status, openai_error(status, message, param=param, code=code), {}


def client_gone() -> Response:
    """Return an answer for a client that has disconnected. Its status only appears in logs."""
    return Response(status_code=_CLIENT_GONE)


def _first(errors: Sequence[Any]) -> tuple[str | None, str]:
    """Return a field at fault and its message, from pydantic's list of errors: the first unknown
    field, or, if no field is unknown, the first field at fault.
    """
    chosen = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
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


def failure(error: BaseException) -> str:
    """Return the type of a run's error and the place where it was raised, for the server's log.

    The place is the last frame outside installed packages, if there is one. The message of the
    error is left out: it may have the data of a tenant, and only the run's client gets it.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    own = [frame for frame in own if not frame.filename.startswith(_PACKAGE)] or own or frames
    where = f" at {own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else ""
    return f"{type(error).__name__}{where}"
