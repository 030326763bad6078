"""Bounds on the arguments of a submitted program's calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agentrt.contexts import choices, ebnf, json_schema, regex
from agentrt.errors import ConfigError, UsageError
from agentrt.request.sampling import Constraint
from agentrt.serving.error_responses import ApiError
from agentrt.serving.frontend.bounds import check_bounds

_MOST_SAID = 1 << 20
_NO_LIMIT = 1 << 30
_CHATS = "/v1/chat/completions"
_CONSTRAINTS: Mapping[str, Callable[[Any], Constraint]] = {
    "json": json_schema,
    "regex": regex,
    "choice": lambda texts: choices(*texts),
    "grammar": ebnf,
}
_SIMPLE = {
    *("type", "enum", "const", "title", "description", "default", "anyOf"),
    *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength"),
}
_DEEPEST = 16


def check_size(value: Any) -> None:
    """Refuse arguments that are larger than any model takes, without reading all of them."""
    left, parts = _MOST_SAID, [value]
    while parts:
        part = parts.pop()
        left -= len(part) if isinstance(part, str | bytes) else 8
        if left < 0:
            raise ConfigError(
                f"the arguments of a submitted program's call may have {_MOST_SAID} bytes at most"
            )
        if isinstance(part, Mapping):
            parts += part.keys()
            parts += part.values()
        elif isinstance(part, list | tuple):
            parts += part


def check_bounded(request: Mapping[str, Any]) -> None:
    """Hold a chat request to the bounds of one over HTTP, on messages, lists and schemas."""
    try:
        check_bounds(_CHATS, request)
    except ApiError as error:
        raise ConfigError(str(error.detail)) from error


def constraint(given: Any) -> Constraint:
    """What the sandbox's choices(), json_schema(), regex() and ebnf() have said, within the
    bounds of a request.
    """
    kind, value = next(iter(given.items())) if isinstance(given, Mapping) and given else ("", None)
    if kind not in _CONSTRAINTS or len(given) > 1:
        raise ConfigError(
            "constrain= takes choices(), json_schema(), regex() or ebnf() in a submitted program"
        )
    check_bounded({"structured_outputs": {kind: value}})
    return _CONSTRAINTS[kind](value)


def check_simple(schema: Any, depth: int = 0) -> None:
    """Refuse a schema by which checking an answer could take long: one with patterns, or with
    references.
    """
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        raise ConfigError(f"a schema is an object, {_DEEPEST} levels deep at most")
    if depth == 0:
        check_bounded({"structured_outputs": {"json": schema}})
    if unknown := set(schema) - _SIMPLE:
        raise ConfigError(
            f"a question's schema in a submitted program has no {min(unknown)!r}; it may have "
            f"{', '.join(sorted(_SIMPLE))}"
        )
    inner = [schema[name] for name in ("items", "additionalProperties") if name in schema]
    named, kinds = schema.get("properties"), schema.get("anyOf")
    inner += named.values() if isinstance(named, Mapping) else ()
    inner += kinds if isinstance(kinds, list | tuple) else ()
    for one in inner:
        check_simple(one, depth + 1)


def checked(what: str, options: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """The options, all of which are ``known``."""
    names = tuple(known)
    for name in options:
        if name not in names:
            raise UsageError(f"{what}() has no option {name!r}; it has {', '.join(names)}")
    return dict(options)


def token_limit(wanted: Any) -> int:
    """A ``max_tokens``."""
    if wanted is None:
        return _NO_LIMIT
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        raise ConfigError(f"max_tokens must be a whole number above 0, got {wanted!r}")
    return wanted
