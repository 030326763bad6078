"""What a submitted program may say in a call, whatever the call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentrt.errors import ConfigError, UsageError
from agentrt.serving.frontend.bounds import check_bounds
from agentrt.serving.programs.errors import ApiError

_MOST_SAID = 1 << 20
_NO_LIMIT = 1 << 30
_CHATS = "/v1/chat/completions"


def check_size(value: Any) -> None:
    """Refuse a call that says more than any model takes, without reading it all."""
    left, parts = _MOST_SAID, [value]
    while parts:
        part = parts.pop()
        left -= len(part) if isinstance(part, str | bytes) else 8
        if left < 0:
            raise ConfigError(f"a call of a submitted program may say {_MOST_SAID} bytes at most")
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
