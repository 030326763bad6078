"""Records of files and batches. Each record is a JSON file in the folder of its tenant, and all
records are read into memory when the server starts.

No part of a path comes from a client: the name of a tenant's folder is a digest, and an id is
looked up in memory before it becomes the name of a file.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, Generic, Protocol, TypeVar

from agentrt import files
from agentrt.errors import ConfigError
from agentrt.serving.error_responses import ApiError

_ID_BYTES = 12
_log = logging.getLogger(__name__)


class StoredRecord(Protocol):
    """A stored file or batch of a tenant.

    ``number`` grows with each new record of the tenant, so that records of the same second
    are listed in the order of their creation, too.
    """

    @property
    def id(self) -> str: ...

    @property
    def tenant(self) -> str: ...

    @property
    def number(self) -> int: ...

    def to_fields(self) -> Mapping[str, Any]:
        """Return all fields, as they are stored on the disk."""

    def to_json(self) -> Mapping[str, Any]:
        """Return the object for clients, as OpenAI's API defines it."""


R = TypeVar("R", bound=StoredRecord)


class TenantFolders:
    """A folder with one folder for the records of each tenant.

    The folder is created and locked for this process by the first write, so that a server without
    files and batches writes nothing to the disk. A folder that exists is locked at once.

    Raises `ConfigError` if another process has locked the folder, or if it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None
        if path.exists():
            self._open()

    def of(self, tenant: str) -> Path:
        """Return the path of a tenant's folder, whether or not it exists."""
        return self.path / hashlib.sha256(tenant.encode()).hexdigest()[:32]

    def create(self, tenant: str) -> Path:
        """Create the folder of a tenant if it does not exist, and return it. Raises `OSError` if it
        cannot be created, and `ConfigError` if another server has locked the folders.
        """
        if self._lock is None:
            self._open()
        folder = self.of(tenant)
        if not folder.is_dir():
            folder.mkdir(mode=0o700)
            files.sync(self.path)
        return folder

    def _open(self) -> None:
        try:
            if not self.path.is_dir():
                self.path.mkdir(mode=0o700)
                files.sync(self.path.absolute().parent)
            self._lock = files.lock_beside(self.path / "files")
        except BlockingIOError as error:
            raise ConfigError(
                f"{self.path}: another server uses this folder for its files and batches; stop "
                "that server, or choose another --database, because the folder lies beside it"
            ) from error
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(
                f"{self.path}: files and batches cannot be kept there: {reason}"
            ) from error

    def all(self) -> Iterator[Path]:
        """Yield the existing folders of all tenants."""
        if self.path.is_dir():
            yield from (path for path in sorted(self.path.iterdir()) if path.is_dir())

    def close(self) -> None:
        """Release the lock. Idempotent."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


class Records(Generic[R]):
    """All records of one kind: the files, or the batches.

    The ids begin with ``prefix``. ``noun`` names the kind in error messages. ``from_fields``
    returns the record for the fields that `StoredRecord.to_fields` returned.
    """

    def __init__(
        self,
        folders: TenantFolders,
        prefix: str,
        noun: str,
        from_fields: Callable[[Mapping[str, Any]], R],
    ) -> None:
        self._folders = folders
        self._prefix, self._noun = prefix, noun
        self._records: defaultdict[str, dict[str, R]] = defaultdict(dict)
        self._writing = asyncio.Lock()
        for folder in folders.all():
            loaded = [
                record
                for path in folder.glob(f"{prefix}*.json")
                if (record := _read(path, from_fields))
            ]
            for record in sorted(loaded, key=lambda record: (record.number, record.id)):
                self._records[record.tenant][record.id] = record

    def new_id(self) -> str:
        """Return a new random id, which cannot be guessed."""
        return f"{self._prefix}{token_hex(_ID_BYTES)}"

    def next_number(self, tenant: str) -> int:
        """Return the number of a tenant's next record."""
        last = next(reversed(self._records[tenant].values()), None)
        return 1 if last is None else last.number + 1

    def all(self) -> list[R]:
        """Return the records of all tenants: for each tenant, the oldest record first."""
        return [record for records in self._records.values() for record in records.values()]

    def of(self, tenant: str) -> list[R]:
        """Return the records of a tenant, the oldest record first."""
        return list(self._records[tenant].values())

    def find(self, tenant: str, record_id: str) -> R | None:
        """Return a tenant's record; None if the tenant has no record with this id."""
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
        matches: Callable[[R], bool] = lambda record: True,
    ) -> dict[str, Any]:
        """Return a page of a tenant's records, in the form of OpenAI's lists.

        - ``after``: the id of the last record of the previous page; None for the first page.
        - ``limit``: the maximum number of records of the page.
        - ``ascending``: whether the oldest record comes first, and not the newest.
        - ``matches``: the page has only records for which this function returns True.

        Raises `ApiError` if the tenant has no record with the id ``after``.
        """
        records = self.of(tenant) if ascending else self.of(tenant)[::-1]
        if after is not None:
            ids = [record.id for record in records]
            if after not in ids:
                text = f"after: no such {self._noun}: {after!r}; pass the last id of a page"
                raise ApiError(400, text, param="after", code="invalid_value")
            records = records[ids.index(after) + 1 :]
        matching = [record for record in records if matches(record)]
        data = [record.to_json() for record in matching[:limit]]
        return {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": len(matching) > limit,
        }

    async def put(self, record: R) -> None:
        """Add or replace a record. It is on the disk when this returns. Raises `OSError` if it
        cannot be written.
        """
        # The fields are read under the lock, so that the last write has the last state.
        async with self._writing:
            text = json.dumps(record.to_fields())
            folder = self._folders.create(record.tenant)
            await asyncio.to_thread(_replace, folder / f"{record.id}.json", text)
        self._records[record.tenant][record.id] = record

    async def remove(self, record: R) -> None:
        """Remove a record. Raises `OSError` if its file cannot be removed."""
        self._records[record.tenant].pop(record.id, None)
        async with self._writing:
            path = self._folders.of(record.tenant) / f"{record.id}.json"
            await asyncio.to_thread(path.unlink, missing_ok=True)


def _read(path: Path, from_fields: Callable[[Mapping[str, Any]], R]) -> R | None:
    try:
        return from_fields(files.read_json(path))
    except (OSError, ValueError, TypeError, KeyError) as error:
        _log.warning(
            "%s is ignored because it is not a record that this server can read: %s", path, error
        )
        return None


def _replace(path: Path, text: str) -> None:
    with files.replacing(path) as file:
        file.write(text.encode())
