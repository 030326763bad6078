"""Decides which hosts the webhooks of runs may call: only hosts that the operator names."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from pydantic import Field

from agentrt.errors import ConfigError, ProgramLoadError, header_fault, url_fault
from agentrt.serving.settings import SettingsSection, read_section

_HOST = re.compile(r"\*|(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|[0-9a-f:]+")
_VARIABLE = re.compile(r"\$\{\{\s*env\.(\w+)\s*\}\}")
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses that a NAT64 gateway may translate to any IPv4 address."""

_OWN_HEADERS = ("host", "content-length", "transfer-encoding")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class WebhookRules:
    """The rules of webhooks: the URLs that they may call, and the ``headers`` that they send.

    A host that is named literally (``hooks.example.com``, an address) may have any unicast address
    except link-local addresses. Hosts that only match ``*.example.com`` or ``*`` must have public
    addresses. ``https`` allows only https URLs, ``ports`` allows only these ports (if it is not
    empty), and ``longest`` limits the length of URLs (characters).
    """

    hosts: tuple[str, ...] = ()
    https: bool = False
    ports: tuple[int, ...] = ()
    longest: int = 2048
    headers: Mapping[str, str] = field(default_factory=dict)

    def read(self, text: str) -> httpx.URL:
        """Return the URL of a webhook. Raises `ValueError` for a URL that may not be called."""
        if not self.hosts:
            raise ValueError("this server calls no webhooks; start it with --webhook-host HOST")
        if len(text) > self.longest:
            raise ValueError(
                f"the URL has {len(text)} characters; use at most {self.longest} characters"
            )
        if (fault := url_fault(text)) is not None:
            raise ValueError(f"invalid URL: {fault}")
        try:
            url = httpx.URL(text)
        except (httpx.InvalidURL, TypeError) as error:
            raise ValueError(f"invalid URL: {error}") from None
        schemes = ("https",) if self.https else ("https", "http")
        if url.scheme not in schemes or not url.host:
            raise ValueError(
                f"the URL has the scheme {url.scheme!r} and the host {url.host!r}; use a complete "
                f"URL with {' or '.join(schemes)}"
            )
        if url.userinfo:
            raise ValueError("the URL must not have a user name or a password; leave both out")
        if not any(_fits(name, host_of(url)) for name in self.hosts):
            raise ValueError(
                f"the host {host_of(url)!r} is not allowed; the operator can allow it with "
                "--webhook-host"
            )
        if self.ports and port_of(url) not in self.ports:
            allowed = ", ".join(map(str, self.ports))
            raise ValueError(f"the port {port_of(url)} is not allowed; use one of {allowed}")
        return url

    def check_address(self, host: str, address: str) -> None:
        """Raise `ValueError` if ``host`` must not be called at this address."""
        ip: Address = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        nowhere = ip.is_link_local or ip.is_multicast or ip.is_unspecified
        if nowhere or (host not in self.hosts and not _is_public(ip)):
            raise ValueError(f"the host {host!r} has the address {ip}, which may not be called")


def host_of(url: httpx.URL) -> str:
    """Return the host in the form of DNS and certificates: labels that are not ASCII have the form
    ``xn--…``.
    """
    return url.raw_host.decode("ascii")


def port_of(url: httpx.URL) -> int:
    """Return the port of a URL, or the default port of its scheme."""
    return url.port or (443 if url.scheme == "https" else 80)


def _fits(name: str, host: str) -> bool:
    if name == "*":
        return True
    return host.endswith(name[1:]) if name.startswith("*.") else host == name


def _is_public(ip: Address) -> bool:
    if isinstance(ip, ipaddress.IPv6Address) and (ip.sixtofour or ip.teredo or ip in _TRANSLATED):
        return False
    return ip.is_global


# -- options and configuration files -------------------------------------------------------


class _Url(SettingsSection):
    allowed_domains: list[str] = Field(default_factory=list)
    require_https: bool = True
    allowed_ports: list[int] = Field(default_factory=list)
    max_url_length: int = Field(default=2048, ge=1)
    # Accepted without effect: a loopback address is called only if its host is named literally.
    disable_loopback: bool = True


class _WebhookSection(SettingsSection):
    url: _Url = Field(default_factory=lambda: _Url(require_https=False))
    headers: dict[str, str] = Field(default_factory=dict)
    env_prefix: str = "LG_WEBHOOK_"


def read_webhooks(hosts: Sequence[str], projects: Sequence[Path]) -> WebhookRules:
    """Return the rules of ``--webhook-host``, and of ``webhooks`` in the langgraph.json files.

    Raises `ConfigError` for an invalid host, or if several files have ``webhooks``, and
    `ProgramLoadError` for other invalid values in a file.
    """
    named = [_host(host, f"--webhook-host {host!r}") for host in hosts]
    if (section := read_section(projects, "webhooks", _WebhookSection)) is None:
        return WebhookRules(tuple(named))
    path, webhooks = section
    url = webhooks.url
    named += [_host(host, f"{path}: webhooks: {host!r}") for host in url.allowed_domains]
    headers = {
        key: _header(key, _filled(text, webhooks.env_prefix, path), path)
        for key, text in webhooks.headers.items()
    }
    return WebhookRules(
        tuple(named), url.require_https, tuple(url.allowed_ports), url.max_url_length, headers
    )


def _host(text: str, where: str) -> str:
    name = text.lower().strip("[]").rstrip(".")
    if not _HOST.fullmatch(name):
        raise ConfigError(
            f"{where}: invalid host; use a name without scheme and port, such as "
            "hooks.example.com or *.example.com, or * for any host with a public address"
        )
    return name


def _header(name: str, value: str, project: Path) -> str:
    """Return the value of a header. Raises `ProgramLoadError` for a header that cannot be sent."""
    fault = header_fault(name, value)
    if name.lower() in _OWN_HEADERS:
        fault = "agentrt sets this header itself; leave it out"
    if fault is not None:
        raise ProgramLoadError(f"{project}: webhooks: headers: {name!r}: {fault}")
    return value


def _filled(text: str, prefix: str, project: Path) -> str:
    """Replace ``${{ env.NAME }}`` in a header's value by the environment variable.

    Raises `ProgramLoadError` if the variable is not set, or if its name lacks the ``prefix``.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if not name.startswith(prefix) or name not in os.environ:
            raise ProgramLoadError(
                f"{project}: webhooks: headers: the environment variable {name} must be set, and "
                f"its name must begin with {prefix}"
            )
        return os.environ[name]

    return _VARIABLE.sub(value, text)
