"""Which web pages may call the server, and by which names it may be called.

A browser shows pages of strangers, and lets each send requests to this machine. Without keys
nothing else distinguishes such a page from the user. So requests that name a foreign host (DNS
rebinding), or come from a page of a foreign origin, are refused. With keys a page needs one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from agentrt.errors import ConfigError
from agentrt.serving.settings import Settings, read_section

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
        "Content-Location", "Location", "Mcp-Session-Id", "Retry-After", "X-Pagination-Next",
        "X-Pagination-Total", "X-Request-Id",
    ],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Origins:
    """What was asked for. ``listens`` is the address that the server listens at. ``hosts`` are the
    names that it may be called by beside that; ``*.NAME`` stands for all names that end so, ``*``
    for any. ``origins`` are those whose pages may call it and read its answers, and ``cors`` more
    options for that, as ``http.cors`` of a langgraph.json has them.
    """

    listens: str = LOOPBACK
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    cors: Mapping[str, Any] = field(default_factory=dict)


class OriginCheck:
    """Refuses pages of strangers. Those of ``asked``, and without keys those of this machine, may
    read answers.
    """

    def __init__(self, asked: Origins, *, has_keys: bool) -> None:
        self._asked = asked
        self._has_keys = has_keys
        self._checks_host = bool(asked.hosts) or not has_keys
        self._names_us = lru_cache(_MOST_REMEMBERED)(partial(_names, asked))
        self._rules = self.around(_nowhere)

    def around(self, app: ASGIApp) -> CORSMiddleware:
        """``app``, whose answers say whose pages may read them."""
        given = self._asked.cors
        patterns = [given.get("allow_origin_regex")]
        if not self._has_keys:
            patterns.append(_LOOPBACK_ORIGIN)
        options = {
            **_DEFAULTS,
            **given,
            "allow_origins": [*given.get("allow_origins", ()), *self._asked.origins],
            "allow_origin_regex": "|".join(f"(?:{one})" for one in patterns if one) or None,
        }
        return CORSMiddleware(app, **options, allow_private_network=True)

    def refusal(self, headers: Mapping[bytes, bytes], *, is_socket: bool = False) -> str | None:
        """Why a request may not pass, or None if it may. A page's WebSocket is checked with keys,
        too: a browser sends cookies with it, and lets any page read what it gets.
        """
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._checks_host and not self._names_us(host):
            return (
                f"host {host[:100]!r}: this server is not called so; start it with "
                "--allowed-hosts NAME if it is"
            )
        if (self._has_keys and not is_socket) or self._rules.allow_all_origins:
            return None
        origin = headers.get(b"origin", b"").decode("latin-1")
        if not origin and headers.get(b"sec-fetch-site") != b"cross-site":
            return None
        if origin and (_is_of(origin, host) or self._rules.is_allowed_origin(origin)):
            return None
        what = "open a WebSocket here" if self._has_keys else "call a server without keys"
        return (
            f"a page of another site ({origin[:100] or 'unnamed'}) may not {what}; start the "
            "server with --cors-origin ORIGIN to let it"
        )


def _names(asked: Origins, host: str) -> bool:
    """Whether ``host``, perhaps with a port, names this server."""
    name = _name(host)
    if not host:  # as in HTTP/1.0: browsers always send one
        return True
    if name in (asked.listens.lower(), "localhost") or name.endswith(".localhost"):
        return True
    for allowed in map(str.lower, asked.hosts):
        if allowed in ("*", name) or (allowed.startswith("*.") and name.endswith(allowed[1:])):
            return True
    try:
        # An address is no rebinding: that takes a name, which resolves to ours.
        return ip_address(name).is_loopback or not _is_loopback(asked.listens)
    except ValueError:
        return False


def _is_of(origin: str, host: str) -> bool:
    """Whether a page of ``origin`` comes from this very server."""
    parts = urlsplit(origin)
    port = _DEFAULT_PORTS.get(parts.scheme, "")
    return parts.netloc.lower().removesuffix(port) == host.removesuffix(port) != ""


async def _nowhere(*asgi: Any) -> None:
    """An application that is never called."""


def _is_loopback(listens: str) -> bool:
    try:
        return ip_address(listens).is_loopback
    except ValueError:
        return listens == "localhost"


def _name(host: str) -> str:
    """A host without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() and ":" not in name else host).rstrip(".")


# -- what a user gives ---------------------------------------------------------------------


def read_origins(given: Sequence[str]) -> tuple[str, ...]:
    """The origins of ``--cors-origin``. Raises `ConfigError` for what is none."""
    for one in given:
        if one not in ("*", "null") and not _ORIGIN.fullmatch(one):
            raise ConfigError(
                f"--cors-origin {one!r}: an origin is a scheme, a host and perhaps a port, as "
                "https://chat.example.com (without a path), or * for all"
            )
    return tuple(given)


def read_hosts(given: Sequence[str]) -> tuple[str, ...]:
    """The names of ``--allowed-hosts``. Raises `ConfigError` for what is none."""
    for one in given:
        if one != "*" and not _HOST.fullmatch(one):
            raise ConfigError(
                f"--allowed-hosts {one!r}: give a name without scheme and port, as "
                "agents.example.com or *.example.com, or * for any"
            )
    return tuple(one.strip("[]").rstrip(".") for one in given)


def read_cors(projects: Sequence[Path]) -> Mapping[str, Any]:
    """``http.cors`` of the langgraph.json files. Raises `ProgramLoadError` for what cannot be."""
    found = read_section(projects, "http.cors", _Cors)
    return {} if found is None else found[1].model_dump(exclude_unset=True)


def _check_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from error
    return text


class _Cors(Settings):
    allow_origins: list[str] = Field(default_factory=list)
    allow_methods: list[str] = Field(default_factory=list)
    allow_headers: list[str] = Field(default_factory=list)
    expose_headers: list[str] = Field(default_factory=list)
    allow_credentials: bool = False
    allow_origin_regex: Annotated[str, AfterValidator(_check_pattern)] = ""
    max_age: int = 600
