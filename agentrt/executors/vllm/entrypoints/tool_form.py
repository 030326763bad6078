"""Our tool form: tools for a model whose training and chat template know of none.

The tools are told to the model in a system message, and its output is held to a JSON object
that either names a tool, with arguments that obey its schema, or answers. Calls and results in
the chat so far are shown in the same form, as plain messages: most chat templates know roles
and text only. All values are as OpenAI's API has them; `partial` reads the outputs.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_ANSWER = "answer"
_REFERENCE = re.compile(r"^#/(\$defs|definitions)/")
_INSTRUCTING = ("system", "developer")

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolForm:
    """What an output may be: a call of one of ``tools`` (functions: name, description,
    parameters), or with ``may_answer`` an answer, which obeys the schema ``answer`` or is text.
    """

    tools: tuple[Json, ...]
    may_answer: bool
    answer: Json | None = None

    def schema(self) -> dict[str, Any]:
        """The JSON schema that the output must obey."""
        definitions: dict[str, Any] = {}
        forms = []
        for index, tool in enumerate(self.tools):
            arguments = _nested(_parameters(tool), f"tool{index}", definitions)
            forms.append(_closed({"name": {"const": tool["name"]}, "arguments": arguments}))
        if self.may_answer:
            answer = self.answer
            text = {"type": "string"}
            form = text if answer is None else _nested(answer, _ANSWER, definitions)
            forms.append(_closed({_ANSWER: form}))
        whole = forms[0] if len(forms) == 1 else {"anyOf": forms}
        return {**whole, "$defs": definitions} if definitions else whole

    def explanation(self) -> str:
        """What the model is told. Small models do far better with the form of each call, worked
        out and without blanks, as the output is held to it.
        """
        lines = ["You can call one of these tools:"]
        for tool in self.tools:
            arguments = _compact(_parameters(tool).get("properties", {}))
            about = tool.get("description") or ""
            lines.append(f"- {tool['name']}: {about} Arguments: {arguments}")
        lines.append("To call a tool, reply with JSON in this form:")
        for tool in self.tools:
            arguments = _example(_parameters(tool))
            lines.append(_compact({"name": tool["name"], "arguments": arguments}))
        if self.may_answer:
            example = _compact(
                {_ANSWER: "<text>" if self.answer is None else _example(self.answer)}
            )
            lines.append(f"When you know the answer, reply with JSON: {example}")
        return "\n".join(lines)


def tool_form(
    tools: Iterable[Json], choice: Any = "auto", answer: Json | None = None
) -> ToolForm | None:
    """The form for a request's ``tools`` and ``tool_choice``; None where the output is free.

    Raises `ValueError` when ``choice`` asks for a tool that is not there.
    """
    functions = tuple(_functions(tools))
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        functions = tuple(_named(functions, one) for one in choice["tools"])
        choice = choice["mode"]
    if choice == "none" or (not functions and choice in (None, "auto")):
        return None
    if choice == "required" and not functions:
        raise ValueError("tool_choice is 'required', and there is no function among the tools")
    if choice in (None, "auto", "required"):
        return ToolForm(functions, choice != "required", answer)
    return ToolForm((_named(functions, choice),), may_answer=False)


def explained(messages: Iterable[Json], form: ToolForm | None) -> list[dict[str, Any]]:
    """The chat with the tools explained, ahead of the program's own messages.

    Its messages have a role and content, and nothing of tools.
    """
    plain = without_tools(messages)
    if form is None:
        return plain
    text = form.explanation()
    if plain and plain[0]["role"] in _INSTRUCTING:
        content = _joined([plain[0]["content"], text], "\n\n")
        return [{**plain[0], "content": content}, *plain[1:]]
    return [{"role": "system", "content": text}, *plain]


def without_tools(messages: Iterable[Json]) -> list[dict[str, Any]]:
    """The messages with tool calls in the form that an output has, and results as the user's.

    The results of one turn are one message: templates want the roles to take turns.
    """
    plain: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    in_results = False
    for message in messages:
        if message["role"] == "tool":
            content = _result(message, names)
            if in_results:
                content = _joined([plain.pop()["content"], content], "\n")
            plain.append({"role": "user", "content": content})
        else:
            calls = message.get("tool_calls") or ()
            names |= {call["id"]: call["function"]["name"] for call in calls if call.get("id")}
            plain.append(_calls_as_text(message) if calls else dict(message))
        in_results = message["role"] == "tool"
    return plain


def _calls_as_text(message: Json) -> dict[str, Any]:
    said: list[Any] = [message["content"]] if message.get("content") else []
    for call in message["tool_calls"]:
        function = call["function"]
        said.append(_as_output(function["name"], function.get("arguments")))
    return {"role": message["role"], "content": _joined(said, "\n")}


def _as_output(name: str, arguments: Any) -> str:
    """A call as the model says it. What is no JSON, such as a call cut off, stays as it is."""
    with contextlib.suppress(ValueError):
        if not isinstance(arguments, str) or not arguments:
            arguments = _compact(arguments or {})
        arguments = _compact(json.loads(arguments))
    return f'{{"name":{_compact(name)},"arguments":{arguments}}}'


def _result(message: Json, names: Mapping[str, str]) -> Any:
    name = message.get("name") or names.get(message.get("tool_call_id") or "")
    head = f"Result of {name}: " if name else "Result: "
    return _joined([head, message.get("content") or ""], "")


def _joined(contents: Sequence[Any], between: str) -> Any:
    """Contents of messages as one: text, unless some have parts that are no text (images)."""
    parts = [part for content in contents for part in _parts(content)]
    if all(part.get("type", "text") == "text" for part in parts):
        return between.join("\n".join(p["text"] for p in _parts(one)) for one in contents)
    return parts


def _parts(content: Any) -> list[Json]:
    if isinstance(content, str) or content is None:
        return [{"type": "text", "text": content or ""}]
    return [{"type": "text", "text": one} if isinstance(one, str) else one for one in content]


def _functions(tools: Iterable[Json]) -> Iterable[Json]:
    """Those tools that are functions, of Chat Completions or of Responses."""
    for tool in tools:
        function = tool.get("function", tool)
        if tool.get("type", "function") == "function" and function.get("name"):
            yield function


def _named(functions: Sequence[Json], choice: Any) -> Json:
    """The tool that a choice names: a plain name, or an object as OpenAI's APIs have it."""
    name = choice
    if isinstance(choice, Mapping):
        name = choice.get("function", choice).get("name")
    for function in functions:
        if function["name"] == name:
            return function
    names = ", ".join(["auto", "required", "none", *(function["name"] for function in functions)])
    raise ValueError(f"tool_choice {name!r} names no tool of this call; it can be {names}")


