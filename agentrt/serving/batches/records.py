"""Records of a tenant in a folder: a JSON file each, read into memory when the server starts.

No part of a path comes from a client: the name of a tenant's folder is a digest, and an id is
looked up in memory before it becomes the name of a file.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, Generic, Protocol, TypeVar

from agentrt import files
from agentrt.batch.lines import sync
from agentrt.errors import ConfigError
from agentrt.serving.error_responses import ApiError

_ID_BYTES = 12
_log = logging.getLogger(__name__)


class Record(Protocol):
    """What is kept of one thing of a tenant. ``number`` orders the records of a kind by age."""

    @property
    def id(self) -> str: ...

    @property
    def tenant(self) -> str: ...

    @property
    def number(self) -> int: ...

    def dumped(self) -> Mapping[str, Any]:
        """Return all fields, for the disk."""

    def to_json(self) -> Mapping[str, Any]:
        """Return the object that clients see."""


R = TypeVar("R", bound=Record)


class Folder:
    """The folder of all tenants' records. It is made, and locked for this process, by the first
    write; until then a server that keeps nothing leaves nothing on the disk.

    Raises `ConfigError` if another process has it, or if it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None
        if path.exists():
            self._open()

    def of(self, tenant: str) -> Path:
        """Return the folder of a tenant, which need not exist."""
        return self.path / hashlib.sha256(tenant.encode()).hexdigest()[:32]

    def made_for(self, tenant: str) -> Path:
        """Return the folder of a tenant, which is made if it does not exist. Raises `OSError`."""
        if self._lock is None:
            self._open()
        folder = self.of(tenant)
        if not folder.is_dir():
            folder.mkdir(mode=0o700)
            sync(self.path)
        return folder

    def _open(self) -> None:
        try:
            if not self.path.is_dir():
                self.path.mkdir(mode=0o700)
                sync(self.path.absolute().parent)
            self._lock = files.lock_beside(self.path / "files")
        except BlockingIOError as error:
            raise ConfigError(
                f"{self.path}: another server uses this folder for its files and batches; stop "
                "that server, or name another database"
            ) from error
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(
                f"{self.path}: files and batches cannot be kept there: {reason}"
            ) from error

    def tenants(self) -> Iterator[Path]:
        """Yield the folders of all tenants."""
        if self.path.is_dir():
            yield from (each for each in sorted(self.path.iterdir()) if each.is_dir())

    def close(self) -> None:
        """Release the lock. Idempotent."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


class Records(Generic[R]):
    """The records of one kind, whose ids begin with ``prefix``. ``noun`` names the kind in errors,
    and ``read`` makes a record of what `Record.dumped` returned.
    """

    def __init__(
        self, folder: Folder, prefix: str, noun: str, read: Callable[[Mapping[str, Any]], R]
    ) -> None:
        self._folder = folder
        self._prefix, self._noun = prefix, noun
        self._records: defaultdict[str, dict[str, R]] = defaultdict(dict)
        self._writing = asyncio.Lock()
        for tenant in folder.tenants():
            loaded = [
                each for path in tenant.glob(f"{prefix}*.json") if (each := _read(path, read))
            ]
            for record in sorted(loaded, key=lambda record: (record.number, record.id)):
                self._records[record.tenant][record.id] = record

    def new_id(self) -> str:
        """Return an id that nobody can guess."""
        return f"{self._prefix}{token_hex(_ID_BYTES)}"

    def next_number(self, tenant: str) -> int:
        """Return the number of a tenant's next record."""
        last = next(reversed(self._records[tenant].values()), None)
        return 1 if last is None else last.number + 1

    def all(self) -> list[R]:
        """Return the records of all tenants, the oldest of each first."""
        return [record for records in self._records.values() for record in records.values()]

    def of(self, tenant: str) -> list[R]:
        """Return the records of a tenant, the oldest first."""
        return list(self._records[tenant].values())

    def find(self, tenant: str, record_id: str) -> R | None:
        """Return a tenant's record, or None."""
        return self._records[tenant].get(record_id)

    def get(self, tenant: str, record_id: str) -> R:
        """Return a tenant's record. Raises `ApiError` (404) if the tenant has no such record."""
        record = self.find(tenant, record_id)
        if record is None:
            text = f"no such {self._noun}: {record_id!r}"
            raise ApiError(404, text, param="id", code="not_found")
        return record

    def page(
        self,
        tenant: str,
        *,
        after: str | None,
        limit: int,
        ascending: bool = False,
        keeps: Callable[[R], bool] = lambda record: True,
    ) -> dict[str, Any]:
        """Return a page of a tenant's records as OpenAI's lists are, the newest first unless they
        are ``ascending``. The page begins ``after`` the record with that id. Raises `ApiError` if
        there is no such record.
        """
        records = self.of(tenant) if ascending else self.of(tenant)[::-1]
        if after is not None:
            place = [record.id for record in records]
            if after not in place:
                text = f"after: no such {self._noun}: {after!r}; pass the last id of a page"
                raise ApiError(400, text, param="after", code="invalid_value")
            records = records[place.index(after) + 1 :]
        matching = [record for record in records if keeps(record)]
        data = [record.to_json() for record in matching[:limit]]
        return {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": len(matching) > limit,
        }

    async def put(self, record: R) -> None:
        """Add or replace a record; it is on the disk when this returns. Raises `OSError`."""
        async with self._writing:  # the last state that was put is the one that stays
            text = json.dumps(record.dumped())
            folder = self._folder.made_for(record.tenant)
            await asyncio.to_thread(_replace, folder / f"{record.id}.json", text)
        self._records[record.tenant][record.id] = record

    async def remove(self, record: R) -> None:
        """Remove a record. Raises `OSError`."""
        self._records[record.tenant].pop(record.id, None)
        async with self._writing:
            path = self._folder.of(record.tenant) / f"{record.id}.json"
            await asyncio.to_thread(path.unlink, missing_ok=True)


def _read(path: Path, read: Callable[[Mapping[str, Any]], R]) -> R | None:
    try:
        return read(files.read_json(path))
    except (OSError, ValueError, TypeError, KeyError) as error:
        _log.warning("%s is left out: it is not a record of agentrt: %s", path, error)
        return None


def _replace(path: Path, text: str) -> None:
    """Write a file as a whole, or leave it as it was."""
    new = path.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync(path.parent)
