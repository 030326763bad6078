"""The file of MCP servers behind ``--mcp``, in the form that desktop clients use:
``{"mcpServers": {"NAME": {"command": …} or {"url": …}}}``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from agentrt.errors import ConfigError
from agentrt.files import read_json

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_FORM = '{"mcpServers": {"NAME": {"command": "…"} or {"url": "…"}}}'


@dataclass(frozen=True, slots=True)
class StdioServer:
    """A server that is a command, with ``env`` beside the few variables that it gets anyway."""

    name: str
    command: Annotated[str, Field(min_length=1)]
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server that is reached by streamable HTTP."""

    name: str
    url: Annotated[str, Field(pattern="^https?://[^/?#]")]
    headers: Mapping[str, str] = field(default_factory=dict)


Server = StdioServer | HttpServer
_KINDS: Mapping[str, tuple[type[Server], Sequence[str]]] = {
    "command": (StdioServer, ("stdio",)),
    "url": (HttpServer, ("http", "streamable-http", "streamable_http", "streamableHttp")),
}
"""What each of the two fields makes, and the words for ``type`` that go with it."""


def read_servers(paths: Sequence[Path], env: Mapping[str, str] | None = None) -> list[Server]:
    """The servers of these files, without those that say that they are ``disabled``.

    ``${NAME}`` and ``${NAME:-default}`` in their values are variables of ``env`` (by default the
    process'). Raises `ConfigError` for what cannot be, with the server and the field.
    """
    if not paths:
        return []
    if find_spec("mcp") is None:
        raise ConfigError("--mcp needs the package mcp; install agentrt[mcp]")
    found: dict[str, Server] = {}
    for path in paths:
        for name, given in _entries(path).items():
            if name in found:
                raise ConfigError(f"{path}: server {name!r} is in another --mcp file, too")
            where = f"{path}: server {name!r}"
            server = _server(where, name, given, os.environ if env is None else env)
            if server is not None:
                found[name] = server
    return list(found.values())


def _entries(path: Path) -> dict[str, Any]:
    try:
        document = read_json(path)
    except OSError as error:
        raise ConfigError(f"--mcp {path}: cannot read it: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"--mcp {path}: it is no JSON: {error}") from error
    entries = document.get("mcpServers") if isinstance(document, dict) else None
    if not isinstance(entries, dict):
        raise ConfigError(f'--mcp {path}: it has no object "mcpServers"; write {_FORM}')
    return entries


def _server(where: str, name: str, given: Any, env: Mapping[str, str]) -> Server | None:
    """One server; None if it is disabled. Fields of other clients are ignored."""
    if not name or not isinstance(given, dict):
        raise ConfigError(f"{where}: write {_FORM}")
    if given.get("disabled") is True:
        return None
    if ("command" in given) == ("url" in given):
        raise ConfigError(f"{where}: give either 'command' or 'url'")
    has = "url" if "url" in given else "command"
    kind, types = _KINDS[has]
    if given.get("type") == "sse":
        raise ConfigError(
            f"{where}: type 'sse' is a transport that MCP has given up; if the server "
            "speaks streamable HTTP, give its URL (often …/mcp) and type 'http'"
        )
    if given.get("type", types[0]) not in types:
        raise ConfigError(
            f"{where}: type {given['type']!r} does not go with {has!r}; give {types[0]!r}"
        )
    names = [one.name for one in fields(kind) if one.name in given]
    try:
        known = {key: _expanded(key, given[key], env) for key in names}
        return TypeAdapter[Server](kind).validate_python({**known, "name": name})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{where}: {field}: {first['msg']}") from None
    except LookupError as error:
        raise ConfigError(f"{where}: {error.args[0]}") from None


def _expanded(field: str, given: Any, env: Mapping[str, str]) -> Any:
    """A value with the variables in its texts. Raises `LookupError` for one that is not set."""
    if isinstance(given, dict):
        return {key: _expanded(f"{field}.{key}", one, env) for key, one in given.items()}
    if isinstance(given, list):
        return [_expanded(f"{field}[{at}]", one, env) for at, one in enumerate(given)]

    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        found = env.get(name, default)
        if found is None:
            raise LookupError(
                f"{field} needs the environment variable {name}, which is not set; set it, or "
                f"write ${{{name}:-default}}"
            )
        return found

    return _VARIABLE.sub(value, given) if isinstance(given, str) else given
