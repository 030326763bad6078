"""The form of a human's answer, by which an answer is parsed, checked with a JSON schema, and
converted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrt.errors import ConfigError, ToolArgumentsError
from agentrt.files import parse_json
from agentrt.interrupts.schema import mistake_in, mistake_in_schema, reason_of

_TEXT: Mapping[str, Any] = {"type": "string"}
_YES_OR_NO = {"yes": True, "y": True, "no": False, "n": False}


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of an answer: a JSON value that obeys ``schema``, or a text if ``schema`` is None.

    ``convert`` converts the JSON value to the value that the program gets. ``convert`` raises
    `ValueError`, as pydantic does, for a value that is not valid.
    """

    schema: Mapping[str, Any] | None = None
    convert: Callable[[Any], Any] | None = None

    def parse(self, text: str) -> Any:
        """Convert a typed answer to a JSON value that fits the schema. If no value fits, return a
        value that `accept` will reject.

        If the schema allows a text, the result is the typed text. With the empty schema ``{}``,
        JSON objects, lists, true, false and null are converted, and all other answers stay text.
        """
        if self.schema is None:
            return text
        if not self.schema:
            return next((value for value in _json(text) if _is_no_text(value)), text)
        readings: list[Any] = [text, *_json(text), *_yes_or_no(text)]
        fitting = [value for value in readings if mistake_in(value, self.schema) is None]
        return fitting[0] if fitting else readings[min(1, len(readings) - 1)]

    def accept(self, value: Any) -> Any:
        """Check an answer, and return it in the form that the program gets. Raises
        `ToolArgumentsError` if the answer is not valid.
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
    """Return the form of an answer, from a JSON schema, a type that pydantic supports, or a list of
    choices. With neither, the answer is a text.

    Raises `ConfigError` for an invalid schema, for ``choices`` that are empty or a text, and if
    ``schema`` and ``choices`` are both passed.
    """
    if choices is not None:
        if schema is not None:
            raise ConfigError("a question takes a schema or choices, not both; leave one out")
        raw_choices: Any = choices
        if isinstance(raw_choices, str) or not isinstance(raw_choices, Iterable) or not raw_choices:
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
    """Return the form of an answer from a schema that may be invalid. An invalid schema gives a
    form that allows every value.
    """
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
    # Validate the answer as JSON text, because a strict pydantic model refuses a date that is a
    # Python string.
    return AnswerForm(schema, lambda value: adapter.validate_json(json.dumps(value)))


def _json(text: str) -> list[Any]:
    try:
        return [parse_json(text)]
    except ValueError:
        return []


def _is_no_text(value: Any) -> bool:
    return value is None or isinstance(value, bool | dict | list)


def _yes_or_no(text: str) -> list[bool]:
    word = text.strip().lower()
    return [_YES_OR_NO[word]] if word in _YES_OR_NO else []
