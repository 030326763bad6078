"""Tool calls held to their schema: any model, even a tiny one, stays in form.

The tools are told to the model in a system message, and its output is constrained to a
JSON object that either names a tool with arguments that obey its schema, or answers. Calls
and results in the chat so far are shown in the same form, as plain messages: most chat
templates know roles and text only.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from agentrt.errors import CallRejectedError, ConfigError
from agentrt.request import CallSpec, Message, ToolCall, ToolSpec

_ANSWER = "answer"
_REFERENCE = re.compile(r"^#/(\$defs|definitions)/")


def output_schema(spec: CallSpec) -> Mapping[str, Any] | None:
    """The JSON schema that the output must obey, or None for free text.

    Raises `ConfigError` when ``tool_choice`` names no tool of the call.
    """
    if not spec.tools or spec.tool_choice == "none":
        return spec.schema
    definitions: dict[str, Any] = {}
    forms = [_call_form(tool, definitions) for tool in _chosen(spec)]
    if spec.tool_choice == "auto":
        forms.append(_answer_form(spec.schema, definitions))
    form = forms[0] if len(forms) == 1 else {"anyOf": forms}
    return {**form, "$defs": definitions} if definitions else form


def with_tools(spec: CallSpec) -> tuple[Message, ...]:
    """The chat with the tools explained, ahead of the program's own messages.

    Its messages have a role and text, and nothing of tools.
    """
    messages = tuple(_without_tools(spec.messages or ()))
    if not spec.tools or spec.tool_choice == "none":
        return messages
    may_answer = spec.tool_choice == "auto"
    text = _explain(_chosen(spec), may_answer=may_answer, answer=spec.schema)
    if messages and messages[0].get("role") == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
        return (first, *messages[1:])
    return ({"role": "system", "content": text}, *messages)


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
    answer = value[_ANSWER]
    return (answer if isinstance(answer, str) else json.dumps(answer)), (), answer


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raise `CallRejectedError` for what is no JSON object, hence no schema."""
    try:
        json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise CallRejectedError(f"schema is not JSON: {error}") from error


def _without_tools(messages: Iterable[Message]) -> list[Message]:
    """The messages with tool calls in the form that an output has, and results as the user's.

    The results of one turn are one message: templates want the roles to take turns.
    """
    plain: list[Message] = []
    names: dict[str, str] = {}
    in_results = False
    for message in messages:
        if message["role"] == "tool":
            text = _result_text(message, names)
            if in_results:
                text = f"{plain.pop()['content']}\n{text}"
            plain.append({"role": "user", "content": text})
        else:
            calls = message.get("tool_calls") or ()
            names |= {call["id"]: call["function"]["name"] for call in calls if call.get("id")}
            plain.append(_calls_as_text(message) if calls else message)
        in_results = message["role"] == "tool"
    return plain


def _calls_as_text(message: Message) -> Message:
    text = [message["content"]] if message.get("content") else []
    for call in message["tool_calls"]:
        function = call["function"]
        text.append(_as_output(function["name"], function["arguments"]))
    return {"role": message["role"], "content": "\n".join(text)}


def _as_output(name: str, arguments: str) -> str:
    """A call as the model says it. What is no JSON, such as a call cut off, stays as it is."""
    with contextlib.suppress(ValueError):
        arguments = _compact(json.loads(arguments or "{}"))
    return f'{{"name":{_compact(name)},"arguments":{arguments}}}'


def _result_text(message: Message, names: Mapping[str, str]) -> str:
    name = message.get("name") or names.get(message.get("tool_call_id") or "")
    return f"Result of {name}: {message['content']}" if name else f"Result: {message['content']}"


def _chosen(spec: CallSpec) -> list[ToolSpec]:
    if spec.tool_choice in ("auto", "required"):
        return list(spec.tools)
    chosen = [tool for tool in spec.tools if tool.name == spec.tool_choice]
    if not chosen:
        names = ", ".join(tool.name for tool in spec.tools)
        raise ConfigError(
            f"tool_choice {spec.tool_choice!r} names no tool of this call; "
            f"it can be auto, required, none, {names}"
        )
    return chosen


def _call_form(tool: ToolSpec, definitions: dict[str, Any]) -> dict[str, Any]:
    arguments = _nested(tool.parameters, tool.name, definitions)
    return _closed({"name": {"const": tool.name}, "arguments": arguments})


def _answer_form(schema: Mapping[str, Any] | None, definitions: dict[str, Any]) -> dict[str, Any]:
    answer = {"type": "string"} if schema is None else _nested(schema, _ANSWER, definitions)
    return _closed({_ANSWER: answer})


def _nested(schema: Mapping[str, Any], owner: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """A schema to stand inside another. References are from the root: what they refer to
    moves to ``definitions``, for the root, under names of its owner's own.
    """
    for key in ("$defs", "definitions"):
        for name, part in schema.get(key, {}).items():
            definitions[f"{owner}_{name}"] = _renamed(part, owner)
    own = {key: part for key, part in schema.items() if key not in ("$defs", "definitions")}
    nested: dict[str, Any] = _renamed(own, owner)
    return nested


def _renamed(part: Any, owner: str) -> Any:
    """A part of a schema whose references are to the names of its owner."""
    if isinstance(part, list):
        return [_renamed(one, owner) for one in part]
    if not isinstance(part, Mapping):
        return part
    renamed = {key: _renamed(one, owner) for key, one in part.items()}
    reference = part.get("$ref")
    if isinstance(reference, str):
        renamed["$ref"] = _REFERENCE.sub(f"#/$defs/{owner}_", reference)
    return renamed


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _explain(tools: list[ToolSpec], *, may_answer: bool, answer: Mapping[str, Any] | None) -> str:
    """What the model is told. Small models do far better with the form of each call, worked
    out and without blanks, as the output is held to it.
    """
    lines = ["You can call one of these tools:"]
    for tool in tools:
        arguments = _compact(tool.parameters.get("properties", {}))
        lines.append(f"- {tool.name}: {tool.description} Arguments: {arguments}")
    lines.append("To call a tool, reply with JSON in this form:")
    lines += [_compact({"name": tool.name, "arguments": _form(tool.parameters)}) for tool in tools]
    if may_answer:
        form = "<text>" if answer is None else _form(answer)
        lines.append(f"When you know the answer, reply with JSON: {_compact({_ANSWER: form})}")
    return "\n".join(lines)


def _form(schema: Mapping[str, Any]) -> Any:
    """An object's names, with what each is about in place of its value."""
    if "properties" not in schema:
        return {} if schema.get("type") == "object" else "<value>"
    return {name: f"<{_about(part)}>" for name, part in schema["properties"].items()}


def _about(schema: Mapping[str, Any] | bool) -> str:
    if isinstance(schema, bool):
        return "value"
    if "enum" in schema:
        return "|".join(map(str, schema["enum"]))
    return str(schema.get("description") or schema.get("type") or "value")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
