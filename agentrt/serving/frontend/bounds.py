"""Limits on what one request may ask for, in addition to vLLM's own, and which fields it may have.

Bodies are not validated yet. A value of the wrong type is left for vLLM to refuse.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from pydantic_core import from_json

from agentrt.serving.error_responses import ApiError
from agentrt.serving.frontend.conversations import COMPLETIONS, MESSAGES, RESPONSES
from agentrt.serving.programs.hints import FIELDS

MOST_CHOICES = 128
"""``n`` of a request: what OpenAI's API takes."""
MOST_CALLS = 1024
"""Choices times prompts."""
_LONGEST_STOP = 1024
_LISTS = {"stop_token_ids": 1024, "logit_bias": 1024, "tools": 1024, "bad_words": 1024}

MOST_MESSAGES = 2048
"""Messages of a chat, items of a response: what OpenAI's API takes of the first."""
MOST_PARTS = 4 * MOST_MESSAGES
"""Objects and lists in all of them. vLLM checks each with every kind that it may be."""

MOST_NODES = 10_000
"""Values in all schemas of a request, nested ones included."""
MOST_REPEATS = 100_000
"""The sum of lengths and repetitions (``minLength``, ``maxItems``, ``{n,m}`` of a pattern).
``maxLength`` does not count: Claude Code has tools with half a million.
"""
MOST_LENGTHS = 64
"""Different values of ``maxLength``. Each takes the engine core more than a second and 2 MB,
whatever its value.
"""
MOST_ENUM_CHARACTERS = 64 * 1024
"""In the texts of all ``enum``. Compiling texts with a common beginning takes quadratic time."""
MOST_OPTIONAL = 512
"""Optional properties of one object: compiling them takes quadratic time."""
LONGEST_PATTERN = 4096
_GRAMMAR = 64 * 1024
_REPEATS = ("minLength", "minItems", "maxItems", "minProperties", "maxProperties")
_CHECKED = frozenset([*_REPEATS, "pattern", "maxLength", "enum", "properties"])
_NESTED = frozenset([dict, list])
"""What a parser of JSON makes of objects and lists."""
_QUANTIFIER = re.compile(r"\{(\d{1,9})(?:,(\d{0,9}))?\}")


def calls_of(path: str, body: Mapping[str, Any]) -> int:
    """How many calls a request makes. Raises `ApiError` for too many."""
    choices, prompts = _count(body.get("n")), 1
    if choices > MOST_CHOICES:
        raise _too_much("n", choices, MOST_CHOICES)
    prompt = body.get("prompt")
    if path == COMPLETIONS and isinstance(prompt, list) and not _is_tokens(prompt):
        prompts = len(prompt)
    if path.endswith("/batch") and isinstance(body.get("messages"), list):
        prompts = len(body["messages"])
    if choices * prompts > MOST_CALLS:
        raise _too_much("prompt", choices * prompts, MOST_CALLS, "choices times prompts")
    return choices * max(1, prompts)


def check_bounds(path: str, body: Mapping[str, Any], size: float = math.inf) -> None:
    """Raise `ApiError` for lists, schemas and patterns beyond the limits; it names the field.

    ``size`` is that of the body (bytes): a short one has not many messages.
    """
    check_lists(body, size)
    stop = "stop_sequences" if path == MESSAGES else "stop"
    given = body.get(stop)
    for one in given if isinstance(given, list) else [given]:
        if isinstance(one, str) and len(one) > _LONGEST_STOP:
            raise _too_much(stop, len(one), _LONGEST_STOP, "characters of one string")
    weight = _Weight()
    for field, schema in _schemas(body):
        weight.add(field, schema)
    if "structured_outputs" in body:
        _check_structured(body["structured_outputs"], weight)


def check_lists(body: Mapping[str, Any], size: float) -> None:
    """Raise `ApiError` for too many items, messages or tools, before each is read. ``size`` is that
    of the body (bytes).
    """
    for name in _LISTS.keys() & body.keys():
        given, most = body[name], _LISTS[name]
        if isinstance(given, list | dict) and len(given) > most:
            raise _too_much(name, len(given), most, "entries")
    for name in ("messages", "input") if size > MOST_MESSAGES else ():
        _check_messages(name, body.get(name))


def check_length(body: Mapping[str, Any], most: int) -> None:
    """Raise `ApiError` for a prompt of more than ``most`` token ids, before vLLM looks at each."""
    prompt = body.get("prompt")
    if not isinstance(prompt, list) or len(prompt) <= most or not _is_tokens(prompt):
        return
    if body.get("truncate_prompt_tokens") is None:
        text = f"the maximum context length is {most} tokens, and the prompt has {len(prompt)}"
        raise ApiError(400, text, param="prompt", code="context_length_exceeded")


