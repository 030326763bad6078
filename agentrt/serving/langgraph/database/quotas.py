"""How much of the database a tenant may fill. Without keys there is nobody to share it with."""

from __future__ import annotations

import time
from dataclasses import dataclass

import sqlalchemy as sa
from fastapi import HTTPException
from sqlalchemy.ext.asyncio import AsyncConnection

from agentrt.serving.langgraph.database._compat import store
from agentrt.serving.langgraph.database.connections import Database
from agentrt.serving.langgraph.database.tables import assistants, crons, threads
from agentrt.serving.lifetimes import Ttl
from agentrt.serving.server import Server

_COUNT_AGAIN_S = 10.0
_LIMITS = {threads.name: "threads", assistants.name: "assistants", crons.name: "crons"}
"""The limit of a tenant that bounds its rows in a table."""


@dataclass(slots=True)
class _Stored:
    """What a tenant has in the store: characters as they were counted, and written since."""

    size: int
    counted_at: float


class Quotas:
    """The quotas of all tenants of ``server``; each method raises 507 for one that is full."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stored: dict[str, _Stored] = {}

    @property
    def lifetime(self) -> Ttl | None:
        """How long a thread is kept that says nothing itself."""
        return self._server.lifetimes.threads

    async def added(self, connection: AsyncConnection, table: sa.Table, tenant: str) -> None:
        """A row was added in the transaction of ``connection``."""
        limit = _LIMITS[table.name]
        most = self._most(tenant, limit)
        if most is None:
            return
        rows = sa.select(sa.func.count()).select_from(table).where(table.c.tenant == tenant)
        count = (await connection.execute(rows)).scalar_one()
        if count > most:
            raise _full(tenant, f"{count - 1} {limit}", limit, most)

    async def new_item(self, database: Database, tenant: str, root: str, size: int) -> None:
        """An item of so many characters is to be put into the store, where the tenant has all
        that is beneath the label ``root``.
        """
        most = self._most(tenant, "store_mib")
        if most is None:
            return
        room, stored = most * 2**20 - size, self._stored.get(tenant)
        if stored is None or (stored.size > room and _age(stored) > _COUNT_AGAIN_S):
            stored = await _count(database, root)
            self._stored[tenant] = stored
        if stored.size > room:
            raise _full(tenant, f"{stored.size >> 20} MiB in the store", "store_mib", most)
        stored.size += size

    def _most(self, tenant: str, limit: str) -> int | None:
        if self._server.keys is None:
            return None
        most: int | None = getattr(self._server.tenants.limits(tenant), limit)
        return most


def within(prefix: sa.Column[str], root: str) -> sa.ColumnElement[bool]:
    """Whether a row of the store lies beneath the label ``root``. Not by LIKE, for which SQLite
    takes ``ACME`` as ``acme``.
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
        507, f"tenant {tenant!r} has {has}, and its limit {limit} is {most}: delete some"
    )
