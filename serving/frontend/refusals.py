"""vLLM's refusals in the words that an API's clients know."""

from __future__ import annotations

import json
import re

from pydantic_core import from_json

from agentrt.serving.error_responses import in_form_of, openai_error
from agentrt.serving.frontend.conversations import MESSAGES, RESPONSES
from agentrt.serving.programs.errors import describe, log_fault

_TOO_LONG = re.compile("maximum context length|exceeds the max_model_len")
_CODE = "context_length_exceeded"
_RETRY_S = b"5"


def clearer(path: str, status: int, body: bytes) -> bytes:
    """The body of a refusal.

    Agents cut their context down where a prompt was too long, which they know by OpenAI's code or
    by Anthropic's words; and Anthropic's clients know its own kinds of errors.
    """
    try:
        answer = from_json(body)
        error, text = answer["error"], str(answer["error"]["message"])
    except (ValueError, TypeError, KeyError):
        return body
    is_too_long = status == 400 and bool(_TOO_LONG.search(text))
    if path.startswith(MESSAGES):
        text = f"prompt is too long: {text}" if is_too_long else text
        answer = in_form_of(path, openai_error(status, text))
    elif is_too_long:
        error["code"] = _CODE
    else:
        return body
    return json.dumps(answer, ensure_ascii=False).encode()


def retry_headers(status: int) -> list[tuple[bytes, bytes]]:
    """When to come back, for what may be well again soon."""
    return [(b"retry-after", _RETRY_S)] if status == 503 else []


def broken_off(path: str, error: Exception) -> bytes:
    """The event that ends a stream which cannot go on."""
    status, body, _ = describe(error)
    log_fault(status, error)
    body = in_form_of(path, body)
    if path == RESPONSES:
        told = body["error"]
        assert isinstance(told, dict)
        code = told["code"] or told["type"]
        body = {"type": "error", "code": code, "message": told["message"], "param": None}
    head = "event: error\n" if body.get("type") == "error" else ""
    return f"{head}data: {json.dumps(body)}\n\n".encode()
