"""Limits on one request, in addition to vLLM's own, and the check of ``--strict-requests`` for
unknown fields.

These checks run before vLLM validates the body. A value of the wrong type is left for vLLM to
refuse.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from agentrt.serving.error_responses import ApiError
from agentrt.serving.frontend.conversations import COMPLETIONS, MESSAGES, RESPONSES
from agentrt.serving.programs.hints import FIELDS

MOST_CHOICES = 128
"""Maximum ``n`` of a request, the same as in OpenAI's API."""
MOST_CALLS = 1024
"""Maximum number of choices times prompts of a request."""
_LONGEST_STOP = 1024
_LISTS = {"stop_token_ids": 1024, "logit_bias": 1024, "tools": 1024, "bad_words": 1024}

MOST_MESSAGES = 2048
"""Maximum number of messages of a chat, as in OpenAI's API, or of input items."""
MOST_PARTS = 4 * MOST_MESSAGES
"""Maximum number of objects and lists in all messages together. vLLM validates each of them
against every type that it may have, which is slow.
"""

MOST_NODES = 10_000
"""Maximum number of values in all schemas of a request together, nested values included."""
MOST_REPEATS = 100_000
"""Maximum sum of lengths and repetitions in schemas (``minLength``, ``maxItems``, ``{n,m}`` of a
pattern). ``maxLength`` does not count, because Claude Code has tools with a ``maxLength`` of
500,000.
"""
MOST_LENGTHS = 64
"""Maximum number of different ``maxLength`` values. Each value, large or small, costs the engine
core more than a second and 2 MB.
"""
MOST_ENUM_CHARACTERS = 64 * 1024
"""Maximum number of characters in all ``enum`` texts together. Compiling texts that begin alike
takes quadratic time.
"""
MOST_OPTIONAL = 512
"""Maximum number of optional properties of one object. Compiling them takes quadratic time."""
LONGEST_PATTERN = 4096
_GRAMMAR = 64 * 1024
_REPEATS = ("minLength", "minItems", "maxItems", "minProperties", "maxProperties")
_CHECKED = frozenset([*_REPEATS, "pattern", "maxLength", "enum", "properties"])
_NESTED = frozenset([dict, list])
"""The Python types of JSON objects and lists."""
_QUANTIFIER = re.compile(r"\{(\d{1,9})(?:,(\d{0,9}))?\}")


def calls_of(path: str, body: Mapping[str, Any]) -> int:
    """Return how many calls a request makes: choices times prompts, or times the chats of a batch.

    Raises `ApiError` if the number of choices or of calls exceeds its limit.
    """
    choices, prompts = _count(body.get("n")), 1
    if choices > MOST_CHOICES:
        raise _too_much("n", choices, MOST_CHOICES)
    field, unit = "prompt", "choices times prompts"
    prompt = body.get("prompt")
    if path == COMPLETIONS and isinstance(prompt, list) and not _is_tokens(prompt):
        prompts = len(prompt)
    if path.endswith("/batch") and isinstance(body.get("messages"), list):
        prompts = len(body["messages"])
        field, unit = "messages", "choices times chats"
    if choices * prompts > MOST_CALLS:
        raise _too_much(field, choices * prompts, MOST_CALLS, unit)
    return choices * max(1, prompts)


def check_bounds(path: str, body: Mapping[str, Any], size: float = math.inf) -> None:
    """Raise `ApiError`, with the field's name, for lists, stop strings and schemas beyond the
    limits.

    ``size`` is the size of the body (bytes). The messages of a small body are not counted.
    """
    check_lists(body, size)
    stop = "stop_sequences" if path == MESSAGES else "stop"
    stops = body.get(stop)
    for stop_text in stops if isinstance(stops, list) else [stops]:
        if isinstance(stop_text, str) and len(stop_text) > _LONGEST_STOP:
            raise _too_much(stop, len(stop_text), _LONGEST_STOP, "characters of one string")
    weight = _Weight()
    for field, schema in _schemas(body):
        weight.add(field, schema)
    if "structured_outputs" in body:
        _check_structured(body["structured_outputs"], weight)


def check_lists(body: Mapping[str, Any], size: float) -> None:
    """Raise `ApiError`, with the field's name, for lists and chats with too many entries.

    ``size`` is the size of the body (bytes). The messages of a small body are not counted.
    """
    for name in _LISTS.keys() & body.keys():
        entries, most = body[name], _LISTS[name]
        if isinstance(entries, list | dict) and len(entries) > most:
            raise _too_much(name, len(entries), most, "entries")
    for name in ("messages", "input") if size > MOST_MESSAGES else ():
        _check_messages(name, body.get(name))


