"""Made-up outputs that obey a JSON schema, for tests that must not care what a model says."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

from agentrt.errors import ConfigError
from agentrt.request import ToolCall

Schema = Mapping[str, Any]

_WORDS = ("amber", "birch", "cloud", "delta", "ember", "frost", "grove", "haven")
_UNIONS = ("anyOf", "oneOf")
# From this depth on only what must be is made: a schema may refer to itself.
_SHALLOW = 3
_DEEPEST = 50
# Keywords that bind, and for which a value would have to be searched.
_REFUSED = frozenset(
    {
        "pattern",
        "patternProperties",
        "propertyNames",
        "not",
        "if",
        "dependentRequired",
        "dependentSchemas",
        "contains",
        "minProperties",
        "maxProperties",
        "uniqueItems",
        "$dynamicRef",
    }
)


def made_up_value(schema: Schema | bool, rng: random.Random) -> Any:
    """A small JSON value that obeys ``schema``; the same for the same state of ``rng``.

    ``oneOf`` is read as ``anyOf``, and ``format`` as a remark. Raises `ConfigError` for a
    schema that no value obeys, and for keywords such as ``pattern``, which are not known here.
    """
    return _Maker(schema, rng).make(schema, 0)


def made_up_text(words: int, rng: random.Random) -> str:
    """So many words."""
    return " ".join(rng.choice(_WORDS) for _ in range(words))


def made_up_output(request: Mapping[str, Any], rng: random.Random) -> str | ToolCall | None:
    """What fits a chat request: a call of one of its tools, or JSON that obeys its schema.

    None where any text fits.
    """
    choice = request.get("tool_choice") or "auto"
    named = choice["function"]["name"] if isinstance(choice, Mapping) else None
    functions = [tool["function"] for tool in request.get("tools") or () if "function" in tool]
    able = [] if choice == "none" else [f for f in functions if named in (None, f["name"])]
    forms: list[Mapping[str, Any] | None] = [*able, *([None] if choice == "auto" else [])]
    chosen = rng.choice(forms) if able else None
    if chosen is not None:
        parameters = chosen.get("parameters") or {"type": "object", "properties": {}}
        return ToolCall(chosen["name"], made_up_value(parameters, rng))
    schema = _schema_of(request.get("response_format") or {})
    return None if schema is None else json.dumps(made_up_value(schema, rng))


def _schema_of(response_format: Mapping[str, Any]) -> Schema | None:
    if response_format.get("type") == "json_object":
        return {"type": "object"}
    schema: Schema | None = (response_format.get("json_schema") or {}).get("schema")
    return schema


class _Maker:
    def __init__(self, root: Schema | bool, rng: random.Random) -> None:
        self.root = root
        self.rng = rng

    def make(self, schema: Schema | bool, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ConfigError("only a value without end could obey this schema")
        flat = self._flat(schema, deep=depth >= _SHALLOW)
        if "const" in flat:
            return flat["const"]
        if "enum" in flat:
            return self.rng.choice(list(flat["enum"]))
        kind = _type_of(flat, self.rng)
        if kind == "object":
            return self._object(flat, depth)
        if kind == "array":
            return self._array(flat, depth)
        return _scalar(kind, flat, self.rng)

    def _flat(self, schema: Schema | bool, *, deep: bool) -> dict[str, Any]:
        """The schema without references, unions and intersections at its top."""
        flat = _as_mapping(schema)
        for _ in range(_DEEPEST):
            if "$ref" in flat:
                part = self._target(flat.pop("$ref"))
            elif "allOf" in flat:
                first, *rest = flat.pop("allOf")
                part = {**first, "allOf": [*first.get("allOf", ()), *rest]} if rest else first
            elif union := next((key for key in _UNIONS if key in flat), None):
                part = self._choose(flat.pop(union), deep=deep)
            else:
                return _known(flat)
            flat = _both(flat, _as_mapping(part))
        raise ConfigError("this schema refers to itself and to nothing else")

    def _target(self, reference: str) -> Any:
        """What ``#/…`` points to in the whole schema."""
        place: Any = self.root
        steps = reference.removeprefix("#").split("/")[1:]
        try:
            for step in steps:
                place = place[step.replace("~1", "/").replace("~0", "~")]
        except (KeyError, TypeError):
            raise ConfigError(f"$ref {reference!r} points to nothing in this schema") from None
        return place

    def _choose(self, options: list[Schema | bool], *, deep: bool) -> Schema | bool:
        if deep:
            return min(options, key=lambda option: self._height(option, frozenset()))
        ending = [o for o in options if math.isfinite(self._height(o, frozenset()))]
        return self.rng.choice(ending or options)

    def _height(self, schema: Schema | bool, seen: frozenset[str]) -> float:
        """How deep the least value is nested; infinite where a schema needs itself."""
        if isinstance(schema, bool):
            return 0.0 if schema else math.inf
        height = 0.0
        reference = schema.get("$ref")
        if reference in seen:
            return math.inf
        if reference is not None:
            height = self._height(self._target(reference), seen | {reference})
        for union in _UNIONS:
            if union in schema:
                height = max(height, min(self._height(o, seen) for o in schema[union]))
        inner = [self._height(part, seen) for part in _needed(schema)]
        parts = [self._height(part, seen) for part in schema.get("allOf", ())]
        return max(height, *parts, *(1 + one for one in inner), 0.0)

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        required = set(schema.get("required", ()))
        properties = dict(schema.get("properties", {}))
        extra: Schema | bool = schema.get("additionalProperties", {})
        for name in required - set(properties):
            properties[name] = extra
        wanted = {n for n in properties if depth < _SHALLOW and self.rng.random() < 0.5}
        return {
            name: self.make(part, depth + 1)
            for name, part in properties.items()
            if name in required or (name in wanted and part is not False)
        }

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        prefix = list(schema.get("prefixItems", ()))
        least = int(schema.get("minItems", len(prefix)))
        most = int(schema.get("maxItems", max(least, len(prefix)) + 2))
        if schema.get("items", {}) is False:
            most = min(most, len(prefix))
        if least > most:
            raise ConfigError(f"no array has at least {least} and at most {most} items")
        size = least if depth >= _SHALLOW else self.rng.randint(least, most)
        parts = [*prefix, *[schema.get("items", {})] * size][:size]
        return [self.make(part, depth + 1) for part in parts]


