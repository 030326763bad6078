"""Reading the file of MCP servers of ``--mcp``, in the format of desktop clients:
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

from agentrt.errors import ConfigError, header_fault
from agentrt.extras import install_command
from agentrt.files import read_json

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_FORM = '{"mcpServers": {"NAME": {"command": "…"} or {"url": "…"}}}'


@dataclass(frozen=True, slots=True)
class StdioServer:
    """An MCP server that is a command. ``env`` is added to the few variables that the command
    always gets.
    """

    name: str
    command: Annotated[str, Field(min_length=1)]
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class HttpServer:
    """An MCP server that is reached by streamable HTTP."""

    name: str
    url: Annotated[str, Field(pattern="^https?://[^/?#]")]
    headers: Mapping[str, str] = field(default_factory=dict)


Server = StdioServer | HttpServer
_KINDS: Mapping[str, tuple[type[Server], Sequence[str]]] = {
    "command": (StdioServer, ("stdio",)),
    "url": (HttpServer, ("http", "streamable-http", "streamable_http", "streamableHttp")),
}
"""For each field that names the server: its server class, and the values of ``type`` that may stand
beside the field.
"""


def read_servers(paths: Sequence[Path], env: Mapping[str, str] | None = None) -> list[Server]:
    """Read the servers of these files, without those that are ``disabled``.

    ``${NAME}`` and ``${NAME:-default}`` in values stand for variables of ``env``, by default the
    process's environment. Raises `ConfigError` for an invalid file; the message names the server
    and the field. Also raises it if there are files, but the package ``mcp`` is not installed.
    """
    if not paths:
        return []
    if find_spec("mcp") is None:
        raise ConfigError(f"--mcp needs the package mcp; run: {install_command('mcp')}")
    servers: dict[str, Server] = {}
    for path in paths:
        for name, entry in _entries(path).items():
            if name in servers:
                raise ConfigError(
                    f"{path}: server {name!r} is also in another --mcp file; rename one of them"
                )
            where = f"{path}: server {name!r}"
            server = _server(where, name, entry, os.environ if env is None else env)
            if server is not None:
                servers[name] = server
    return list(servers.values())


def _entries(path: Path) -> dict[str, Any]:
    try:
        document = read_json(path)
    except OSError as error:
        raise ConfigError(f"--mcp {path}: cannot read the file: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"--mcp {path}: the file is not JSON: {error}") from error
    entries = document.get("mcpServers") if isinstance(document, dict) else None
    if not isinstance(entries, dict):
        raise ConfigError(f'--mcp {path}: the file has no object "mcpServers"; write {_FORM}')
    return entries


def _server(where: str, name: str, entry: Any, env: Mapping[str, str]) -> Server | None:
    """Read a server; None if it is disabled. Fields for other clients are ignored."""
    if not name or not isinstance(entry, dict):
        raise ConfigError(f"{where}: the server must be an object with a name; write {_FORM}")
    if entry.get("disabled") is True:
        return None
    if ("command" in entry) == ("url" in entry):
        raise ConfigError(f"{where}: set either 'command' or 'url', and not both")
    has = "url" if "url" in entry else "command"
    kind, types = _KINDS[has]
    if entry.get("type") == "sse":
        raise ConfigError(
            f"{where}: type 'sse' is not supported, because MCP has dropped this transport; if the "
            "server supports streamable HTTP, set its URL (often …/mcp) and type 'http'"
        )
    if entry.get("type", types[0]) not in types:
        raise ConfigError(
            f"{where}: type {entry['type']!r} does not match {has!r}; set {types[0]!r}"
        )
    names = [each.name for each in fields(kind) if each.name in entry]
    try:
        known = {key: _expanded(key, entry[key], env) for key in names}
        server = TypeAdapter[Server](kind).validate_python({**known, "name": name})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{where}: {field}: {first['msg']}") from None
    except LookupError as error:
        raise ConfigError(f"{where}: {error.args[0]}") from None
    for header, value in server.headers.items() if isinstance(server, HttpServer) else ():
        if (fault := header_fault(header, value)) is not None:
            raise ConfigError(f"{where}: headers.{header}: {fault}")
    return server


def _expanded(field: str, raw_value: Any, env: Mapping[str, str]) -> Any:
    """Replace the variables in the texts of a value. Raises `LookupError` for a variable that is
    not set.
    """
    if isinstance(raw_value, dict):
        return {key: _expanded(f"{field}.{key}", item, env) for key, item in raw_value.items()}
    if isinstance(raw_value, list):
        return [_expanded(f"{field}[{at}]", item, env) for at, item in enumerate(raw_value)]

    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        text = env.get(name, default)
        if text is None:
            raise LookupError(
                f"{field} needs the environment variable {name}, which is not set; set it, or "
                f"write ${{{name}:-default}}"
            )
        return text

    return _VARIABLE.sub(value, raw_value) if isinstance(raw_value, str) else raw_value