def check_length(body: Mapping[str, Any], most: int) -> None:
    """Raise `ApiError` for a prompt of more than ``most`` token ids, before vLLM validates them. A
    prompt that vLLM truncates may have more token ids.
    """
    prompt = body.get("prompt")
    if not isinstance(prompt, list) or len(prompt) <= most or not _is_tokens(prompt):
        return
    if body.get("truncate_prompt_tokens") is None:
        text = f"the maximum context length is {most} tokens, and the prompt has {len(prompt)}"
        raise ApiError(400, text, param="prompt", code="context_length_exceeded")


_LIMITS = {MESSAGES: ("max_tokens",), RESPONSES: ("max_output_tokens",)}
_CHAT_LIMITS = ("max_tokens", "max_completion_tokens")
_LEAST_BUDGET = 1024
"""The smallest thinking budget that Anthropic's API accepts (tokens)."""


def within_window(
    path: str, body: Mapping[str, Any], window: int, *, budgets: bool = True
) -> Mapping[str, Any]:
    """Return the body with its answer limits lowered to the model's ``window`` (tokens).

    Agents ask for the longest answer that their vendor's models give, and vLLM refuses limits that
    exceed the window. vLLM itself lowers the limit further, to the space that the prompt leaves. A
    thinking budget is lowered, too. Without ``budgets``, the engine cannot limit thinking, so the
    budget is removed.
    """
    changed: dict[str, Any] = {}
    for name in _LIMITS.get(path, _CHAT_LIMITS):
        if name in body and _integer(body[name]) > window:
            changed[name] = window
    if path == MESSAGES and "thinking" in body:
        thinking = body["thinking"]
        if isinstance(thinking, dict) and thinking.get("type") == "enabled":
            budget = thinking.get("budget_tokens")
            if not budgets:
                changed["thinking"] = {"type": "adaptive"}
            elif changed and _integer(budget) >= window:
                most = max(_LEAST_BUDGET, window - 1)
                changed["thinking"] = {**thinking, "budget_tokens": most}
    return {**body, **changed} if changed else body


_INTEGER = TypeAdapter(int)
_FLAG = TypeAdapter(bool)
_PLAIN: Mapping[str, TypeAdapter[Any]] = {
    "n": _INTEGER,
    **dict.fromkeys(("stream", "background", "store"), _FLAG),
}


