"""API keys in a file: hashed at rest, each with its tenant and that tenant's limits.

A key is ``agentrt_ID_SECRET``. The secret has 256 random bits, so a salted SHA-256 of it
cannot be searched; a slow hash would only slow every request down.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrt.errors import ConfigError
from agentrt.files import read_json
from agentrt.serving.tenants.limits import Limits, read_limits

_KEY = re.compile(r"agentrt_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LOOK_AGAIN_S = 1.0
_NO_LIMITS = ("keys", "operator")
_SHAPE = '{"tenants": {"NAME": {"keys": […], "weight": 1}}}'


@dataclass(frozen=True, slots=True)
class _Stored:
    tenant: str
    salt: bytes
    digest: bytes


_NOBODY = _Stored("", b"", hashlib.sha256(secrets.token_bytes(32)).digest())


@dataclass(frozen=True, slots=True)
class _Content:
    keys: Mapping[str, _Stored] = field(default_factory=dict)
    limits: Mapping[str, Limits] = field(default_factory=dict)
    operators: frozenset[str] = frozenset()


class KeyRing:
    """The keys of a file, which is read again when it changes.

    A change that cannot be read leaves the keys as they were, and ``notice`` is told why.
    Raises `ConfigError` for a file that cannot be read at first, or has no key.
    """

    def __init__(
        self,
        path: Path,
        base: Limits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        notice: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._path = path
        self._base = Limits() if base is None else base
        self._clock = clock
        self._notice = notice
        self._seen: object = None
        self._looked_at = clock()
        self._content = _Content()
        self._load()
        if not self._content.keys:
            raise ConfigError(f"{path}: it has no key; make one: agentrt keys new TENANT --file F")

    @property
    def limits(self) -> Mapping[str, Limits]:
        """Each tenant's limits."""
        return self._content.limits

    def tenant_of(self, key: str) -> str | None:
        """The tenant whose key this is, or None. Takes as long for one as for the other."""
        if self._clock() - self._looked_at >= _LOOK_AGAIN_S:
            self._look_again()
        match = _KEY.fullmatch(key)
        name, secret = match.groups() if match else ("", key)
        stored = self._content.keys.get(name, _NOBODY)
        if hmac.compare_digest(_digest(stored.salt, secret), stored.digest) and stored.tenant:
            return stored.tenant
        return None

    def is_operator(self, tenant: str) -> bool:
        """Whether the file says ``"operator": true`` of this tenant."""
        return tenant in self._content.operators

    def _look_again(self) -> None:
        self._looked_at = self._clock()
        try:
            if _stamp(self._path) != self._seen:
                self._load()
        except (ConfigError, OSError) as error:
            self._notice(f"the keys stay as they were: {error}")

    def _load(self) -> None:
        document = _read(self._path)
        self._seen = _stamp(self._path)
        keys: dict[str, _Stored] = {}
        limits: dict[str, Limits] = {}
        operators: set[str] = set()
        for tenant, values in document["tenants"].items():
            where = f"{self._path}: tenant {tenant!r}"
            check_tenant_name(tenant, str(self._path))
            if not isinstance(values, dict):
                raise ConfigError(f"{where}: it must be an object, as in {_SHAPE}")
            own = {name: value for name, value in values.items() if name not in _NO_LIMITS}
            if values.get("operator", False) is True:
                operators.add(tenant)
            limits[tenant] = read_limits(own, self._base, where)
            for entry in values.get("keys", ()):
                keys[_field(entry, "id", where)] = _stored(tenant, entry, where)
        self._content = _Content(keys, limits, frozenset(operators))


def new_key(path: Path, tenant: str) -> str:
    """Add a key for ``tenant`` to the file, made if need be, and return it: it is kept nowhere.

    Raises `ConfigError` for a name or a file that cannot be.
    """
    check_tenant_name(tenant, "agentrt keys new")
    document = _read(path) if path.exists() else {"tenants": {}}
    name, secret, salt = secrets.token_hex(6), secrets.token_urlsafe(32), secrets.token_bytes(16)
    entry = {"id": name, "salt": salt.hex(), "sha256": _digest(salt, secret).hex()}
    document["tenants"].setdefault(tenant, {}).setdefault("keys", []).append(entry)
    try:
        _write(path, json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
    return f"agentrt_{name}_{secret}"


def check_tenant_name(tenant: str, where: str) -> None:
    """Raise `ConfigError` for what is no tenant's name."""
    if not _NAME.fullmatch(tenant):
        raise ConfigError(
            f"{where}: {tenant!r} is no tenant's name; use letters, digits, '.', '_' and '-', 64 "
            "at most"
        )


def _digest(salt: bytes, secret: str) -> bytes:
    return hashlib.sha256(salt + secret.encode("utf-8", "replace")).digest()


def _read(path: Path) -> dict[str, Any]:
    try:
        document = read_json(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: {(error.strerror or str(error)).lower()}; make a key: "
            f"agentrt keys new TENANT --file {path}"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path}: bad JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("tenants"), dict):
        raise ConfigError(f"{path}: it must be as {_SHAPE}")
    return document


def _stored(tenant: str, entry: Any, where: str) -> _Stored:
    salt, digest = _field(entry, "salt", where), _field(entry, "sha256", where)
    try:
        return _Stored(tenant, bytes.fromhex(salt), bytes.fromhex(digest))
    except ValueError as error:
        raise ConfigError(f"{where}: a key's salt and sha256 are hexadecimal: {error}") from error


def _field(entry: Any, name: str, where: str) -> str:
    value = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(value, str):
        raise ConfigError(f"{where}: a key has id, salt and sha256; this one lacks {name}")
    return value


def _stamp(path: Path) -> object:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _write(path: Path, text: str) -> None:
    """At once or not at all, and for its owner's eyes only."""
    descriptor, temporary = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
