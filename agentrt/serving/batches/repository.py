"""The repositories of files and batches, which hold all records in memory and write each change to
the storage. The records are read when the server starts.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from secrets import token_hex
from typing import Any, Generic, Protocol, TypeVar

from agentrt import files
from agentrt.serving.batches.storage import BatchStorage
from agentrt.serving.error_responses import ApiError

_ID_BYTES = 12
_log = logging.getLogger(__name__)


class StoredRecord(Protocol):
    """A stored file or batch of a tenant.

    ``number`` grows with each new record of the tenant, so that records that were created in the
    same second are also listed in the order of their creation.
    """

    @property
    def id(self) -> str: ...

    @property
    def tenant(self) -> str: ...

    @property
    def number(self) -> int: ...

    def to_fields(self) -> Mapping[str, Any]:
        """Return all fields, as they are stored."""

    def to_json(self) -> Mapping[str, Any]:
        """Return the object for clients, as OpenAI's API defines it."""


R = TypeVar("R", bound=StoredRecord)


class Repository(Generic[R]):
    """A repository of all records of one kind: the files, or the batches.

    The ids begin with ``prefix``. ``noun`` names the kind in error messages. ``from_fields``
    returns the record for the fields that `StoredRecord.to_fields` returned.
    """

    def __init__(
        self,
        storage: BatchStorage,
        prefix: str,
        noun: str,
        from_fields: Callable[[Mapping[str, Any]], R],
    ) -> None:
        self._storage = storage
        self._prefix, self._noun = prefix, noun
        self._records: dict[str, dict[str, R]] = {}
        self._writing = asyncio.Lock()
        loaded = [
            record
            for name, text in storage.records(prefix)
            if (record := _read(name, text, from_fields))
        ]
        for record in sorted(loaded, key=lambda record: (record.number, record.id)):
            self._records.setdefault(record.tenant, {})[record.id] = record
        self._last_number = max((record.number for record in loaded), default=0)

    def new_id(self) -> str:
        """Return a new random id, which cannot be guessed."""
        return f"{self._prefix}{token_hex(_ID_BYTES)}"

    def next_number(self) -> int:
        """Return the number of a new record. No other record gets this number."""
        self._last_number += 1
        return self._last_number

    def all(self) -> list[R]:
        """Return the records of all tenants: for each tenant, the oldest record first."""
        return [record for records in self._records.values() for record in records.values()]

    def of(self, tenant: str) -> list[R]:
        """Return the records of a tenant, the oldest record first."""
        return list(self._records.get(tenant, {}).values())

    def find(self, tenant: str, record_id: str) -> R | None:
        """Return a tenant's record; None if the tenant has no record with this id."""
        return self._records.get(tenant, {}).get(record_id)

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
        """Add or replace a record. The record is stored when this method returns. Raises `OSError`
        if the record cannot be written.
        """
        # The fields are read under the lock, so that the last write has the last state.
        async with self._writing:
            text = json.dumps(record.to_fields())
            await asyncio.to_thread(self._storage.put_record, record.tenant, record.id, text)
        self._records.setdefault(record.tenant, {})[record.id] = record

    async def remove(self, record: R) -> None:
        """Remove a record. Raises `OSError` if the record cannot be removed from the storage."""
        records = self._records.get(record.tenant, {})
        records.pop(record.id, None)
        if not records:  # a server without keys has a tenant for each name in a header
            self._records.pop(record.tenant, None)
        async with self._writing:
            await asyncio.to_thread(self._storage.remove_record, record.tenant, record.id)


def _read(name: str, text: str, from_fields: Callable[[Mapping[str, Any]], R]) -> R | None:
    try:
        return from_fields(files.parse_json(text))
    except (ValueError, TypeError, KeyError) as error:
        _log.warning(
            "%s is ignored because it is not a record that this server can read: %s", name, error
        )
        return None
