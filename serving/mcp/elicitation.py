"""A program's question as an elicitation: its form there, and the answer back.

A form of MCP is an object of texts, numbers and choices. What is no such object is asked for
under ``answer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp.types import ClientCapabilities, ElicitRequestFormParams, ElicitResult

from agentrt.serving.questions.asked import Asked

_ANSWER = "answer"
_SIMPLE = ("string", "number", "integer", "boolean")


def can_be_asked(client: ClientCapabilities | None) -> bool:
    """Whether the client takes forms. One that names no mode does."""
    elicitation = None if client is None else client.elicitation
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def params_of(question: Asked) -> ElicitRequestFormParams:
    """The question for the client."""
    form = _form_of(question.form.schema)
    return ElicitRequestFormParams(message=question.text, requested_schema=form)


def answer_in(question: Asked, result: ElicitResult) -> Any:
    """The answer to the question, as JSON."""
    content = result.content or {}
    if _is_form(question.form.schema):
        return content
    given = content.get(_ANSWER)
    return question.form.parse(given) if isinstance(given, str) else given


def _form_of(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    if schema is not None and _is_form(schema):
        known = ("type", "properties", "required")
        return {key: schema[key] for key in known if key in schema}
    field: Mapping[str, Any] = schema if schema is not None and _is_field(schema) else {}
    described = {"type": "string"} if not field else {"type": "string", **field}
    return {"type": "object", "properties": {_ANSWER: described}, "required": [_ANSWER]}


def _is_form(schema: Mapping[str, Any] | None) -> bool:
    if schema is None or schema.get("type") != "object":
        return False
    fields = schema.get("properties", {})
    return bool(fields) and all(map(_is_field, fields.values()))


def _is_field(schema: Mapping[str, Any]) -> bool:
    texts = schema.get("enum", [""])
    is_choice = "enum" in schema and all(isinstance(one, str) for one in texts)
    return is_choice or ("enum" not in schema and schema.get("type") in _SIMPLE)
