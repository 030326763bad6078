"""API keys in a file, which has for each tenant the hashes of the tenant's keys, and limits; or a
single key from the environment.

A key has the form ``agentrt_ID_SECRET``. The secret has 256 random bits, so that nobody can find it
from its salted SHA-256 by trying all values; a slow hash would make each request slower without a
benefit.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from agentrt.errors import ConfigError
from agentrt.files import lock_beside, read_json, replacing, unlock
from agentrt.serving.settings import fault_in
from agentrt.serving.tenants.limits import Limits, read_limits

TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NAME_RULE = "use at most 64 letters, digits, '.', '_' and '-', with a letter or digit first"
_KEY = re.compile(r"agentrt_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_LOOK_AGAIN_S = 1.0
_LOCKED_WITHIN_S = 10.0
_LOCK_PAUSE_S = 0.01
_SHAPE = '{"tenants": {"NAME": {"keys": […], "weight": 1}}}'

Hex = Annotated[str, StringConstraints(pattern="^([0-9a-f]{2})*$")]


class _Key(BaseModel):
    id: str
    salt: Hex
    sha256: Hex


class _TenantEntry(BaseModel):
    """A tenant in the file. All fields other than ``keys`` and ``operator`` are limits."""

    model_config = ConfigDict(extra="allow")

    keys: list[_Key] = Field(default_factory=list)
    operator: bool = False


class _Document(BaseModel):
    tenants: dict[str, _TenantEntry]


_NO_KEY = _Key(id="", salt="", sha256=secrets.token_hex(32))


class KeyRing:
    """The keys of a file. The file is read again after it has changed.

    ``limits`` are the limits of each tenant; ``base`` are the defaults. If a changed file cannot be
    read, the keys stay as they were, and ``notice`` is called once with the reason. Raises
    `ConfigError` if the `KeyRing` is made from a file that cannot be read or has no key.
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
        self._reported = ""
        self._load()
        if not self._keys:
            raise ConfigError(
                f"{path}: the file has no key; make a key: agentrt keys new TENANT --file {path}"
            )

    def tenant_of(self, key: str) -> str | None:
        """Return the tenant of a key; None for an unknown key.

        Both cases take the same time, so that the time does not help to guess keys.
        """
        if self._clock() - self._looked_at >= _LOOK_AGAIN_S:
            self._look_again()
        match = _KEY.fullmatch(key)
        name, secret = match.groups() if match else ("", key)
        tenant, stored = self._keys.get(name, (None, _NO_KEY))
        is_right = hmac.compare_digest(_digest(stored.salt, secret), stored.sha256)
        return tenant if is_right else None

    def is_operator(self, tenant: str) -> bool:
        """Return whether the file has ``"operator": true`` for this tenant."""
        return tenant in self._tenants and self._tenants[tenant].operator

    def _look_again(self) -> None:
        self._looked_at = self._clock()
        try:
            if _stamp(self._path) != self._seen:
                self._load()
            self._reported = ""
        except (ConfigError, OSError) as error:
            if (fault := str(error)) != self._reported:
                self._notice(f"the keys stay as they were: {fault}")
                self._reported = fault

    def _load(self) -> None:
        # If the file changes between these two lines, it is read again at the next look.
        stamp = _stamp(self._path) if self._path.exists() else None
        document = _read(self._path)
        self._seen = stamp
        tenants = _tenants_in(self._path, document)
        for name in tenants:
            _check_name(name, str(self._path))
        self.limits = {
            name: read_limits(
                tenant.model_extra or {},
                self._base,
                f"{self._path}: tenant {name!r}",
                _TenantEntry.model_fields,
            )
            for name, tenant in tenants.items()
        }
        self._keys = {
            key.id: (name, key) for name, tenant in tenants.items() for key in tenant.keys
        }
        self._tenants = tenants


class SingleKey:
    """A key that the environment has, as `vllm serve` reads it from ``VLLM_API_KEY``.

    All clients have this key, so they are one tenant, which operates the server.
    """

    limits: Mapping[str, Limits] = MappingProxyType({})

    def __init__(self, key: str, tenant: str) -> None:
        if not key:
            raise ConfigError("an API key must not be empty")
        self._key = key.encode("utf-8", "surrogatepass")
        self._tenant = tenant

    def tenant_of(self, key: str) -> str | None:
        """Return the tenant of the key; None for another key."""
        is_right = hmac.compare_digest(key.encode("utf-8", "surrogatepass"), self._key)
        return self._tenant if is_right else None

    def is_operator(self, tenant: str) -> bool:
        """Return True: there is only one tenant."""
        return True


def new_key(path: Path, tenant: str) -> str:
    """Add a new key for ``tenant`` to the file, and return the key.

    The file is created if it does not exist. The file gets only a hash of the key, so the returned
    key cannot be read again. If other processes add keys at the same time, they take turns. Raises
    `ConfigError` for an invalid name, or a file that cannot be read or written.
    """
    _check_name(tenant, "agentrt keys new")
    name, secret, salt = secrets.token_hex(6), secrets.token_urlsafe(32), secrets.token_hex(16)
    entry = {"id": name, "salt": salt, "sha256": _digest(salt, secret)}
    if path.exists():  # report a file with the wrong content before a folder without a lock
        _tenants_in(path, _read(path))
    try:
        with _locked(path):
            document = _read(path) if path.exists() else {"tenants": {}}
            _tenants_in(path, document)
            document["tenants"].setdefault(tenant, {}).setdefault("keys", []).append(entry)
            _write(path, json.dumps(document, indent=2) + "\n")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"{path} cannot be written: {reason}; name a file that this user can write"
        ) from error
    return f"agentrt_{name}_{secret}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes from changing the file during the ``with`` block. Waits for a process
    that changes it now.

    Raises `ConfigError` if the other process takes too long.
    """
    path = Path(os.path.realpath(path))
    deadline = time.monotonic() + _LOCKED_WITHIN_S
    while True:
        try:
            lock = lock_beside(path)
            break
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"{path} has been locked by another process for {_LOCKED_WITHIN_S:g} s; try "
                    f"again when no other process uses {path.name}.lock"
                ) from error
            time.sleep(_LOCK_PAUSE_S)
    try:
        yield
    finally:
        unlock(lock)


def _check_name(tenant: str, where: str) -> None:
    if not TENANT_NAME.fullmatch(tenant):
        raise ConfigError(f"{where}: invalid tenant name {tenant!r}; {NAME_RULE}")


def _digest(salt: str, secret: str) -> str:
    return hashlib.sha256(bytes.fromhex(salt) + secret.encode("utf-8", "replace")).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    try:
        document = read_json(path)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: no such file or directory; make a key: agentrt keys new TENANT --file {path}"
        ) from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"{path} cannot be read: {reason}; name a file that this user can read"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path}: bad JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("tenants"), dict):
        raise ConfigError(f"{path}: the file must have the form {_SHAPE}")
    return document


def _tenants_in(path: Path, document: Mapping[str, Any]) -> dict[str, _TenantEntry]:
    """Return the tenants in the document at ``path``. Raises `ConfigError` for invalid tenants."""
    try:
        return _Document.model_validate(document).tenants
    except ValidationError as error:
        text = f"{path}: {fault_in(error)}; the file has the form {_SHAPE}"
        raise ConfigError(text) from None


def _stamp(path: Path) -> object:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _write(path: Path, text: str) -> None:
    """Write a file atomically, readable by its owner only."""
    with replacing(path, 0o600) as file:
        file.write(text.encode())
