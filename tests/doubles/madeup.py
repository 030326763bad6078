"""Made-up outputs that obey a JSON schema, for tests that must not care what a model says."""

from __future__ import annotations

import contextlib
import json
import math
import random
from collections.abc import Mapping
from typing import Any

from agentrt.request import ToolCall

Schema = Mapping[str, Any]

_WORDS = ("amber", "birch", "cloud", "delta", "ember", "frost", "grove", "haven")
_SHALLOW, _DEEPEST = 3, 12
"""From the first depth on only what must be is made; none is made below the second."""
_SEARCHED = {"pattern", "not", "if", "contains", "uniqueItems", "minProperties", "multipleOf"}
"""Keywords for which a value would have to be searched."""
_ENDLESS = "only a value without end could obey this schema"


def made_up_value(schema: Schema, rng: random.Random) -> Any:
    """A small JSON value that obeys ``schema``; the same for the same state of ``rng``.

    Raises `RecursionError` for a schema that only a value without end could obey, and `ValueError`
    for keywords that are not known here.
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
    def __init__(self, root: Schema, rng: random.Random) -> None:
        self.root = root
        self.rng = rng

    def make(self, schema: Schema, depth: int) -> Any:
        if depth > _DEEPEST:
            raise RecursionError(_ENDLESS)
        if unknown := _SEARCHED & schema.keys():
            raise ValueError(f"no value is made up for {min(unknown)!r}: script the reply")
        if "$ref" in schema:
            return self.make(self._target(schema["$ref"]), depth + 1)
        if "allOf" in schema:
            [part] = schema["allOf"]  # as Pydantic makes them
            return self.make(part, depth + 1)
        if options := schema.get("anyOf") or schema.get("oneOf"):
            return self._one_of(options, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self.rng.choice(list(schema["enum"]))
        kind = schema.get("type", "object" if "properties" in schema else "string")
        kind = kind if isinstance(kind, str) else self.rng.choice(kind)
        return getattr(self, f"_{kind}")(schema, depth)

    def _target(self, reference: str) -> Any:
        """What ``#/…`` points to in the whole schema."""
        place: Any = self.root
        for step in reference.removeprefix("#").split("/")[1:]:
            place = place[step.replace("~1", "/").replace("~0", "~")]
        return place

    def _one_of(self, options: list[Schema], depth: int) -> Any:
        """A value of one of the options that has an end."""
        order = self.rng.sample(options, len(options))
        for option in order:
            with contextlib.suppress(RecursionError):
                return self.make(option, depth + 1)
        raise RecursionError(_ENDLESS)

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        return {
            name: self.make(part, depth + 1)
            for name, part in schema.get("properties", {}).items()
            if name in required or (depth < _SHALLOW and self.rng.random() < 0.5)
        }

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        least = schema.get("minItems", 0)
        most = schema.get("maxItems", least + 2)
        size = least if depth >= _SHALLOW else self.rng.randint(least, most)
        parts = [*schema.get("prefixItems", ()), *[schema.get("items", {})] * size][:size]
        return [self.make(part, depth + 1) for part in parts]

    def _string(self, schema: Schema, depth: int) -> str:
        text = made_up_text(self.rng.randint(1, 2), self.rng)
        while len(text) < schema.get("minLength", 0):
            text += " " + self.rng.choice(_WORDS)
        return text[: schema.get("maxLength")]

    def _integer(self, schema: Schema, depth: int) -> int:
        low, high = _span(schema)
        return self.rng.randint(math.ceil(low), math.floor(high))

    def _number(self, schema: Schema, depth: int) -> float:
        low, high = _span(schema)
        # Quarters are short as text. Between near bounds there may be none: then their middle.
        value = round(self.rng.uniform(low, high) * 4) / 4
        return value if low < value < high else (low + high) / 2

    def _boolean(self, schema: Schema, depth: int) -> bool:
        return self.rng.random() < 0.5

    def _null(self, schema: Schema, depth: int) -> None:
        return None


def _span(schema: Schema) -> tuple[float, float]:
    """The least and the greatest number; 20 apart where the schema leaves one open."""
    low = schema.get("minimum", schema.get("exclusiveMinimum", -math.inf) + 1)
    high = schema.get("maximum", schema.get("exclusiveMaximum", math.inf) - 1)
    if low == -math.inf:
        low = 0 if high == math.inf else high - 20
    return low, min(high, low + 20)
