"""Describing a Python function as a tool for models: the function's signature as a JSON schema.

LangChain's `convert_to_openai_tool` is not used: it accepts ``*args``, allows arguments that the
function does not have, and shows the whole docstring to the model, which would change prompts.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Annotated, Any, get_type_hints

from agentrt.errors import ConfigError, ToolArgumentsError
from agentrt.interrupts.context import code_of, context_parameter
from agentrt.request import ToolSpec


def tool_specs(tools: Iterable[Any]) -> tuple[ToolSpec, ...]:
    """Return a `ToolSpec` for each of ``tools``, which are functions, tools or specs.

    Raises `ConfigError` for two tools with the same name, for a function whose parameters have no
    JSON schema, and for any other value.
    """
    specs = tuple(map(_spec_of, tools))
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two tools are named {name!r}; rename one of them")
    return specs


def _spec_of(tool: Any) -> ToolSpec:
    if isinstance(tool, ToolSpec):
        return tool
    spec = getattr(tool, "spec", None)  # a Tool has this attribute
    return spec if isinstance(spec, ToolSpec) else ToolSchema(tool).spec()


class ToolSchema:
    """The parameters of a function: a JSON schema for models, and a check of the arguments.

    Raises `ConfigError` for a function that has no JSON schema.
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        from pydantic import ConfigDict, ValidationError, create_model
        from pydantic.errors import PydanticUserError

        code = code_of(function)
        named = function.func if isinstance(function, functools.partial) else function
        self.name = name or name_of(named)
        self.context = context_parameter(function)
        self._doc = inspect.getdoc(named) or inspect.getdoc(code) or ""
        self._signature = _signature(function, self.context)
        try:
            fields = _fields(self.name, code, self._signature)
            config = ConfigDict(extra="forbid")
            self._model = create_model(self.name, __config__=config, **fields)
            self._parameters = self._model.model_json_schema()
        except PydanticUserError as error:
            first = str(error).splitlines()[0]
            raise ConfigError(
                f"tool {self.name} has a parameter whose type has no JSON form: {first}"
            ) from error
        self._mistake = ValidationError  # importing it in each call would take as long as a check
        self._names = dict(zip(fields, self._signature.parameters, strict=True))
        self._parameters.pop("title", None)

    def spec(self) -> ToolSpec:
        """Return the spec: the function's name, the first paragraph of its docstring, and the JSON
        schema of its parameters.
        """
        doc = self._doc.split("\n\n")[0].replace("\n", " ")
        return ToolSpec(self.name, doc, self._parameters)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return all arguments by name, as a model passes them. If some arguments are passed by
        position, raises `ToolArgumentsError` for arguments that the function does not take.
        """
        if not args:
            return dict(kwargs)  # `checked` reports missing and unknown arguments
        try:
            return self._signature.bind_partial(*args, **kwargs).arguments
        except TypeError as error:
            message = f"tool {self.name}: wrong arguments: {error}"
            raise ToolArgumentsError(message, name=self.name) from error

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments converted to the function's types. Raises `ToolArgumentsError` for
        missing, unknown and invalid arguments.
        """
        try:
            model = self._model.model_validate(dict(arguments))
        except self._mistake as error:
            wrong = "; ".join(
                f"{'.'.join(map(str, mistake['loc'])) or 'arguments'}: {mistake['msg']}"
                for mistake in error.errors(include_url=False)[:3]
            )
            message = f"tool {self.name}: wrong arguments: {wrong}"
            raise ToolArgumentsError(message, name=self.name) from error
        return {self._names[field]: getattr(model, field) for field in model.model_fields_set}


def _signature(function: Callable[..., Any], context: str | None) -> inspect.Signature:
    try:
        whole = inspect.signature(function)
    except (TypeError, ValueError) as error:  # not callable, or a built-in without a signature
        raise ConfigError(
            f"{function!r} cannot be a tool: {error}; pass a Python function, a Tool or a ToolSpec"
        ) from error
    return whole.replace(parameters=[p for p in whole.parameters.values() if p.name != context])


