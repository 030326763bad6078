"""The tool form for calls in a program's own words: `vllm.frontend.tool_form` has the form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentrt.errors import CallRejectedError, ConfigError
from agentrt.executors.vllm.frontend.tool_form import ToolForm, explained, tool_form
from agentrt.request import CallSpec, Message, ToolCall


def output_schema(spec: CallSpec) -> Mapping[str, Any] | None:
    """The JSON schema that the output must obey, or None for free text.

    Raises `ConfigError` when ``tool_choice`` names no tool of the call.
    """
    form = _form(spec)
    return spec.schema if form is None else form.schema()


def with_tools(spec: CallSpec) -> tuple[Message, ...]:
    """The chat with the tools explained, ahead of the program's own messages."""
    return tuple(explained(spec.messages or (), _form(spec)))


def read_output(spec: CallSpec, text: str) -> tuple[str, tuple[ToolCall, ...], Any]:
    """The answer's text, the tool calls, and the JSON value of an output.

    An output that was cut off by ``max_tokens`` is no JSON: its text comes back as it
    is, with no tool call and no value.
    """
    schema = output_schema(spec)
    if schema is None:
        return text, (), None
    try:
        value = json.loads(text)
    except ValueError:
        return text, (), None
    if schema is spec.schema:
        return text, (), value
    if "name" in value and "arguments" in value:
        return text, (ToolCall(value["name"], value["arguments"]),), None
    answer = value["answer"]
    return (answer if isinstance(answer, str) else json.dumps(answer)), (), answer


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raise `CallRejectedError` for what is no JSON object, hence no schema."""
    try:
        json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise CallRejectedError(f"schema is not JSON: {error}") from error


def _form(spec: CallSpec) -> ToolForm | None:
    if not spec.tools:
        return None
    tools = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        for tool in spec.tools
    ]
    try:
        return tool_form(tools, spec.tool_choice, spec.schema)
    except ValueError as error:
        raise ConfigError(str(error)) from error
