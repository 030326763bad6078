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


def in_form_of(path: str, body: dict[str, object]) -> dict[str, object]:
    """An OpenAI error as the API that ``path`` belongs to has it."""
    error = body["error"]
    assert isinstance(error, dict)
    if not path.startswith("/v1/messages"):
        return body
    kind = "api_error" if error["type"] == "server_error" else error["type"]
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
        body = in_form_of(path, openai_error(status, message, code=code))
    return Response(json.dumps(body), status, dict(headers or {}), "application/json")
