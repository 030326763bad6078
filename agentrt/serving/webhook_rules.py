"""Which hosts the webhooks of runs may call: those that the operator names, and no others."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from pydantic import Field

from agentrt.errors import ConfigError, ProgramLoadError
from agentrt.serving.settings import Settings, read_section

_HOST = re.compile(r"\*|(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|[0-9a-f:]+")
_VARIABLE = re.compile(r"\$\{\{\s*env\.(\w+)\s*\}\}")
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""Addresses of IPv6 behind which a gateway may have any of IPv4."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class WebhookRules:
    """What webhooks may call, and the ``headers`` that they send.

    A host that is named (``hooks.example.com``, an address) may lie anywhere but on this link;
    those that ``*.example.com`` or ``*`` fit must have public addresses.
    """

    hosts: tuple[str, ...] = ()
    https: bool = False
    ports: tuple[int, ...] = ()
    longest: int = 2048
    headers: Mapping[str, str] = field(default_factory=dict)

    def read(self, text: str) -> httpx.URL:
        """The URL of a webhook. Raises `ValueError` for one that may not be called."""
        if not self.hosts:
            raise ValueError("this server calls no hosts; they are named by --webhook-host")
        if len(text) > self.longest:
            raise ValueError(f"a URL has at most {self.longest} characters")
        try:
            url = httpx.URL(text)
        except (httpx.InvalidURL, TypeError) as error:
            raise ValueError(f"no URL: {error}") from None
        schemes = ("https",) if self.https else ("https", "http")
        if url.scheme not in schemes or not url.host:
            raise ValueError(f"give a whole URL, with {' or '.join(schemes)}")
        if url.userinfo:
            raise ValueError("a URL has no user and password here")
        if not any(_fits(name, host_of(url)) for name in self.hosts):
            raise ValueError(
                f"the host {host_of(url)!r} is none of those that --webhook-host names"
            )
        if self.ports and port_of(url) not in self.ports:
            raise ValueError(f"the port {port_of(url)} is none of {list(self.ports)}")
        return url

    def check_address(self, host: str, address: str) -> None:
        """Raise `ValueError` if ``host`` must not be called at this address."""
        ip: Address = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        nowhere = ip.is_link_local or ip.is_multicast or ip.is_unspecified
        if nowhere or (host not in self.hosts and not _is_public(ip)):
            raise ValueError(f"the host {host!r} has the address {ip}, which is not called")


def host_of(url: httpx.URL) -> str:
    """The host as DNS and certificates have it: of ``ü`` as ``xn--…``."""
    return url.raw_host.decode("ascii")


def port_of(url: httpx.URL) -> int:
    """The port, also where it goes without saying."""
    return url.port or (443 if url.scheme == "https" else 80)


def _fits(name: str, host: str) -> bool:
    if name == "*":
        return True
    return host.endswith(name[1:]) if name.startswith("*.") else host == name


def _is_public(ip: Address) -> bool:
    if isinstance(ip, ipaddress.IPv6Address) and (ip.sixtofour or ip.teredo or ip in _TRANSLATED):
        return False
    return ip.is_global


# -- what a user gives ---------------------------------------------------------------------


class _Url(Settings):
    allowed_domains: list[str] = Field(default_factory=list)
    require_https: bool = True
    allowed_ports: list[int] = Field(default_factory=list)
    max_url_length: int = Field(default=2048, ge=1)
    # Only what is named is called, so that there is nothing more to switch off.
    disable_loopback: bool = True


class _Webhooks(Settings):
    url: _Url = Field(default_factory=lambda: _Url(require_https=False))
    headers: dict[str, str] = Field(default_factory=dict)
    env_prefix: str = "LG_WEBHOOK_"


def read_webhooks(hosts: Sequence[str], projects: Sequence[Path]) -> WebhookRules:
    """The rules of ``--webhook-host``, and of ``webhooks`` in the langgraph.json files.

    Raises `ConfigError` and `ProgramLoadError` for what cannot be.
    """
    named = [_host(one, f"--webhook-host {one!r}") for one in hosts]
    if (found := read_section(projects, "webhooks", _Webhooks)) is None:
        return WebhookRules(tuple(named))
    path, given = found
    url = given.url
    named += [_host(one, f"{path}: webhooks: {one!r}") for one in url.allowed_domains]
    headers = {key: _filled(text, given.env_prefix, path) for key, text in given.headers.items()}
    return WebhookRules(
        tuple(named), url.require_https, tuple(url.allowed_ports), url.max_url_length, headers
    )


def _host(given: str, where: str) -> str:
    name = given.lower().strip("[]").rstrip(".")
    if not _HOST.fullmatch(name):
        raise ConfigError(
            f"{where}: give a host without scheme and port, as hooks.example.com or "
            "*.example.com, or * for any with a public address"
        )
    return name


def _filled(text: str, prefix: str, project: Path) -> str:
    """A header's value with the variables of the environment that it names."""

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if not name.startswith(prefix) or name not in os.environ:
            raise ProgramLoadError(
                f"{project}: webhooks: headers: {name} must begin with {prefix}, and be set"
            )
        return os.environ[name]

    return _VARIABLE.sub(value, text)
