"""The file of MCP servers behind ``--mcp``, in the form that desktop clients use:
``{"mcpServers": {"NAME": {"command": …} or {"url": …}}}``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentrt.errors import ConfigError
from agentrt.files import read_json

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_HTTP_TYPES = ("http", "streamable-http", "streamable_http", "streamableHttp")
_FORM = '{"mcpServers": {"NAME": {"command": "…"} or {"url": "…"}}}'


@dataclass(frozen=True, slots=True)
class StdioServer:
    """A server that is a command, with ``env`` beside the few variables that it gets anyway."""

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server that is reached by streamable HTTP."""

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)


Server = StdioServer | HttpServer


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
        for name, fields in _entries(path).items():
            if name in found:
                raise ConfigError(f"{path}: server {name!r} is in another --mcp file, too")
            entry = _Entry(path, name, fields, os.environ if env is None else env)
            if (server := entry.server()) is not None:
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


class _Entry:
    """One server's fields, read one by one. Fields of other clients are ignored."""

    def __init__(self, path: Path, name: str, fields: Any, env: Mapping[str, str]) -> None:
        self._where = f"{path}: server {name!r}"
        self._name = name
        self._fields = fields
        self._env = env

    def server(self) -> Server | None:
        """The server; None if it is disabled."""
        if not self._name or not isinstance(self._fields, dict):
            raise ConfigError(f"{self._where}: write {_FORM}")
        if self._fields.get("disabled") is True:
            return None
        kind, has_command = self._fields.get("type"), "command" in self._fields
        if has_command == ("url" in self._fields):
            raise ConfigError(f"{self._where}: give either 'command' or 'url'")
        if kind == "sse":
            raise ConfigError(
                f"{self._where}: type 'sse' is a transport that MCP has given up; if the server "
                "speaks streamable HTTP, give its URL (often …/mcp) and type 'http'"
            )
        fitting = ("stdio",) if has_command else _HTTP_TYPES
        if kind is not None and kind not in fitting:
            has = "command" if has_command else "url"
            raise ConfigError(
                f"{self._where}: type {kind!r} does not go with {has!r}; give {fitting[0]!r}"
            )
        return self._stdio() if has_command else self._http()

    def _stdio(self) -> StdioServer:
        args = self._get("args", [], _is_texts, "a list of texts")
        return StdioServer(
            self._name,
            self._expanded("command", self._get("command", None, _is_text, "a text")),
            tuple(self._expanded(f"args[{at}]", arg) for at, arg in enumerate(args)),
            self._texts("env"),
            self._expanded("cwd", self._get("cwd", "", _is_text_or_empty, "a text")) or None,
        )

    def _http(self) -> HttpServer:
        url = self._expanded("url", self._get("url", None, _is_text, "a text"))
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{self._where}: url must begin with http:// or https://")
        return HttpServer(self._name, url, self._texts("headers"))

    def _texts(self, key: str) -> dict[str, str]:
        given = self._get(key, {}, _is_text_map, "an object of texts")
        return {name: self._expanded(f"{key}.{name}", text) for name, text in given.items()}

    def _get(self, key: str, default: Any, fits: Callable[[Any], bool], wanted: str) -> Any:
        value = self._fields.get(key, default)
        if not fits(value):
            raise ConfigError(f"{self._where}: {key} must be {wanted}")
        return value

    def _expanded(self, key: str, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            name, default = match[1], match[2]
            found = self._env.get(name, default)
            if found is None:
                raise ConfigError(
                    f"{self._where}: {key} needs the environment variable {name}, which is not "
                    f"set; set it, or write ${{{name}:-default}}"
                )
            return found

        return _VARIABLE.sub(value, text)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_text_or_empty(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_text_map(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())