_LIMITS = {MESSAGES: ("max_tokens",), RESPONSES: ("max_output_tokens",)}
_CHAT_LIMITS = ("max_tokens", "max_completion_tokens")
_LEAST_BUDGET = 1024
"""What Anthropic's API takes at least for a budget of thinking (tokens)."""


def within_window(
    path: str, body: Mapping[str, Any], window: int, *, budgets: bool = True
) -> Mapping[str, Any]:
    """The body with limits of the answer that are not beyond the model's ``window`` (tokens), where
    vLLM would refuse the request.

    Agents ask for as much as their vendor's models give. vLLM cuts the limit down further, to what
    the prompt leaves. A budget for thinking is cut, too, and left out where the engine has no
    ``budgets``: the model thinks for as long as it wants.
    """
    changed: dict[str, Any] = {}
    for name in _LIMITS.get(path, _CHAT_LIMITS):
        if name in body and body[name].__class__ is int and body[name] > window:
            changed[name] = window
    if path == MESSAGES and "thinking" in body:
        thinking = body["thinking"]
        if isinstance(thinking, dict) and thinking.get("type") == "enabled":
            budget = thinking.get("budget_tokens")
            if not budgets:
                changed["thinking"] = {"type": "adaptive"}
            elif changed and type(budget) is int and budget >= window:
                most = max(_LEAST_BUDGET, window - 1)
                changed["thinking"] = {**thinking, "budget_tokens": most}
    return {**body, **changed} if changed else body


def _check_messages(field: str, given: Any) -> None:
    if not isinstance(given, list) or _is_tokens(given):
        return
    if len(given) > MOST_MESSAGES:
        raise _too_much(field, len(given), MOST_MESSAGES, "entries")
    left: list[Any] = [given]
    count = 0
    while left:
        value = left.pop()
        count += 1
        inner = value.values() if isinstance(value, dict) else value
        left += [one for one in inner if isinstance(one, dict | list)]
        if count + len(left) > MOST_PARTS:
            raise _too_much(field, count + len(left), MOST_PARTS, "objects and lists")


def _is_tokens(prompt: list[Any]) -> bool:
    return isinstance(prompt[0], int) if prompt else False


def _count(given: Any) -> int:
    return given if isinstance(given, int) and given > 0 else 1


