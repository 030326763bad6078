"""What a LangChain call may say, as a `CallSpec`; and tools and choices in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langchain_core.utils.function_calling import convert_to_json_schema

from agentrt.errors import ConfigError
from agentrt.program.options import LLMOptions, make_spec
from agentrt.request import NO_LIMIT, CallSpec, Message, ToolSpec

_PENALTIES = ("frequency_penalty", "presence_penalty")
_SAMPLING = ("temperature", "top_p", "max_tokens", "stop", "seed", *_PENALTIES)
_FORM = ("tools", "tool_choice", "response_format", "schema")
# Every output obeys its schema, whatever `strict` says. A reply has one tool call, which
# either value of `parallel_tool_calls` allows. `stream` tells LangChain which method to use.
_WITHOUT_EFFECT = ("strict", "parallel_tool_calls", "stream")
KNOWN = ("model", "timeout", *_SAMPLING, *_FORM, *_WITHOUT_EFFECT)

_CHOICES = {"auto": "auto", "none": "none", "any": "required", "required": "required"}


def call_spec(chat: tuple[Message, ...], options: Mapping[str, Any]) -> CallSpec:
    """The spec of a call with these options, whose names are `KNOWN`.

    Raises `ConfigError` for an option that is unknown or cannot be. None is as if not given.
    """
    for name in options:
        if name not in KNOWN:
            raise ConfigError(
                f"ChatAgentRT has no option {name!r} for a call; it has {', '.join(KNOWN)}"
            )
    given = {name: value for name, value in options.items() if value is not None}
    tools = tool_specs(given.get("tools", ()))
    ours = LLMOptions(max_tokens=given.get("max_tokens", NO_LIMIT))
    ours.update({name: given[name] for name in _SAMPLING if name in given})  # type: ignore[typeddict-item]
    ours["tools"] = tools
    ours["tool_choice"] = choice_name(given.get("tool_choice"), [tool.name for tool in tools])
    ours["schema"] = _schema(given)
    return make_spec(chat, **ours)


def tool_specs(tools: Iterable[Mapping[str, Any]]) -> tuple[ToolSpec, ...]:
    """Specs of tools in OpenAI's shape. Raises `ConfigError` for one of another kind."""
    return tuple(_tool_spec(tool) for tool in tools)


def _tool_spec(tool: Mapping[str, Any]) -> ToolSpec:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, Mapping):
        raise ConfigError(
            f"tool {tool.get('name') or tool.get('type')!r} is a service of another provider; "
            "give functions, LangChain tools or schemas"
        )
    # A model that may add arguments of its own does so.
    parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    parameters.update(function.get("parameters") or {})
    return ToolSpec(function["name"], function.get("description") or "", parameters)


def choice_name(choice: str | bool | Mapping[str, Any] | None, names: Sequence[str]) -> str:
    """``auto``, ``required``, ``none`` or a tool's name, of what LangChain's users write.

    That is ``any``, a bool (True: call a tool), a name, or OpenAI's or Anthropic's mapping.
    Raises `ConfigError` for a name that is not among ``names``.
    """
    if isinstance(choice, Mapping):
        function = choice.get("function")
        choice = function["name"] if function else choice.get("name") or choice.get("type")
    if choice is None or isinstance(choice, bool):
        return "required" if choice else "auto"
    if choice in names:
        return str(choice)
    if choice in _CHOICES:
        return _CHOICES[str(choice)]
    raise ConfigError(
        f"tool_choice {choice!r} is no tool of this call; it can be "
        f"{', '.join([*_CHOICES, *names])}, true or false"
    )


def as_choice(name: str) -> str | dict[str, Any]:
    """A choice by our name in OpenAI's shape."""
    return name if name in _CHOICES else {"type": "function", "function": {"name": name}}


def _schema(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    schema, response_format = given.get("schema"), given.get("response_format")
    if schema is not None and response_format is not None:
        raise ConfigError("give schema or response_format, not both")
    if schema is not None:
        return as_json_schema(schema)
    return None if response_format is None else _schema_of_format(response_format)


def as_json_schema(schema: Any) -> Mapping[str, Any]:
    """The JSON schema of a pydantic model, a TypedDict, a function, or a schema.

    A JSON schema needs no title here, as it does in LangChain.
    """
    if isinstance(schema, Mapping) and "type" in schema and schema["type"] != "function":
        return schema
    return convert_to_json_schema(schema)


def _schema_of_format(response_format: Any) -> Mapping[str, Any] | None:
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind == "json_schema":
        schema = (response_format.get("json_schema") or {}).get("schema")
        if schema is None:
            raise ConfigError("response_format of type json_schema needs json_schema.schema")
        return as_json_schema(schema)
    return as_json_schema(response_format)
