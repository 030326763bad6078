"""The proxy and the certificates of an HTTP client, from the environment's variables. Addresses of
this machine never have a proxy.

The HTTP libraries read all variables for proxies and certificates whenever a client is made. So a
single invalid variable would break every client, with an error that does not name the variable.
This module reads only the variables that a URL needs, and names an invalid variable.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import ssl
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

from agentrt.errors import ConfigError, shown_url, url_fault

_SCHEMES = ("http", "https", "socks5", "socks5h")
_PORTS = {"http": 80, "https": 443}
_KEY_LOG = "SSLKEYLOGFILE"


def client_options(url: str) -> dict[str, Any]:
    """Return the options of an ``httpx`` or ``httpx2`` client for ``url``: ``proxy``, ``verify``,
    and ``trust_env``, which is False.

    Raises `ConfigError` for a URL that cannot be read, and for an invalid variable that ``url``
    needs. The message names the variable.
    """
    if (fault := url_fault(url)) is not None:
        raise ConfigError(f"{shown_url(url)!r} is not a URL: {fault}")
    return {"trust_env": False, "proxy": proxy_for(url), "verify": certificates(url)}


def proxy_for(url: str) -> str | None:
    """Return the proxy for ``url`` according to ``ALL_PROXY``, ``HTTP_PROXY``, ``HTTPS_PROXY`` and
    ``NO_PROXY``; None for no proxy. Addresses of this machine never have a proxy.

    Raises `ConfigError` for an invalid proxy.
    """
    host, scheme = _host_of(url), url.partition("://")[0].lower()
    proxies = getproxies_environment()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or host is None or is_own(host) or _is_exempt(url, host):
        return None
    kind = scheme if proxies.get(scheme) else "all"
    name = _name_of(f"{kind}_proxy")
    return _checked(name, proxy if "://" in proxy else f"http://{proxy}")


def is_own(host: str) -> bool:
    """Return whether ``host`` is this machine: ``localhost``, a name that ends in ``.localhost``,
    the machine's name, a loopback address, an unspecified address such as 0.0.0.0, or an address of
    one of the machine's interfaces.
    """
    name = host.strip("[]").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name == socket.gethostname().lower()
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def environment_fault(url: str) -> str | None:
    """Return a message that names an invalid variable; None if all are valid.

    Libraries that read the environment themselves cannot reach ``url`` while the variable is set.
    """
    try:
        certificates(url)
        for kind, proxy in getproxies_environment().items():
            if proxy and kind in ("all", "http", "https"):
                _checked(_name_of(f"{kind}_proxy"), proxy if "://" in proxy else f"http://{proxy}")
    except ConfigError as error:
        return str(error)
    if "[" in _no_proxy():
        name = _name_of("no_proxy")
        return (
            f"{name}={_no_proxy()!r}: addresses in this variable have no brackets; write ::1, not "
            "[::1]"
        )
    return None


def bypass_proxies(url: str) -> None:
    """Let libraries that read the environment themselves reach ``url`` without a proxy if ``url``
    is on this machine. Changes the environment of this process and of its children.
    """
    os.environ.update(exemptions(url))


def exemptions(url: str) -> dict[str, str]:
    """Return the variables with which programs that read the environment reach ``url`` without a
    proxy. The result is empty if ``url`` is not on this machine, or if no proxy is set.
    """
    host = _host_of(url)
    # To Python, an empty http_proxy turns HTTP_PROXY off, and to most other programs it does not.
    variables = {name.lower(): value for name, value in os.environ.items() if value}
    proxies = [name for name in variables if name.endswith("_proxy") and not name.startswith("no")]
    if host is None or not is_own(host) or not proxies:
        return {}
    exempt = _with_entry(_no_proxy(), host)
    changed = {"no_proxy": exempt, "NO_PROXY": exempt}
    if "no_grpc_proxy" in variables:  # gRPC reads it in place of no_proxy, in lower case only
        changed["no_grpc_proxy"] = _with_entry(variables["no_grpc_proxy"], host)
    return changed


def _with_entry(exempt: str, host: str) -> str:
    entries = [entry.strip() for entry in exempt.split(",") if entry.strip()]
    return ",".join(entries if host in entries else [*entries, host])


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _no_proxy() -> str:
    return os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""


def _is_exempt(url: str, host: str) -> bool:
    """Return whether ``NO_PROXY`` names ``host``.

    The entries of ``NO_PROXY`` are separated by commas or blanks. They are names, ends of names
    (``.org`` or ``*.org``), addresses with or without brackets, networks, and ``*``, each with or
    without a port.
    """
    try:
        port = urlsplit(url).port
    except ValueError:  # the client will say what is wrong with the URL
        return False
    own_port = f":{port or _PORTS.get(url.partition('://')[0].lower())}"
    entries = _no_proxy().lower().replace(",", " ").split()
    names = [entry.removesuffix(own_port).strip("[]") for entry in entries]
    names = [name if name == "*" else name.removeprefix("*").strip(".") for name in names]
    return any(_names(name, host.rstrip(".")) for name in names if name)


def _names(entry: str, host: str) -> bool:
    if entry == "*" or host == entry or host.endswith(f".{entry}"):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False


def _name_of(name: str) -> str:
    """Return the name of the environment variable that is in effect: the lower-case name if it is
    set, and otherwise the upper-case name.
    """
    return name if os.environ.get(name) else name.upper()


def _checked(name: str, proxy: str) -> str:
    """Return ``proxy``. Raises `ConfigError`, which names the variable ``name``, if no client can
    use this proxy.
    """
    advice = f"set {name} to http://HOST:PORT, or unset it"
    if (fault := url_fault(proxy)) is not None:
        raise ConfigError(f"{name}={_shown(name)}: {fault}; {advice}")
    parts = urlsplit(proxy)
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise ConfigError(
            f"{name}={_shown(name)}: it has an @ after a /, ? or #; in its user and its password, "
            f"write these characters as %XX, such as %2F for /; {advice}"
        )
    has_host = bool(parts.hostname) and parts.port != 0
    if parts.scheme.lower() not in _SCHEMES or not has_host:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise ConfigError(
            f"{name}={_shown(name)}: a proxy's URL must begin with one of {known}, and must have a "
            f"host and a port other than 0; {advice}"
        )
    if parts.scheme.lower().startswith("socks") and find_spec("socksio") is None:
        raise ConfigError(
            f"{name}={_shown(name)}: a SOCKS proxy needs the package socksio, which is not "
            f"installed; install it, or {advice}"
        )
    return proxy


def _shown(name: str) -> str:
    """Return the value of the variable ``name`` in quotes, without the user and the password."""
    return repr(shown_url(os.environ.get(name, "")))


def certificates(url: str) -> ssl.SSLContext | bool:
    """Return the TLS context by which a client verifies servers; True for the client's default.

    If ``url`` is not HTTPS, the returned value is not used. Otherwise, a variable that names no
    usable certificates, or no usable file for TLS keys, raises `ConfigError`.
    """
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if os.environ.get(_KEY_LOG) and not _may_log_keys():
        if not url.lower().startswith("https:"):
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # not used
        raise ConfigError(
            f"{_KEY_LOG}={os.environ[_KEY_LOG]!r}: the file cannot be written; name a file that "
            f"can be written, or unset {_KEY_LOG}"
        )
    if not file and not folder:
        return True
    try:
        if file:
            return _context_of(file)
        assert folder is not None
        # OpenSSL reads the folders when it verifies a server, and ignores the ones that it cannot
        # read, so that no server would be trusted, for a reason that no error names.
        if not any(map(os.path.isdir, folder.split(os.pathsep))):
            raise NotADirectoryError(errno.ENOTDIR, "there is no such folder")
        return ssl.create_default_context(capath=folder)
    except (OSError, ValueError) as error:
        if not url.lower().startswith("https:"):
            return True
        name, value = ("SSL_CERT_FILE", file) if file else ("SSL_CERT_DIR", folder)
        raise _unreadable(name, value, error) from error


def certificate_file(url: str, *names: str) -> str | None:
    """Return the path in the first environment variable of ``names`` that is set. The path names a
    file of certificates. Return None if none is set, or if ``url`` is not HTTPS.

    Raises `ConfigError` for a file that cannot be used.
    """
    name = next((name for name in names if os.environ.get(name)), None)
    if name is None or not url.lower().startswith("https:"):
        return None
    file = os.environ[name]
    try:
        _context_of(file)
    except (OSError, ValueError) as error:
        raise _unreadable(name, file, error) from error
    return file


def _context_of(file: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=file)


def _unreadable(name: str, value: str | None, error: OSError | ValueError) -> ConfigError:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if isinstance(error, ssl.SSLError):
        why = "it has no certificate in PEM form"
    kind = "a folder" if name.endswith("_DIR") else "a file"
    return ConfigError(
        f"{name}={value!r}: {why}; name {kind} of certificates in PEM form, or unset {name}"
    )


def _may_log_keys() -> bool:
    """Return whether a TLS context can be made. Making it also opens the file that
    ``SSLKEYLOGFILE`` names.
    """
    try:
        ssl.create_default_context()
    except OSError:
        return False
    return True
