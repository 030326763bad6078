"""Constraints of an output: a JSON schema, a regular expression, choices, or a grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_origin

from agentrt.contexts.automaton import Automaton, is_automaton
from agentrt.errors import ConfigError
from agentrt.request.sampling import Constraint


def json_schema(schema: Mapping[str, Any] | type) -> Constraint:
    """Return a constraint for JSON that obeys a schema, or a type such as a pydantic model or
    ``list[int]``.

    Raises `ConfigError` for a value that is neither a mapping nor a type, for a type that has no
    JSON schema, and for a schema that cannot be written as JSON.
    """
    if isinstance(schema, type) or get_origin(schema) is not None:
        schema = schema_of_type(schema)
    if not isinstance(schema, Mapping):
        raise ConfigError(f"a JSON schema must be a mapping or a type, not {schema!r}")
    try:
        return Constraint("json", json.dumps(dict(schema)))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the JSON schema contains a value that cannot be written as JSON: {error}"
        ) from error


def schema_of_type(type: Any) -> dict[str, Any]:
    """Return the JSON schema of a type that pydantic supports. Raises `ConfigError` for any other
    value.
    """
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        schema: dict[str, Any] = TypeAdapter(type).json_schema()
        return schema
    except PydanticUserError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"schema: {type!r} has no JSON schema; use a pydantic model, or a JSON schema as a "
            f"mapping ({reason})"
        ) from error


def regex(pattern: str) -> Constraint:
    """Return a constraint for text that a regular expression matches from beginning to end."""
    return Constraint("regex", _text("regular expression", pattern))


def choices(*texts: str) -> Constraint:
    """Return a constraint for an output that is one of ``texts``."""
    if not texts:
        raise ConfigError("choices() needs at least one text")
    return Constraint("choice", [_text("choice", text) for text in texts])


def ebnf(grammar: str) -> Constraint:
    """Return a constraint for text that follows ``grammar``, which is written in the engine's EBNF
    or in Lark's notation.

    In the engine's EBNF, the rule for the whole output must be called ``root``.
    """
    return Constraint("grammar", _text("grammar", grammar))


def check_constrained(
    constrain: Constraint | Automaton, *, stop: bool, ignore_eos: bool, allowed: bool = False
) -> None:
    """Raise `ConfigError` for a value that is not a constraint, and for options that cannot be
    combined with a constraint.
    """
    if not isinstance(constrain, Constraint) and not is_automaton(constrain):
        raise ConfigError(
            f"constrain= takes json_schema(), regex(), choices() or ebnf() of agentrt.contexts, or "
            f"an automaton with start, allowed and advance, not {constrain!r}"
        )
    option = "stop or stop_token_ids" if stop else "ignore_eos" if ignore_eos else None
    if option is not None:
        raise ConfigError(
            f"constrain= cannot be combined with {option}, since constrained text ends when it is "
            f"complete; leave {option} out"
        )
    if allowed and not isinstance(constrain, Constraint):
        raise ConfigError(
            "constrain= with an automaton cannot be combined with allowed, since the automaton "
            "decides which tokens are allowed; leave allowed out, and let the automaton allow only "
            "these tokens"
        )


def _text(kind: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"a {kind} must be a text that is not empty, not {value!r}")
    return value