def _as_mapping(schema: Schema | bool) -> dict[str, Any]:
    if schema is False:
        raise ConfigError("no value obeys the schema 'false'")
    return {} if isinstance(schema, bool) else dict(schema)


def _known(schema: dict[str, Any]) -> dict[str, Any]:
    for keyword in sorted(_REFUSED & schema.keys()):
        raise ConfigError(f"cannot make up a value for a schema with {keyword!r}: script the reply")
    return schema


def _both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A schema that asks for what both ask for."""
    both = {**one, **other}
    for key in one.keys() & other.keys():
        both[key] = _joined(key, one[key], other[key])
    return both


def _joined(key: str, one: Any, other: Any) -> Any:
    if key in ("minimum", "exclusiveMinimum", "minLength", "minItems"):
        return max(one, other)
    if key in ("maximum", "exclusiveMaximum", "maxLength", "maxItems"):
        return min(one, other)
    if key == "required":
        return [*one, *other]
    if key in ("properties", "$defs", "definitions"):
        return {**one, **other}
    if key in ("title", "description", "default", "examples") or one == other:
        return one
    raise ConfigError(f"cannot make up a value for {key!r} given twice: script the reply")


def _needed(schema: Schema) -> Iterator[Schema | bool]:
    """The schemas of what a value must contain."""
    properties = schema.get("properties", {})
    extra = schema.get("additionalProperties", {})
    yield from (properties.get(name, extra) for name in schema.get("required", ()))
    prefix = schema.get("prefixItems", ())
    yield from prefix
    if schema.get("minItems", 0) > len(prefix):
        yield schema.get("items", {})


def _type_of(schema: Schema, rng: random.Random) -> str:
    given = schema.get("type")
    if isinstance(given, str):
        return given
    if given:
        return str(rng.choice(list(given)))
    if "properties" in schema or "required" in schema:
        return "object"
    if "items" in schema or "prefixItems" in schema or "minItems" in schema:
        return "array"
    numeric = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    return "number" if any(key in schema for key in numeric) else "string"


def _scalar(kind: str, schema: Schema, rng: random.Random) -> Any:
    if kind == "string":
        return _string(schema, rng)
    if kind == "integer":
        return _integer(schema, rng)
    if kind == "number":
        return _number(schema, rng)
    return rng.random() < 0.5 if kind == "boolean" else None


def _string(schema: Schema, rng: random.Random) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength", math.inf)
    if least > most:
        raise ConfigError(f"no text has at least {least} and at most {most} characters")
    text = made_up_text(rng.randint(1, 2), rng)
    while len(text) < least:
        text += " " + rng.choice(_WORDS)
    return text if len(text) <= most else text[: int(most)]


def _integer(schema: Schema, rng: random.Random) -> int:
    low, high = _span(schema)
    step = int(schema.get("multipleOf", 1))
    first, last = math.ceil(low / step), math.floor(high / step)
    first += first * step == schema.get("exclusiveMinimum")
    last -= last * step == schema.get("exclusiveMaximum")
    if first > last:
        raise ConfigError(f"no whole number that obeys lies from {low} to {high}")
    return rng.randint(first, last) * step


def _number(schema: Schema, rng: random.Random) -> float:
    if "multipleOf" in schema:
        return _integer(schema, rng)
    low, high = _span(schema)
    # Quarters are short as text. Between near bounds there may be none: then their middle.
    value = round(rng.uniform(low, high) * 4) / 4
    return value if low < value < high else (low + high) / 2


def _span(schema: Schema) -> tuple[float, float]:
    """The least and the greatest number; 20 apart where the schema leaves one open."""
    lows = [schema[key] for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [schema[key] for key in ("maximum", "exclusiveMaximum") if key in schema]
    low = max(lows) if lows else min(highs, default=20) - 20
    high = min(highs) if highs else low + 20
    if low > high:
        raise ConfigError(f"no number lies from {low} to {high}")
    return low, high