def _schemas(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Where the APIs have schemas: formats of answers, and tools."""
    if "response_format" in body:
        yield "response_format", body["response_format"]
    for name in ("text", "output_config"):
        if name in body:
            yield f"{name}.format", _get(body[name], "format")
    tools = body.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        for name in ("function", "parameters", "input_schema"):
            if isinstance(tool, dict) and name in tool:
                yield f"tools.{index}.{name}", tool[name]


def _check_structured(given: Any, weight: _Weight) -> None:
    """vLLM's own field for what an output is held to."""
    where = "structured_outputs"
    for name in ("json", "structural_tag", "choice"):
        value = _get(given, name)
        if isinstance(value, str):
            if len(value) > _GRAMMAR:
                raise _too_much(f"{where}.{name}", len(value), _GRAMMAR, "characters")
            value = _parsed(value)
        weight.add(f"{where}.{name}", value)
    weight.add(where, {"pattern": _get(given, "regex")})
    grammar = _get(given, "grammar")
    if isinstance(grammar, str) and len(grammar) > _GRAMMAR:
        raise _too_much(f"{where}.grammar", len(grammar), _GRAMMAR, "characters")


class _Weight:
    """What all schemas of a request come to."""

    def __init__(self) -> None:
        self._nodes = self._repeats = self._enum_characters = 0
        self._lengths: set[int] = set()

    def add(self, field: str, schema: Any) -> None:
        """Count another. Raises `ApiError` when it is too much."""
        left: list[Any] = [[schema]]
        while left:
            inner = left.pop()
            if type(inner) is dict:
                if not _CHECKED.isdisjoint(inner):
                    self._check_object(field, inner)
                inner = inner.values()
            self._nodes += len(inner)
            if self._nodes > MOST_NODES:
                raise _too_much(field, self._nodes, MOST_NODES, "values in schemas")
            left += [one for one in inner if type(one) in _NESTED]

    def _check_object(self, field: str, schema: Mapping[str, Any]) -> None:
        pattern = schema.get("pattern")
        if isinstance(pattern, str):
            if len(pattern) > LONGEST_PATTERN:
                raise _too_much(field, len(pattern), LONGEST_PATTERN, "characters of a pattern")
            self._repeats += sum(int(b or a) for a, b in _QUANTIFIER.findall(pattern))
        self._repeats += sum(_count(schema[name]) for name in _REPEATS if name in schema)
        if self._repeats > MOST_REPEATS:
            raise _too_much(field, self._repeats, MOST_REPEATS, "lengths and repetitions in sum")
        self._check_texts(field, schema)
        properties, required = schema.get("properties"), schema.get("required")
        if isinstance(properties, dict):
            needed = len(required) if isinstance(required, list) else 0
            if len(properties) - needed > MOST_OPTIONAL:
                raise _too_much(
                    field, len(properties) - needed, MOST_OPTIONAL, "optional properties"
                )

    def _check_texts(self, field: str, schema: Mapping[str, Any]) -> None:
        if isinstance(longest := schema.get("maxLength"), int):
            self._lengths.add(longest)
        if len(self._lengths) > MOST_LENGTHS:
            raise _too_much(field, len(self._lengths), MOST_LENGTHS, "different maxLength")
        if isinstance(texts := schema.get("enum"), list):
            self._enum_characters += sum(len(one) for one in texts if isinstance(one, str))
        if self._enum_characters > MOST_ENUM_CHARACTERS:
            raise _too_much(
                field, self._enum_characters, MOST_ENUM_CHARACTERS, "characters of enum"
            )


def _parsed(text: str) -> Any:
    """JSON in a text; None where it is none, which vLLM refuses."""
    try:
        return from_json(text)
    except ValueError:
        return None


def _get(given: Any, name: str) -> Any:
    return given.get(name) if isinstance(given, dict) else None


def _too_much(field: str, count: int, most: int, what: str = "") -> ApiError:
    text = f"{field}: {count} {what}".rstrip()
    return ApiError(400, f"{text}; this server takes {most} at most", param=field)


# -- --strict-requests: fields that vLLM does not know are refused, where it would ignore them


_JSON = "application/json"
Schema = Mapping[str, Any]


class KnownFields:
    """The fields of the bodies that an application takes, as its own OpenAPI schema has them."""

    def __init__(self, app: FastAPI) -> None:
        described = app.openapi()
        self._schemas = described.get("components", {}).get("schemas", {})
        self._bodies = {
            path: operations["post"]["requestBody"]["content"][_JSON]["schema"]
            for path, operations in described["paths"].items()
            if _JSON in operations.get("post", {}).get("requestBody", {}).get("content", {})
        }

    def check(self, path: str, body: Mapping[str, Any]) -> None:
        """Raise `ApiError` for a field that is not known; it is named."""
        schema = self._bodies.get(path)
        other = {name: value for name, value in body.items() if name not in FIELDS}
        field = None if schema is None else self._unknown(other, schema)
        if field is not None:
            raise ApiError(
                400,
                f"{field}: no such field; leave it out (this server has --strict-requests)",
                param=field,
                code="unknown_field",
            )

    def _unknown(self, value: Any, schema: Schema, at: str = "") -> str | None:
        """The first field in ``value`` that no reading of the schema knows."""
        found: list[str] = []
        for one in self._readings(schema):
            field = self._unknown_in(value, one, at)
            if field is None:
                return None
            found.append(field)
        return max(found, key=lambda field: field.count("."), default=None)

    def _readings(self, schema: Schema) -> Iterator[Schema]:
        """A schema's alternatives, without references."""
        if "$ref" in schema:
            yield from self._readings(self._schemas.get(schema["$ref"].rpartition("/")[2], {}))
            return
        several = [one for name in ("anyOf", "oneOf", "allOf") for one in schema.get(name, ())]
        for one in several:
            yield from self._readings(one)
        if not several:
            yield schema

    def _unknown_in(self, value: Any, schema: Schema, at: str) -> str | None:
        if isinstance(value, dict):
            known = schema.get("properties")
            if known is None:
                return None if schema.get("type", "object") == "object" else at or "body"
            for name, one in value.items():
                here = f"{at}.{name}".lstrip(".")
                if name not in known:
                    return here
                if (field := self._unknown(one, known[name], here)) is not None:
                    return field
        elif isinstance(value, list):
            items = schema.get("items")
            if items is None:
                return None if schema.get("type", "array") == "array" else at
            for index, one in enumerate(value):
                if (field := self._unknown(one, items, f"{at}.{index}")) is not None:
                    return field
        return None
