"""The form of a human's answer: parses an answer, checks it by a JSON schema, and converts it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrt.errors import ConfigError, ToolArgumentsError
from agentrt.interrupts.schema import mistake_in, mistake_in_schema, reason_of

_TEXT: Mapping[str, Any] = {"type": "string"}
_YES_OR_NO = {"yes": True, "y": True, "no": False, "n": False}


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of an answer: a JSON value that obeys ``schema``, or a text if that is None.

    ``convert`` converts the JSON value to the value that the program gets. It raises `ValueError`,
    as pydantic does, for a value that is not valid.
    """

    schema: Mapping[str, Any] | None = None
    convert: Callable[[Any], Any] | None = None

    def parse(self, text: str) -> Any:
        """Convert an answer that was typed to a JSON value, without checking it.

        It is the text itself if the schema allows a text. If the schema allows every value, numbers
        stay text, and so does text that is not valid JSON.
        """
        if self.schema is None:
            return text
        if not self.schema:
            return next((value for value in _json(text) if _is_no_text(value)), text)
        readings: list[Any] = [text, *_json(text), *_yes_or_no(text)]
        fitting = [value for value in readings if mistake_in(value, self.schema) is None]
        return fitting[0] if fitting else readings[min(1, len(readings) - 1)]

    def accept(self, value: Any) -> Any:
        """Return an answer as the program gets it. Raises `ToolArgumentsError` if it is not
        valid.
        """
        wrong = mistake_in(value, _TEXT if self.schema is None else self.schema)
        if wrong is None and self.convert is not None:
            try:
                return self.convert(value)
            except ValueError as error:
                wrong = reason_of(error)
        if wrong is not None:
            raise ToolArgumentsError(f"the answer does not fit: {wrong}")
        return value


def answer_form(
    schema: Mapping[str, Any] | type | None = None, choices: Sequence[Any] | None = None
) -> AnswerForm:
    """Return the form of an answer by a JSON schema, a type that pydantic supports, or its choices.

    Raises `ConfigError` for an invalid schema or empty choices, or if both are given.
    """
    if choices is not None:
        if schema is not None:
            raise ConfigError("a question takes a schema or choices, not both; leave one out")
        if isinstance(choices, str) or not choices:
            raise ConfigError(f"choices must be a list with at least one choice, not {choices!r}")
        schema = {"enum": list(choices)}
    if schema is None:
        return AnswerForm()
    if not isinstance(schema, Mapping):
        return _of_type(schema)
    if (wrong := mistake_in_schema(schema)) is not None:
        raise ConfigError(f"a question's schema: {wrong}")
    return AnswerForm(schema)


def free_form(schema: Any) -> AnswerForm:
    """Return the form by a schema from outside; if it is not a valid schema, allow every value."""
    usable = isinstance(schema, Mapping) and mistake_in_schema(schema) is None
    return AnswerForm(schema if usable else {})


def _of_type(type: Any) -> AnswerForm:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(type)
        schema = adapter.json_schema()
    except PydanticUserError as error:
        name = getattr(type, "__name__", type)
        raise ConfigError(
            f"a question's schema: {name} has no JSON schema; use a pydantic model or "
            f"a JSON schema ({error})"
        ) from error
    # The answer is validated as JSON, because a strict model would refuse a date as text otherwise.
    return AnswerForm(schema, lambda value: adapter.validate_json(json.dumps(value)))


def _json(text: str) -> list[Any]:
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        return []


def _is_no_text(value: Any) -> bool:
    return value is None or isinstance(value, bool | dict | list)


def _yes_or_no(text: str) -> list[bool]:
    word = text.strip().lower()
    return [_YES_OR_NO[word]] if word in _YES_OR_NO else []