def _parameters(tool: Json) -> Json:
    """The schema of a tool's arguments: an object, one without names if nothing is said."""
    parameters = tool.get("parameters")
    if not parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return parameters if "type" in parameters else {"type": "object", **parameters}


def _nested(schema: Json, owner: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """A schema to stand inside another. References are from the root: what they refer to
    moves to ``definitions``, for the root, under names of its owner's own.
    """
    for key in ("$defs", "definitions"):
        for name, part in schema.get(key, {}).items():
            definitions[f"{owner}.{name}"] = _renamed(part, owner)
    own = {key: part for key, part in schema.items() if key not in ("$defs", "definitions")}
    nested: dict[str, Any] = _renamed(own, owner)
    if '"$ref": "#"' in json.dumps(schema):
        definitions[owner] = nested
    return nested


def _renamed(part: Any, owner: str) -> Any:
    """A part of a schema whose references are to the names of its owner."""
    if isinstance(part, list):
        return [_renamed(one, owner) for one in part]
    if not isinstance(part, Mapping):
        return part
    renamed = {key: _renamed(one, owner) for key, one in part.items()}
    reference = part.get("$ref")
    if reference == "#":
        renamed["$ref"] = f"#/$defs/{owner}"
    elif isinstance(reference, str):
        renamed["$ref"] = _REFERENCE.sub(f"#/$defs/{owner}.", reference)
    return renamed


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _example(schema: Json) -> Any:
    """An object's names, with what each is about in place of its value."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {} if schema.get("type") == "object" else "<value>"
    return {name: f"<{_about(part)}>" for name, part in properties.items()}


def _about(schema: Any) -> str:
    if not isinstance(schema, dict):  # true, or no schema at all: its constraint will be refused
        return "value"
    if isinstance(schema.get("enum"), list):
        return "|".join(map(str, schema["enum"]))
    return str(schema.get("description") or schema.get("type") or "value")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
