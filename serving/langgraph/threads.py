"""Threads: what lasts over several runs. Their states are LangGraph's checkpoints."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, Row, Update, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from agentrt.serving.langgraph import bodies
from agentrt.serving.langgraph.answers import conflict, missing
from agentrt.serving.langgraph.assistants import Filter
from agentrt.serving.langgraph.database import Database, has
from agentrt.serving.langgraph.encoding import instant
from agentrt.serving.langgraph.schema import events, runs, threads

ACTIVE = ("pending", "running")
"""The statuses of a run that has not ended."""
_TIMES = ("created_at", "updated_at", "state_updated_at")


def as_json(row: Row[Any] | Mapping[str, Any]) -> dict[str, Any]:
    """A thread as clients see it."""
    one = dict(row._mapping if isinstance(row, Row) else row)
    del one["tenant"], one["temporary"]
    for key in _TIMES:
        one[key] = instant(one[key])
    return one


class Threads:
    """The threads of all tenants; every question names whose."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, tenant: str, key: UUID, only: Filter = None) -> Row[Any]:
        """The thread, or 404."""
        async with self._database.reading() as connection:
            return await find(connection, tenant, key, only)

    async def create(
        self, tenant: str, body: bodies.ThreadCreate, only: Filter = None
    ) -> tuple[dict[str, Any], bool]:
        """The thread, and whether it is new. Raises 409 if its id is taken, by whomever, and the
        body does not allow that.
        """
        key, is_new = body.thread_id or uuid4(), True
        try:
            async with self._database.writing() as connection:
                await add(connection, tenant, key, body.metadata)
        except IntegrityError:
            if body.if_exists == "raise":
                raise conflict(f"thread {key} exists already") from None
            is_new = False
        return as_json(await self.get(tenant, key, only)), is_new

    async def patch(
        self, tenant: str, key: UUID, metadata: Mapping[str, Any], only: Filter
    ) -> dict[str, Any]:
        """Merge metadata."""
        async with self._database.writing() as connection:
            row = await find(connection, tenant, key, only, lock=True)
            merged = {**row._mapping["metadata"], **metadata}
            await change(connection, key, {"metadata": merged, "updated_at": time.time()})
        return as_json(await self.get(tenant, key))

    async def search(
        self, tenant: str, body: bodies.ThreadSearch, only: Filter
    ) -> list[dict[str, Any]]:
        """Those that fit, some at a time."""
        column = threads.c[body.sort_by]
        order = column.asc() if body.sort_order == "asc" else column.desc()
        asked = select(threads).where(*_fits(tenant, body, only))
        if body.ids is not None:
            asked = asked.where(threads.c.thread_id.in_([str(one) for one in body.ids]))
        asked = asked.order_by(order, threads.c.thread_id).limit(body.limit).offset(body.offset)
        async with self._database.reading() as connection:
            found = [as_json(row) for row in await connection.execute(asked)]
        return [{k: one[k] for k in body.select} for one in found] if body.select else found

    async def count(self, tenant: str, body: bodies.ThreadCount, only: Filter) -> int:
        """How many fit."""
        asked = select(func.count()).select_from(threads).where(*_fits(tenant, body, only))
        async with self._database.reading() as connection:
            return int((await connection.execute(asked)).scalar_one())

    async def settle(
        self, key: str, standing: Mapping[str, Any], ending: Update | None = None
    ) -> None:
        """How the thread stands now that its state was changed, or a run has ended: see
        `Runs.ending`.
        """
        now = time.time()
        async with self._database.writing() as connection:
            if ending is not None:
                await connection.execute(ending)
            active = select(func.count()).select_from(runs)
            active = active.where(runs.c.thread_id == key, runs.c.status.in_(ACTIVE))
            busy = (await connection.execute(active)).scalar_one() > 0
            status = "busy" if busy else standing["status"]
            changed = {**standing, "status": status, "updated_at": now, "state_updated_at": now}
            await change(connection, UUID(key), changed)

    async def remove(self, keys: Collection[str]) -> None:
        """Our rows of threads, their runs and events."""
        async with self._database.writing() as connection:
            of_them = select(runs.c.run_id).where(runs.c.thread_id.in_(keys))
            await connection.execute(delete(events).where(events.c.run_id.in_(of_them)))
            await connection.execute(delete(runs).where(runs.c.thread_id.in_(keys)))
            await connection.execute(delete(threads).where(threads.c.thread_id.in_(keys)))

    async def left_over(self, before: float) -> list[str]:
        """The temporary threads whose runs had all ended at that time."""
        active = select(runs.c.thread_id).where(runs.c.status.in_(ACTIVE))
        asked = select(threads.c.thread_id).where(
            threads.c.temporary,
            threads.c.updated_at < before,
            threads.c.thread_id.not_in(active),
        )
        async with self._database.reading() as connection:
            return list((await connection.execute(asked)).scalars())


# -- inside a transaction -----------------------------------------------------------------


async def find(
    connection: AsyncConnection, tenant: str, key: UUID, only: Filter, *, lock: bool = False
) -> Row[Any]:
    """The thread, or 404; with ``lock``, nobody else changes it before the transaction's end."""
    asked = select(threads).where(threads.c.thread_id == str(key), threads.c.tenant == tenant)
    if only:
        asked = asked.where(has(threads.c.metadata, only))
    row = (await connection.execute(asked.with_for_update() if lock else asked)).first()
    if row is None:
        raise missing("thread", key)
    return row


async def add(
    connection: AsyncConnection,
    tenant: str,
    key: UUID,
    metadata: Mapping[str, Any],
    *,
    temporary: bool = False,
) -> None:
    """A new, idle thread. Raises `IntegrityError` if its id is taken."""
    now = time.time()
    row = {
        "thread_id": str(key),
        "tenant": tenant,
        "status": "idle",
        "temporary": temporary,
        "metadata": metadata,
        "config": {},
        "values": None,
        "interrupts": {},
        "error": None,
        **dict.fromkeys(_TIMES, now),
    }
    await connection.execute(insert(threads).values(row))


async def change(connection: AsyncConnection, key: UUID, values: Mapping[str, Any]) -> None:
    """Set columns of a thread."""
    await connection.execute(
        update(threads).where(threads.c.thread_id == str(key)).values(dict(values))
    )


def _fits(tenant: str, body: bodies.ThreadCount, only: Filter) -> Sequence[ColumnElement[bool]]:
    column = threads.c
    asked: list[ColumnElement[bool]] = [column.tenant == tenant, ~column.temporary]
    if body.status is not None:
        asked.append(column.status == body.status)
    for field, wanted in ((column.metadata, body.metadata), (column["values"], body.values)):
        if wanted:
            asked.append(has(field, wanted))
    if only:
        asked.append(has(column.metadata, only))
    return asked