def with_plain_values(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body with ``n`` as an integer and its flags as booleans if vLLM reads their values
    as such. It does so with ``"n": "3"`` and ``"stream": "true"``, for example.

    This server, too, depends on these fields, and must not read other values than vLLM. Values that
    vLLM refuses stay as they are.
    """
    changed: dict[str, Any] = {}
    for name in _PLAIN.keys() & body.keys():
        value, kind = body[name], _PLAIN[name]
        if isinstance(value, str | float) or (value.__class__ is int and kind is _FLAG):
            with contextlib.suppress(ValidationError):
                changed[name] = kind.validate_python(value)
    return {**body, **changed} if changed else body


def _integer(value: Any) -> int:
    """Return a field's value as an integer if vLLM reads the value as an integer, as it does with
    ``3.2e4`` and with numbers in a text. Return 0 for any other value.
    """
    if value.__class__ is int:
        return value  # the usual case, without a further check
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        with contextlib.suppress(ValidationError):
            return _INTEGER.validate_python(value)
    return 0


def _check_messages(field: str, chat: Any) -> None:
    if not isinstance(chat, list) or _is_tokens(chat):
        return
    if len(chat) > MOST_MESSAGES:
        raise _too_much(field, len(chat), MOST_MESSAGES, "entries")
    left: list[Any] = [chat]
    count = 0
    while left:
        value = left.pop()
        count += 1
        inner = value.values() if isinstance(value, dict) else value
        left += [part for part in inner if isinstance(part, dict | list)]
        if count + len(left) > MOST_PARTS:
            raise _too_much(field, count + len(left), MOST_PARTS, "objects and lists")


def _is_tokens(prompt: list[Any]) -> bool:
    return isinstance(prompt[0], int) if prompt else False


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _schemas(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield pairs for the answer formats and the tools of a request: the name of a field, and the
    JSON schema in this field.
    """
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


def _check_structured(field_value: Any, weight: _Weight) -> None:
    """Check vLLM's own field ``structured_outputs``."""
    where = "structured_outputs"
    for name in ("json", "structural_tag", "choice"):
        value = _get(field_value, name)
        if isinstance(value, str):
            if len(value) > _GRAMMAR:
                raise _too_much(f"{where}.{name}", len(value), _GRAMMAR, "characters")
            value = _parsed(value)
        weight.add(f"{where}.{name}", value)
    weight.add(where, {"pattern": _get(field_value, "regex")})
    grammar = _get(field_value, "grammar")
    if isinstance(grammar, str) and len(grammar) > _GRAMMAR:
        raise _too_much(f"{where}.grammar", len(grammar), _GRAMMAR, "characters")


class _Weight:
    """The cost of all schemas of one request together, compared with the limits."""

    def __init__(self) -> None:
        self._nodes = self._repeats = self._enum_characters = 0
        self._lengths: set[int] = set()

    def add(self, field: str, schema: Any) -> None:
        """Count a schema. Raises `ApiError` if the request's schemas exceed a limit."""
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
            left += [value for value in inner if type(value) in _NESTED]

    def _check_object(self, field: str, schema: Mapping[str, Any]) -> None:
        pattern = schema.get("pattern")
        if isinstance(pattern, str):
            if len(pattern) > LONGEST_PATTERN:
                raise _too_much(field, len(pattern), LONGEST_PATTERN, "characters of a pattern")
            self._repeats += sum(int(b or a) for a, b in _QUANTIFIER.findall(pattern))
        self._repeats += sum(_count(schema[name]) for name in _REPEATS if name in schema)
        if self._repeats > MOST_REPEATS:
            unit = "(sum of lengths and repetitions, such as minItems, in the request's schemas)"
            raise _too_much(field, self._repeats, MOST_REPEATS, unit)
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
            raise _too_much(
                field, len(self._lengths), MOST_LENGTHS, "different values of maxLength"
            )
        if isinstance(texts := schema.get("enum"), list):
            self._enum_characters += sum(len(text) for text in texts if isinstance(text, str))
        if self._enum_characters > MOST_ENUM_CHARACTERS:
            raise _too_much(
                field, self._enum_characters, MOST_ENUM_CHARACTERS, "characters in enum texts"
            )


def _parsed(text: str) -> Any:
    """Return the value of a JSON text; None for other text, which vLLM refuses."""
    try:
        return from_json(text)
    except ValueError:
        return None


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _too_much(field: str, count: int, most: int, unit: str = "") -> ApiError:
    text = f"{field}: {count} {unit}".rstrip()
    return ApiError(400, f"{text}; this server takes {most} at most", param=field)


# -- --strict-requests: refuse fields that vLLM does not know and would ignore


_JSON = "application/json"
Schema = Mapping[str, Any]


class KnownFields:
    """The request fields that an application knows, according to its OpenAPI schema."""

    def __init__(self, app: FastAPI) -> None:
        described = app.openapi()
        self._schemas = described.get("components", {}).get("schemas", {})
        self._bodies = {
            path: operations["post"]["requestBody"]["content"][_JSON]["schema"]
            for path, operations in described["paths"].items()
            if _JSON in operations.get("post", {}).get("requestBody", {}).get("content", {})
        }

    def check(self, path: str, body: Mapping[str, Any]) -> None:
        """Raise `ApiError`, with the field's name, for a field that is unknown at ``path``."""
        schema = self._bodies.get(path)
        other = {name: value for name, value in body.items() if name not in FIELDS}
        field = None if schema is None else self._unknown(other, schema)
        if field is not None:
            raise ApiError(
                400,
                f"{field}: unknown field; leave it out (this server runs with --strict-requests)",
                param=field,
                code="unknown_field",
            )

    def _unknown(self, value: Any, schema: Schema, at: str = "") -> str | None:
        """Return None if an alternative of ``schema`` allows all fields of ``value``. Otherwise,
        find for each alternative a field that it does not allow, and return the path of the most
        deeply nested of these fields.
        """
        unknown_fields: list[str] = []
        for alternative in self._readings(schema):
            field = self._unknown_in(value, alternative, at)
            if field is None:
                return None
            unknown_fields.append(field)
        return max(unknown_fields, key=lambda field: field.count("."), default=None)

    def _readings(self, schema: Schema) -> Iterator[Schema]:
        """Yield a schema's alternatives, with references resolved."""
        if "$ref" in schema:
            yield from self._readings(self._schemas.get(schema["$ref"].rpartition("/")[2], {}))
            return
        several = [
            alternative
            for name in ("anyOf", "oneOf", "allOf")
            for alternative in schema.get(name, ())
        ]
        for alternative in several:
            yield from self._readings(alternative)
        if not several:
            yield schema

    def _unknown_in(self, value: Any, schema: Schema, at: str) -> str | None:
        if isinstance(value, dict):
            known = schema.get("properties")
            if known is None:
                return None if schema.get("type", "object") == "object" else at or "body"
            for name, inner_value in value.items():
                here = f"{at}.{name}".lstrip(".")
                if name not in known:
                    return here
                if (field := self._unknown(inner_value, known[name], here)) is not None:
                    return field
        elif isinstance(value, list):
            items = schema.get("items")
            if items is None:
                return None if schema.get("type", "array") == "array" else at
            for index, inner_value in enumerate(value):
                if (field := self._unknown(inner_value, items, f"{at}.{index}")) is not None:
                    return field
        return None
