"""What a human may answer: a JSON schema, and how an answer is read, checked and converted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrt.errors import ConfigError, ToolArgumentsError
from agentrt.interrupts.schema import mistake_in, mistake_in_schema

_TEXT: Mapping[str, Any] = {"type": "string"}
_YES_OR_NO = {"yes": True, "y": True, "no": False, "n": False}


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What an answer must be: what fits ``schema``, or with None a text.

    ``convert`` makes of the answer's JSON what the program gets. It raises `ValueError`, as
    pydantic does, for what it cannot take.
    """

    schema: Mapping[str, Any] | None = None
    convert: Callable[[Any], Any] | None = None

    def parse(self, text: str) -> Any:
        """An answer that was typed, as JSON: the text itself if the schema wants a text.

        Where anything fits, numbers are text, and so is what is no JSON. It is not checked yet.
        """
        if self.schema is None:
            return text
        if not self.schema:
            return next((one for one in _json(text) if _is_no_text(one)), text)
        readings: list[Any] = [text, *_json(text), *_yes_or_no(text)]
        fitting = [one for one in readings if mistake_in(one, self.schema) is None]
        return fitting[0] if fitting else readings[min(1, len(readings) - 1)]

    def accept(self, value: Any) -> Any:
        """The answer as the program gets it. Raises `ToolArgumentsError` if it does not fit."""
        wrong = mistake_in(value, _TEXT if self.schema is None else self.schema)
        if wrong is None and self.convert is not None:
            try:
                return self.convert(value)
            except ValueError as error:
                wrong = _in_a_line(error)
        if wrong is not None:
            raise ToolArgumentsError(f"the answer does not fit: {wrong}")
        return value


def answer_form(
    schema: Mapping[str, Any] | type | None = None, choices: Sequence[Any] | None = None
) -> AnswerForm:
    """The form of an answer: by a JSON schema, a type that pydantic knows, or its choices.

    Raises `ConfigError` for what cannot be.
    """
    if choices is not None:
        if schema is not None:
            raise ConfigError("a question has a schema or choices, not both")
        if isinstance(choices, str) or not choices:
            raise ConfigError(f"choices must be a list of at least one, not {choices!r}")
        schema = {"enum": list(choices)}
    if schema is None:
        return AnswerForm()
    if not isinstance(schema, Mapping):
        return _of_type(schema)
    if (wrong := mistake_in_schema(schema)) is not None:
        raise ConfigError(f"a question's schema: {wrong}")
    return AnswerForm(schema)


def free_form(schema: Any) -> AnswerForm:
    """The form by a schema of somebody else's; where that is none, anything fits."""
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
        raise ConfigError(f"a question's schema: {name} has no JSON schema: {error}") from error
    # As JSON, not as Python values: a date is a text there, also for a strict model.
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


def _in_a_line(error: ValueError) -> str:
    """The first mistake that pydantic found; else the error's own words."""
    found = error.errors(include_url=False) if hasattr(error, "errors") else []
    if not found:
        return str(error)[:500]
    where = ".".join(map(str, found[0]["loc"]))
    return f"{where}: {found[0]['msg']}"[:500] if where else str(found[0]["msg"])[:500]
