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
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from agentrt.errors import ConfigError
from agentrt.files import read_json
from agentrt.serving.settings import fault_in
from agentrt.serving.tenants.limits import Limits, read_limits

TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY = re.compile(r"agentrt_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_LOOK_AGAIN_S = 1.0
_SHAPE = '{"tenants": {"NAME": {"keys": […], "weight": 1}}}'

Hex = Annotated[str, StringConstraints(pattern="^([0-9a-f]{2})*$")]


class _Key(BaseModel):
    id: str
    salt: Hex
    sha256: Hex


class _Tenant(BaseModel):
    """What the file has of a tenant. Its other fields are limits."""

    model_config = ConfigDict(extra="allow")

    keys: list[_Key] = Field(default_factory=list)
    operator: bool = False


class _Document(BaseModel):
    tenants: dict[str, _Tenant]


_NO_KEY = _Key(id="", salt="", sha256=secrets.token_hex(32))


class KeyRing:
    """The keys of a file, which is read again when it changes. ``limits`` are each tenant's.

    A change that cannot be read leaves the keys as they were, and ``notice`` gets the reason.
    Raises `ConfigError` for a file that cannot be read at first, or has no key.
    """

    limits: Mapping[str, Limits]

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
        self._looked_at = clock()
        self._load()
        if not self._keys:
            raise ConfigError(f"{path}: it has no key; make one: agentrt keys new TENANT --file F")

    def tenant_of(self, key: str) -> str | None:
        """The tenant whose key this is, or None. Takes as long for one as for the other."""
        if self._clock() - self._looked_at >= _LOOK_AGAIN_S:
            self._look_again()
        match = _KEY.fullmatch(key)
        name, secret = match.groups() if match else ("", key)
        tenant, stored = self._keys.get(name, (None, _NO_KEY))
        is_right = hmac.compare_digest(_digest(stored.salt, secret), stored.sha256)
        return tenant if is_right else None

    def is_operator(self, tenant: str) -> bool:
        """Whether the file says ``"operator": true`` of this tenant."""
        return tenant in self._tenants and self._tenants[tenant].operator

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
        try:
            tenants = _Document.model_validate(document).tenants
        except ValidationError as error:
            raise ConfigError(f"{self._path}: {fault_in(error)}; it is as {_SHAPE}") from None
        for name in tenants:
            _check_name(name, str(self._path))
        self.limits = {
            name: read_limits(one.model_extra or {}, self._base, f"{self._path}: tenant {name!r}")
            for name, one in tenants.items()
        }
        self._keys = {key.id: (name, key) for name, one in tenants.items() for key in one.keys}
        self._tenants = tenants


def new_key(path: Path, tenant: str) -> str:
    """Add a key for ``tenant`` to the file, made if need be, and return it: it is kept nowhere.

    Raises `ConfigError` for a name or a file that cannot be.
    """
    _check_name(tenant, "agentrt keys new")
    document = _read(path) if path.exists() else {"tenants": {}}
    name, secret, salt = secrets.token_hex(6), secrets.token_urlsafe(32), secrets.token_hex(16)
    entry = {"id": name, "salt": salt, "sha256": _digest(salt, secret)}
    document["tenants"].setdefault(tenant, {}).setdefault("keys", []).append(entry)
    try:
        _write(path, json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
    return f"agentrt_{name}_{secret}"


def _check_name(tenant: str, where: str) -> None:
    if not TENANT_NAME.fullmatch(tenant):
        raise ConfigError(
            f"{where}: {tenant!r} is no tenant's name; use letters, digits, '.', '_' and '-', 64 "
            "at most"
        )


def _digest(salt: str, secret: str) -> str:
    return hashlib.sha256(bytes.fromhex(salt) + secret.encode("utf-8", "replace")).hexdigest()


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
