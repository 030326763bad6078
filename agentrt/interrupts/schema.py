"""A Python function as a tool that a model may call: its signature as a JSON schema.

LangChain's `convert_to_openai_tool` is no substitute: it takes ``*args``, allows arguments that
the function lacks, and gives the whole docstring to the model. Prompts would change with it.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, get_type_hints

from agentrt.errors import ConfigError, ToolArgumentsError
from agentrt.interrupts.context import context_parameter
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
        from pydantic import ConfigDict, ValidationError, create_model
        from pydantic.errors import PydanticUserError

        self.name = name or name_of(function)
        self.context = context_parameter(function)
        self._doc = inspect.getdoc(function) or ""
        self._signature = _signature(function, self.context)
        try:
            fields = _fields(self.name, function, self._signature)
            config = ConfigDict(extra="forbid")
            self._model = create_model(self.name, __config__=config, **fields)
            self._parameters = self._model.model_json_schema()
        except PydanticUserError as error:
            first = str(error).splitlines()[0]
            raise ConfigError(
                f"tool {self.name} has a parameter that JSON cannot carry: {first}"
            ) from error
        self._mistake = ValidationError  # to import it costs a call as much as to check it
        self._names = dict(zip(fields, self._signature.parameters, strict=True))
        self._parameters.pop("title", None)

    def spec(self) -> ToolSpec:
        """The function's name, its docstring's first paragraph, its typed parameters."""
        doc = self._doc.split("\n\n")[0].replace("\n", " ")
        return ToolSpec(self.name, doc, self._parameters)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments by name, as a model gives them. Raises `ToolArgumentsError`."""
        if not args:
            return dict(kwargs)  # `checked` sees what is missing or too much
        try:
            return self._signature.bind_partial(*args, **kwargs).arguments
        except TypeError as error:
            message = f"tool {self.name}: wrong arguments: {error}"
            raise ToolArgumentsError(message, name=self.name) from error

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments in the function's own types. Raises `ToolArgumentsError`."""
        try:
            model = self._model.model_validate(dict(arguments))
        except self._mistake as error:
            wrong = "; ".join(
                f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}"
                for one in error.errors(include_url=False)[:3]
            )
            message = f"tool {self.name}: wrong arguments: {wrong}"
            raise ToolArgumentsError(message, name=self.name) from error
        return {self._names[field]: getattr(model, field) for field in model.model_fields_set}


def _signature(function: Callable[..., Any], context: str | None) -> inspect.Signature:
    whole = inspect.signature(function)
    return whole.replace(parameters=[p for p in whole.parameters.values() if p.name != context])


def _fields(
    name: str, function: Callable[..., Any], signature: inspect.Signature
) -> dict[str, Any]:
    """A model's fields. Their own names say nothing, since a parameter may have any name."""
    from pydantic import Field

    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"tool {name} takes *{parameter.name}: name its parameters")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(f"tool {name} takes {parameter.name} by position only: drop the /")
        default = ... if parameter.default is parameter.empty else parameter.default
        hint = hints.get(parameter.name, str)
        fields[f"p{len(fields)}"] = Annotated[hint, Field(alias=parameter.name)], default
    return fields


def as_json(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as JSON values: models, dataclasses, dates and the like, too.

    Raises `ValueError` for what JSON cannot carry.
    """
    from pydantic_core import to_jsonable_python

    plain: dict[str, Any] = to_jsonable_python(dict(arguments))
    # Models write half a surrogate pair at times. No transport can send it: the MCP SDK's writer
    # fails with all that its connection carries.
    json.dumps(plain, ensure_ascii=False).encode()
    return plain


def mistake_in(value: Any, schema: Mapping[str, Any]) -> str | None:
    """The first thing in ``value`` that does not fit a JSON schema, in a line; None if all does.

    A schema from elsewhere is not trusted: nothing that it refers to is fetched.
    """
    from jsonschema import SchemaError, ValidationError
    from referencing.exceptions import Unresolvable

    try:
        _validator(json.dumps(schema)).validate(value)
    except SchemaError as error:
        return f"its schema is no JSON schema: {error.json_path}: {error.message}"[:500]
    except ValidationError as error:
        return f"{error.json_path}: {error.message}"[:500]
    except Unresolvable as error:
        return f"its schema refers to what is not in it: {error}"[:500]
    except RecursionError:
        return "it or its schema is nested without end"
    return None


def mistake_in_schema(schema: Mapping[str, Any]) -> str | None:
    """What makes ``schema`` no JSON schema, in a line; None if it is one."""
    from jsonschema import SchemaError

    try:
        _validator(json.dumps(schema))
    except SchemaError as error:
        return f"{error.json_path}: {error.message}"[:500]
    return None


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    """A checked schema: to check that takes longer than to check a value."""
    from jsonschema.validators import validator_for
    from referencing import Registry

    read = json.loads(schema)
    made = validator_for(read)
    made.check_schema(read)
    return made(read, registry=Registry())


def model_name(name: str) -> str:
    """A tool's name as models take it: letters, digits, _ and -, at most 64 of them."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64]


def name_of(function: Callable[..., Any]) -> str:
    """A function's name, or the type of a callable that has none."""
    name: str = getattr(function, "__name__", type(function).__name__)
    return name
