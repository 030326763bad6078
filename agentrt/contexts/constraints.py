"""What an output has to obey: a JSON schema, a regular expression, choices, or a grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentrt.contexts.automaton import Automaton, is_automaton
from agentrt.errors import ConfigError
from agentrt.request.sampling import Constraint


def json_schema(schema: Mapping[str, Any] | type) -> Constraint:
    """JSON that fits a schema, or a type that pydantic knows, such as a model."""
    if isinstance(schema, type):
        from pydantic import TypeAdapter

        schema = TypeAdapter(schema).json_schema()
    if not isinstance(schema, Mapping):
        raise ConfigError(f"a JSON schema is an object or a type, not {schema!r}")
    try:
        return Constraint("json", json.dumps(dict(schema)))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the JSON schema is not JSON: {error}") from error


def regex(pattern: str) -> Constraint:
    """Text that a regular expression matches whole."""
    return Constraint("regex", _text("regular expression", pattern))


def choices(*texts: str) -> Constraint:
    """One of these texts."""
    if not texts:
        raise ConfigError("choices() needs at least one text to choose")
    return Constraint("choice", [_text("choice", text) for text in texts])


def ebnf(grammar: str) -> Constraint:
    """Text of a grammar in the engine's EBNF, whose first rule is ``root``, or of one in Lark's."""
    return Constraint("grammar", _text("grammar", grammar))


def check_constrained(constrain: Constraint | Automaton, *, stop: bool, ignore_eos: bool) -> None:
    """Raise `ConfigError` for what is no constraint, or cannot be together with one."""
    if not isinstance(constrain, Constraint) and not is_automaton(constrain):
        raise ConfigError(
            f"constrain= takes json_schema(), regex(), choices(), ebnf() of agentrt.contexts, or "
            f"an automaton with start, allowed and advance, not {constrain!r}"
        )
    given = "stop" if stop else "ignore_eos" if ignore_eos else None
    if given is not None:
        raise ConfigError(f"a constrained text ends where it is whole: leave {given} out")


def _text(what: str, given: object) -> str:
    if not isinstance(given, str) or not given.strip():
        raise ConfigError(f"a {what} is a text that is not empty, not {given!r}")
    return given