def _fields(name: str, code: Callable[..., Any], signature: inspect.Signature) -> dict[str, Any]:
    """Return the fields of a pydantic model. ``code`` is the function that has the parameters of
    ``signature``.

    Fields are called ``p0``, ``p1`` and so on, because a parameter may have a name that pydantic
    does not allow for a field. The parameter's name is the field's alias.
    """
    from pydantic import Field

    fields: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise ConfigError(
                f"tool {name} takes {stars}{parameter.name}; give each of its parameters a name"
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"tool {name} takes {parameter.name} by position only; remove the / from its "
                "parameters"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        hint = _hint_of(name, code, parameter)
        fields[f"p{len(fields)}"] = Annotated[hint, Field(alias=parameter.name)], default
    return fields


def _hint_of(name: str, code: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return the type of a parameter; text for a parameter without an annotation. The annotation of
    the result is not evaluated, because its names may be imported for type checkers only.

    Raises `ConfigError` for an annotation that cannot be evaluated.
    """
    if parameter.annotation is parameter.empty:
        return str
    own = SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        names = getattr(code, "__globals__", {})
        return get_type_hints(own, names, include_extras=True)["it"]
    except Exception as error:  # code of the annotation may raise any error
        raise ConfigError(
            f"tool {name}: the annotation {parameter.annotation!r} of its parameter "
            f"{parameter.name!r} cannot be evaluated: {error}; use types that are imported at run "
            "time"
        ) from error


def as_json(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert arguments, which may be models, dataclasses, dates and so on, to JSON values.

    Raises `ValueError` for a value that has no JSON form.
    """
    from pydantic_core import to_jsonable_python

    plain: dict[str, Any] = to_jsonable_python(dict(arguments))
    # Models sometimes write half a surrogate pair. No transport can send it, and in the MCP SDK it
    # would break the whole connection. So raise an error for it here.
    json.dumps(plain, ensure_ascii=False).encode()
    return plain


def mistake_in(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Return a line about a part of ``value`` that does not obey a JSON schema, or about a fault of
    the schema itself; None if the whole value obeys the schema.

    The schema is not trusted: references to other documents are not fetched.
    """
    from jsonschema import SchemaError, ValidationError
    from referencing.exceptions import Unresolvable

    try:
        _validator(json.dumps(schema)).validate(value)
    except SchemaError as error:
        return f"the schema is not valid: {_placed(error)}"[:500]
    except ValidationError as error:
        return _placed(error)[:500]
    except Unresolvable as error:
        return f"the schema has a reference outside of itself: {error}"[:500]
    except RecursionError:
        return "the value or its schema is nested too deeply"
    except _UNCHECKED as error:
        return f"the value cannot be checked: {type(error).__name__}: {error}"[:500]
    return None


def mistake_in_schema(schema: Mapping[str, Any]) -> str | None:
    """Return a line that says why ``schema`` is not a valid JSON schema; None if it is valid."""
    from jsonschema import SchemaError

    try:
        _validator(json.dumps(schema))
    except SchemaError as error:
        return _placed(error)[:500]
    except RecursionError:
        return "it is nested too deeply"
    except _UNCHECKED as error:
        return f"it cannot be read: {type(error).__name__}: {error}"[:500]
    return None


_UNCHECKED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors that jsonschema raises for some schemas and values that it does not expect, such as a
number that is too large for ``multipleOf``, or a reference to a part that is not a schema.
"""


def _placed(error: Any) -> str:
    """Return jsonschema's message. If the mistake is in a part of the value, the message begins
    with the place of this part.
    """
    place = error.json_path
    return str(error.message) if place == "$" else f"{place}: {error.message}"


def reason_of(error: ValueError) -> str:
    """Return the first mistake that pydantic reports, or else the error's own text."""
    mistakes = error.errors(include_url=False) if hasattr(error, "errors") else []
    if not mistakes:
        return str(error)[:500]
    place = ".".join(map(str, mistakes[0]["loc"]))
    return f"{place}: {mistakes[0]['msg']}"[:500] if place else str(mistakes[0]["msg"])[:500]


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    """Return a validator for a schema. Validators are cached, because checking a schema takes
    longer than checking a value.
    """
    from jsonschema.validators import validator_for
    from referencing import Registry

    parsed = for_python(json.loads(schema))
    validator = validator_for(parsed)
    validator.check_schema(parsed)
    return validator(parsed, registry=Registry())


# -- patterns ------------------------------------------------------------------------------
# The patterns of JSON schemas are regular expressions of JavaScript. Python has other words for
# some of their parts, and lacks others.

_DATA = ("const", "default", "enum", "examples")
_NAMED_SCHEMAS = ("$defs", "definitions", "dependentSchemas", "properties", "patternProperties")
_OF_JAVASCRIPT = re.compile(r"\\[pP]\{|\\u\{|\\c[A-Za-z]|\[\^?\]|\(\?[ims-]+:")
_GROUP, _REFERENCE = re.compile(r"\(\?<(?![=!])"), re.compile(r"\\k<(\w+)>")


def for_python(schema: Any) -> Any:
    """Return a schema with its patterns as Python writes them. A pattern that only JavaScript can
    match is left out, so that any text fits it.
    """
    if isinstance(schema, list):
        return list(map(for_python, schema))
    if not isinstance(schema, dict):
        return schema
    changed = {
        key: value
        if key in _DATA
        else {name: for_python(inner) for name, inner in value.items()}
        if key in _NAMED_SCHEMAS and isinstance(value, dict)
        else for_python(value)
        for key, value in schema.items()
    }
    if isinstance(text := changed.get("pattern"), str):
        if (pattern := _pattern_of(text)) is None:
            del changed["pattern"]
        else:
            changed["pattern"] = pattern
    if isinstance(named := changed.get("patternProperties"), dict):
        changed["patternProperties"] = {
            # An unknown pattern may match any property, so it must not count as additional.
            ("^" if pattern is None else pattern): ({} if pattern is None else inner)
            for pattern, inner in ((_pattern_of(text), inner) for text, inner in named.items())
        }
    return changed


def _pattern_of(text: str) -> str | None:
    """Return a pattern as Python writes it; None for a pattern that only JavaScript can match, for
    example because it repeats more often than Python can count. A pattern that neither can read is
    returned unchanged.
    """
    pattern = _REFERENCE.sub(r"(?P=\1)", _GROUP.sub("(?P<", text))
    for candidate in (text, pattern):
        try:
            re.compile(candidate)
        except re.error:
            continue
        except OverflowError:
            return None
        return candidate
    return None if _OF_JAVASCRIPT.search(text) else text


def model_name(name: str) -> str:
    """Convert a tool's name to a name that models allow: at most 64 letters, digits, _ and -."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64]


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name, or the name of the type of a callable without a name."""
    name: str = getattr(function, "__name__", type(function).__name__)
    return name
