"""Quotas: how much of the database a tenant may fill. A server without API keys has no quotas."""

from __future__ import annotations

import time
from dataclasses import dataclass
from zlib import crc32

import sqlalchemy as sa
from fastapi import HTTPException
from sqlalchemy.ext.asyncio import AsyncConnection

from agentrt.serving.langgraph.database._compat import store
from agentrt.serving.langgraph.database.connections import Database
from agentrt.serving.langgraph.database.tables import assistants, crons, threads
from agentrt.serving.lifetimes import ThreadTtl
from agentrt.serving.server import Server

_COUNT_AGAIN_S = 10.0
_LIMITS = {threads.name: "threads", assistants.name: "assistants", crons.name: "crons"}
"""The name of a tenant's limit on the number of its rows in each table."""


@dataclass(slots=True)
class _Stored:
    """The size of a tenant's items in the store: their characters at the last count plus the bytes
    of the items that were written since then.
    """

    size: int
    counted_at: float


class Quotas:
    """The quotas of all tenants of ``server``. Methods raise 507 if a tenant exceeds its quota."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stored: dict[str, _Stored] = {}

    @property
    def lifetime(self) -> ThreadTtl | None:
        """The default lifetime of threads; None means no limit."""
        return self._server.lifetimes.threads

    async def adding(self, connection: AsyncConnection, table: sa.Table, tenant: str) -> None:
        """Let no other transaction add rows of a tenant to ``table`` until this one ends, so that
        `added` counts all rows. Call this before the transaction adds a row.

        SQLite has one writer at a time. On PostgreSQL, a transaction does not see the rows that
        others have not committed. A transaction that also locks rows must lock them before this.
        """
        limit = _LIMITS[table.name]
        if connection.dialect.name == "postgresql" and self._most(tenant, limit) is not None:
            key = [_lock_number(text) for text in (table.name, tenant)]
            await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(*key)))

    async def added(self, connection: AsyncConnection, table: sa.Table, tenant: str) -> None:
        """Check a tenant's number of rows after this transaction has added a row to ``table``, and
        has called `adding` before.

        Raises 507 if the tenant has too many rows; the caller must then roll the transaction back.
        """
        limit = _LIMITS[table.name]
        most = self._most(tenant, limit)
        if most is None:
            return
        rows = sa.select(sa.func.count()).select_from(table).where(table.c.tenant == tenant)
        count = (await connection.execute(rows)).scalar_one()
        if count > most:
            raise _full(tenant, f"{count - 1} {limit}", limit, most)

    async def new_item(self, database: Database, tenant: str, root: str, size: int) -> None:
        """Check the size of a tenant's items before adding an item of ``size`` bytes.

        The namespaces of the tenant's items begin with the label ``root``. Raises 507 if the item
        does not fit.
        """
        most = self._most(tenant, "store_mib")
        if most is None:
            return
        room, stored = most * 2**20 - size, self._stored.get(tenant)
        if stored is None or (stored.size > room and _age(stored) > _COUNT_AGAIN_S):
            counted = await _count(database, root)
            # If another request has counted meanwhile, its count includes the items that were
            # allowed since then.
            if self._stored.get(tenant) is stored:
                self._stored[tenant] = counted
            stored = self._stored[tenant]
        if stored.size > room:
            raise _full(tenant, f"{stored.size >> 20} MiB in the store", "store_mib", most)
        stored.size += size

    def _most(self, tenant: str, limit: str) -> int | None:
        if self._server.keys is None:
            return None
        most: int | None = getattr(self._server.tenants.limits(tenant), limit)
        return most


def _lock_number(text: str) -> int:
    """Return the signed number of 32 bits for which PostgreSQL holds an advisory lock. If two
    tenants have the same number, they only wait for each other.
    """
    return int.from_bytes(crc32(text.encode()).to_bytes(4, "big"), "big", signed=True)


def within(prefix: sa.Column[str], root: str) -> sa.ColumnElement[bool]:
    """Return the condition that a row of the store is in a namespace that begins with the label
    ``root``. The condition does not use LIKE, because LIKE ignores case in SQLite.
    """
    beneath = f"{root}."
    return sa.or_(prefix == root, sa.func.substr(prefix, 1, len(beneath)) == beneath)


async def _count(database: Database, root: str) -> _Stored:
    size = sa.func.sum(sa.func.length(sa.cast(store.c["value"], sa.Text)))
    row = await database.first(sa.select(size).where(within(store.c.prefix, root)))
    return _Stored(int((row and row[0]) or 0), time.monotonic())


def _age(stored: _Stored) -> float:
    return time.monotonic() - stored.counted_at


def _full(tenant: str, has: str, limit: str, most: int) -> HTTPException:
    return HTTPException(
        507,
        f"tenant {tenant!r} has {has}, and its limit {limit!r} is {most}; delete unneeded data",
    )
