"""Decides which web pages may call the server, and by which host names the server may be called.

A browser lets the pages of any site send requests to this machine. A server without keys cannot
otherwise tell the requests of such a page from the user's own requests. So the server refuses
requests with a foreign host name (DNS rebinding), and requests from pages of a foreign origin. On a
server with keys, a page needs a key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from agentrt.errors import ConfigError
from agentrt.serving.settings import SettingsSection, read_section

LOOPBACK = "127.0.0.1"
_LOOPBACK_ORIGIN = r"https?://(localhost|[\w.-]+\.localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")
_HOST = re.compile(r"(\*\.)?[\w-]+(\.[\w-]+)*\.?|\[?[0-9a-fA-F.]*(:[0-9a-fA-F.]*){2,}\]?")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_MOST_REMEMBERED = 1024
_DEFAULTS: Mapping[str, Any] = {
    "allow_methods": ["*"],
    "allow_headers": ["*"],
    "expose_headers": [
        "Content-Location", "Location", "Mcp-Session-Id", "Request-Id", "Retry-After",
        "X-Agentrt-Left-Out", "X-Agentrt-Max-Tokens", "X-Agentrt-Run", "X-Pagination-Next",
        "X-Pagination-Total", "X-Request-Id",
    ],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Origins:
    """The configured host names and origins.

    ``listens`` is the address at which the server listens. ``hosts`` are further host names by
    which it may be called; ``*.NAME`` stands for all subdomains of NAME, and ``*`` for any name.
    ``origins`` are the origins whose pages may call the server and read its answers, and ``cors``
    are the options of ``http.cors`` in a langgraph.json.
    """

    listens: str = LOOPBACK
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    cors: Mapping[str, Any] = field(default_factory=dict)


class OriginCheck:
    """The check of each request's host and origin.

    Pages of the configured ``origins`` may read answers. On a server without keys, pages of this
    machine may read answers, too.
    """

    def __init__(self, origins: Origins, *, has_keys: bool) -> None:
        self._origins = origins
        self._has_keys = has_keys
        self._checks_host = bool(origins.hosts) or not has_keys
        self._names_us = lru_cache(_MOST_REMEMBERED)(partial(_names, origins))
        self._rules = self.around(_nowhere)

    def around(self, app: ASGIApp) -> CORSMiddleware:
        """Return ``app`` wrapped so that its answers have CORS headers."""
        cors = self._origins.cors
        patterns = [cors.get("allow_origin_regex")]
        if not self._has_keys:
            patterns.append(_LOOPBACK_ORIGIN)
        options = {
            **_DEFAULTS,
            **cors,
            "allow_origins": [*cors.get("allow_origins", ()), *self._origins.origins],
            "allow_origin_regex": "|".join(f"(?:{pattern})" for pattern in patterns if pattern)
            or None,
        }
        return CORSMiddleware(app, **options, allow_private_network=True)

    def refusal(self, headers: Mapping[bytes, bytes], *, is_socket: bool = False) -> str | None:
        """Return why a request is refused, or None if it may pass.

        The origin of a WebSocket is checked on servers with keys, too, because a browser sends
        cookies with the handshake, and lets any page read the messages.
        """
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._checks_host and not self._names_us(host):
            return (
                f"unknown host name {host[:100]!r}; if this server may be called by this name, "
                "start it with --allowed-hosts NAME"
            )
        if (self._has_keys and not is_socket) or self._rules.allow_all_origins:
            return None
        origin = headers.get(b"origin", b"").decode("latin-1")
        if not origin and headers.get(b"sec-fetch-site") != b"cross-site":
            return None
        if origin and (_is_of(origin, host) or self._rules.is_allowed_origin(origin)):
            return None
        action = "open a WebSocket here" if self._has_keys else "call a server without keys"
        return (
            f"a page of another site ({origin[:100] or 'unnamed'}) may not {action}; to allow "
            "this, start the server with --cors-origin ORIGIN"
        )


def _names(origins: Origins, host: str) -> bool:
    """Return whether the server may be called by the name or address ``host``, which may have a
    port.
    """
    name = _name(host)
    if not host:  # browsers always send a host
        return True
    if name in (origins.listens.lower(), "localhost") or name.endswith(".localhost"):
        return True
    for allowed in map(str.lower, origins.hosts):
        if allowed in ("*", name) or (allowed.startswith("*.") and name.endswith(allowed[1:])):
            return True
    try:
        # DNS rebinding needs a name that resolves to this server, so an address is safe.
        return ip_address(name).is_loopback or not _is_loopback(origins.listens)
    except ValueError:
        return False


def _is_of(origin: str, host: str) -> bool:
    """Return whether a page of ``origin`` comes from this server itself."""
    scheme, _, netloc = origin.lower().partition("://")
    port = _DEFAULT_PORTS.get(scheme, "")
    return netloc.removesuffix(port) == host.removesuffix(port) != ""


async def _nowhere(*asgi: Any) -> None:
    """An application that is never called."""


def _is_loopback(listens: str) -> bool:
    try:
        return ip_address(listens).is_loopback
    except ValueError:
        return listens == "localhost"


def _name(host: str) -> str:
    """Return a host without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() and ":" not in name else host).rstrip(".")


# -- options and configuration files -------------------------------------------------------


def read_origins(values: Sequence[str]) -> tuple[str, ...]:
    """Return the origins of ``--cors-origin``. Raises `ConfigError` for an invalid origin."""
    for origin in values:
        if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"--cors-origin {origin!r}: invalid origin; use a scheme, a host and optionally a "
                "port, such as https://chat.example.com (without a path), or * for all origins"
            )
    return tuple(values)


def read_hosts(values: Sequence[str]) -> tuple[str, ...]:
    """Return the names of ``--allowed-hosts``. Raises `ConfigError` for an invalid name."""
    for host in values:
        if host != "*" and not _HOST.fullmatch(host):
            raise ConfigError(
                f"--allowed-hosts {host!r}: invalid host name; use a name without scheme and port, "
                "such as agents.example.com or *.example.com, or * for any name"
            )
    return tuple(host.strip("[]").rstrip(".") for host in values)


def read_cors(projects: Sequence[Path]) -> Mapping[str, Any]:
    """Return ``http.cors`` of the langgraph.json files.

    Raises `ProgramLoadError` for invalid values, and `ConfigError` if several files have it.
    """
    section = read_section(projects, "http.cors", _Cors)
    return {} if section is None else section[1].model_dump(exclude_unset=True)


def _check_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"invalid regular expression: {error}") from error
    return text


class _Cors(SettingsSection):
    allow_origins: list[str] = Field(default_factory=list)
    allow_methods: list[str] = Field(default_factory=list)
    allow_headers: list[str] = Field(default_factory=list)
    expose_headers: list[str] = Field(default_factory=list)
    allow_credentials: bool = False
    allow_origin_regex: Annotated[str, AfterValidator(_check_pattern)] = ""
    max_age: int = 600
