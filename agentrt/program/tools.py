"""A Python function as a tool that a model may call: its signature as a JSON schema.

LangChain's `convert_to_openai_tool` is no substitute: it takes ``*args``, allows arguments that
the function lacks, and gives the whole docstring to the model. Prompts would change with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, get_type_hints

from agentrt.errors import ConfigError
from agentrt.request import ToolSpec


def tool_specs(tools: Iterable[Callable[..., Any] | ToolSpec]) -> tuple[ToolSpec, ...]:
    """Specs of functions and specs, in order.

    Raises `ConfigError` for two tools of one name, or a function that no schema fits.
    """
    specs = tuple(t if isinstance(t, ToolSpec) else tool_spec(t) for t in tools)
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two tools are named {name!r}")
    return specs


def tool_spec(function: Callable[..., Any]) -> ToolSpec:
    """A function's spec: its name, its docstring's first paragraph, its typed parameters."""
    from pydantic import ConfigDict, create_model
    from pydantic.errors import PydanticUserError

    name = name_of(function)
    hints = get_type_hints(function)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"tool {name} takes *{parameter.name}: name its parameters")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, str), default)
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        schema = model.model_json_schema()
    except PydanticUserError as error:
        raise ConfigError(f"tool {name} has a parameter that JSON cannot carry: {error}") from error
    schema.pop("title", None)
    doc = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
    return ToolSpec(name, doc, schema)


def name_of(function: Callable[..., Any]) -> str:
    """A function's name, or the type of a callable that has none."""
    name: str = getattr(function, "__name__", type(function).__name__)
    return name
