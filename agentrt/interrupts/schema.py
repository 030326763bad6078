"""A Python function as a tool that a model may call: its signature as a JSON schema.

LangChain's `convert_to_openai_tool` is no substitute: it takes ``*args``, allows arguments that
the function lacks, and gives the whole docstring to the model. Prompts would change with it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_type_hints

from agentrt.errors import ConfigError, ToolArgumentsError
from agentrt.request import ToolSpec


def tool_specs(tools: Iterable[Any]) -> tuple[ToolSpec, ...]:
    """Specs of functions, tools and specs, in order.

    Raises `ConfigError` for two tools of one name, or a function that no schema fits.
    """
    specs = tuple(map(_spec_of, tools))
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two tools are named {name!r}")
    return specs


def _spec_of(given: Any) -> ToolSpec:
    if isinstance(given, ToolSpec):
        return given
    spec = getattr(given, "spec", None)  # of a Tool
    return spec if isinstance(spec, ToolSpec) else ToolSchema(given).spec()


class ToolSchema:
    """A function's parameters, as a schema for models and a check of what they give.

    Raises `ConfigError` for a function that no schema fits.
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        from pydantic import ConfigDict, create_model
        from pydantic.errors import PydanticUserError

        self.name = name or name_of(function)
        self._doc = inspect.getdoc(function) or ""
        try:
            self._model = create_model(
                self.name, __config__=ConfigDict(extra="forbid"), **_fields(self.name, function)
            )
            self._parameters = self._model.model_json_schema()
        except PydanticUserError as error:
            raise ConfigError(
                f"tool {self.name} has a parameter that JSON cannot carry: {error}"
            ) from error
        self._parameters.pop("title", None)

    def spec(self) -> ToolSpec:
        """The function's name, its docstring's first paragraph, its typed parameters."""
        doc = self._doc.split("\n\n")[0].replace("\n", " ")
        return ToolSpec(self.name, doc, self._parameters)

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments in the function's own types. Raises `ToolArgumentsError`."""
        from pydantic import ValidationError

        try:
            model = self._model.model_validate(dict(arguments))
        except ValidationError as error:
            wrong = "; ".join(
                f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}"
                for one in error.errors(include_url=False)[:3]
            )
            message = f"tool {self.name}: wrong arguments: {wrong}"
            raise ToolArgumentsError(message, name=self.name) from error
        return {name: getattr(model, name) for name in model.model_fields_set}


def _fields(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    hints = get_type_hints(function)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"tool {name} takes *{parameter.name}: name its parameters")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, str), default)
    return fields


def mistake_in(value: Any, schema: Mapping[str, Any]) -> str | None:
    """The first thing in ``value`` that does not fit a JSON schema, in a line; None if all does."""
    from jsonschema import ValidationError
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    if (wrong := mistake_in_schema(schema)) is not None:
        return f"its schema is no JSON schema: {wrong}"[:500]
    try:
        # An empty registry: a schema from elsewhere must not make us fetch what it refers to.
        validator_for(schema)(schema, registry=Registry()).validate(value)
    except ValidationError as error:
        return f"{error.json_path}: {error.message}"[:500]
    except Unresolvable as error:
        return f"its schema refers to what is not in it: {error}"[:500]
    return None


def mistake_in_schema(schema: Mapping[str, Any]) -> str | None:
    """What makes ``schema`` no JSON schema, in a line; None if it is one."""
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        return f"{error.json_path}: {error.message}"[:500]
    return None


def model_name(name: str) -> str:
    """A tool's name as models take it: letters, digits, _ and -, at most 64 of them."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64]


def name_of(function: Callable[..., Any]) -> str:
    """A function's name, or the type of a callable that has none."""
    name: str = getattr(function, "__name__", type(function).__name__)
    return name
