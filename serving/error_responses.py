"""Error responses in the form of the API that the path belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import Response

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def is_openai(path: str) -> bool:
    """Whether the path belongs to the OpenAI API."""
    return path.startswith("/v1/")


def openai_error(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, object]:
    """The body of an error in OpenAI's API."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(
    path: str,
    status: int,
    message: str,
    *,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """An OpenAI error for OpenAI's paths, ``{"detail": "…"}`` for all others."""
    body = openai_error(status, message, code=code) if is_openai(path) else {"detail": message}
    return Response(json.dumps(body), status, dict(headers or {}), "application/json")
