"""Threads: what lasts over several runs, for ever or for a time. Their states are LangGraph's
checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from agentrt.serving.langgraph import bodies
from agentrt.serving.langgraph.database._compat import keep_latest, tables_of_threads
from agentrt.serving.langgraph.database.connections import Database
from agentrt.serving.langgraph.database.filters import Filter
from agentrt.serving.langgraph.database.interrupts import Deadlines, deadline_of, interrupts_in
from agentrt.serving.langgraph.database.quotas import Quotas
from agentrt.serving.langgraph.database.tables import (
    ACTIVE,
    crons,
    events,
    lifetimes,
    matching,
    runs,
    threads,
    webhooks,
)
from agentrt.serving.langgraph.responses import conflict, not_found, row_json, timestamp
from agentrt.serving.lifetimes import Ttl

_AT_ONCE = 1000
"""Threads that are deleted in one transaction, or swept one after the other."""
_MINUTE_S = 60.0


def thread_json(row: sa.Row[Any]) -> dict[str, Any]:
    """A thread as clients see it."""
    return row_json(row, "tenant", "temporary")


class Threads:
    """The threads of all tenants; every request names its tenant.

    ``asks`` is called when a thread has new questions to a human, or none any more; until when
    they can be answered is noted in ``deadlines``.
    """

    def __init__(
        self,
        database: Database,
        quotas: Quotas,
        asks: Callable[[], None],
        deadlines: Deadlines,
    ) -> None:
        self._database = database
        self._quotas = quotas
        self._asks = asks
        self._deadlines = deadlines

    async def get(self, tenant: str, key: UUID, only: Filter | None = None) -> sa.Row[Any]:
        """The thread, or 404."""
        async with self._database.reading() as connection:
            return await find_thread(connection, tenant, key, only)

    async def create(
        self, tenant: str, body: bodies.ThreadCreate, only: Filter | None = None
    ) -> tuple[dict[str, Any], bool]:
        """The thread, and whether it is new. Raises 409 if its id is taken, unless the body allows
        that and ``only`` allows the thread that has it; 404 if another tenant has the thread.
        """
        key = body.thread_id or uuid4()
        try:
            async with self._database.writing(rows=True) as connection:
                await new_thread(connection, self._quotas, tenant, key, body.metadata, body.ttl)
        except IntegrityError:
            there = None if body.if_exists == "raise" else await self.get(tenant, key)
            if there is None or (only is not None and not only.allows(there._mapping["metadata"])):
                raise conflict(f"thread {key} exists already") from None
            return thread_json(there), False
        return thread_json(await self.get(tenant, key)), True

    async def patch(
        self,
        tenant: str,
        key: UUID,
        metadata: Mapping[str, Any],
        ttl: Ttl | None,
        only: Filter | None,
    ) -> dict[str, Any]:
        """Merge metadata, and keep the thread for so long from now on."""
        async with self._database.writing(rows=True) as connection:
            row = await find_thread(connection, tenant, key, only, lock=True)
            merged = {**row._mapping["metadata"], **metadata}
            await change_thread(connection, key, {"metadata": merged, "updated_at": time.time()})
            await set_lifetime(connection, str(key), ttl)
        return thread_json(await self.get(tenant, key))

    async def update_state(
        self, key: str, state: Mapping[str, Any], *run_end: sa.Executable
    ) -> None:
        """Store the state of a thread (`thread_state`) after it was changed or a run has ended;
        with the statements of that end (`Runs.end`).
        """
        now = time.time()
        async with self._database.writing(rows=True) as connection:
            for statement in run_end:
                await connection.execute(statement)
            active = sa.select(sa.func.count()).select_from(runs)
            active = active.where(runs.c.thread_id == key, runs.c.status.in_(ACTIVE))
            busy = (await connection.execute(active)).scalar_one() > 0
            asked = sa.select(threads.c.interrupts).where(threads.c.thread_id == key)
            before = (await connection.execute(asked)).scalar()
            status = "busy" if busy else state["status"]
            changed = {**state, "status": status, "updated_at": now, "state_updated_at": now}
            await change_thread(connection, UUID(key), changed)
        if before or state.get("interrupts"):
            self._asks()
            for one in interrupts_in(state.get("interrupts")):
                self._deadlines.note(deadline_of(one))

    async def remove(self, keys: Sequence[str]) -> None:
        """Delete threads with all that is theirs."""
        for start in range(0, len(keys), _AT_ONCE):  # a statement takes so many values
            few = keys[start : start + _AT_ONCE]
            await self._database.write(*removal(self._database, few))
        self._asks()

    async def left_over(self, before: float) -> list[str]:
        """The temporary threads whose runs had all ended at that time."""
        c = threads.c
        old = (c.temporary, c.updated_at < before, c.thread_id.not_in(in_use()))
        return [row[0] for row in await self._database.rows(sa.select(c.thread_id).where(*old))]


# -- inside a transaction -----------------------------------------------------------------


async def find_thread(
    connection: AsyncConnection, tenant: str, key: UUID, only: Filter | None, *, lock: bool = False
) -> sa.Row[Any]:
    """The thread, or 404; ``lock`` keeps others from changing it until the transaction's end."""
    this = matching(threads, tenant, {"thread_id": str(key)}, only=only)
    query = sa.select(threads).where(*this)
    row = (await connection.execute(query.with_for_update() if lock else query)).first()
    if row is None:
        raise not_found("thread", key)
    return row


async def new_thread(
    connection: AsyncConnection,
    quotas: Quotas,
    tenant: str,
    key: UUID,
    metadata: Mapping[str, Any],
    ttl: Ttl | None = None,
    *,
    temporary: bool = False,
) -> None:
    """A new thread, which is kept for as long as ``ttl`` says. Raises `IntegrityError` if its id
    is taken, and 507 where the tenant has as many as it may.
    """
    await add_thread(connection, tenant, key, metadata, temporary=temporary)
    if not temporary:
        await set_lifetime(connection, str(key), ttl or quotas.lifetime)
    await quotas.added(connection, threads, tenant)


async def add_thread(
    connection: AsyncConnection,
    tenant: str,
    key: UUID,
    metadata: Mapping[str, Any],
    *,
    temporary: bool = False,
) -> None:
    """A new, idle thread. Raises `IntegrityError` if its id is taken."""
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
        **dict.fromkeys(("created_at", "updated_at", "state_updated_at"), time.time()),
    }
    await connection.execute(sa.insert(threads).values(row))


async def change_thread(connection: AsyncConnection, key: UUID, values: Mapping[str, Any]) -> None:
    """Set columns of a thread."""
    where = threads.c.thread_id == str(key)
    await connection.execute(sa.update(threads).where(where).values(dict(values)))


# -- threads that do not stay: each so many minutes after its last change ------------------


def removal(database: Database, keys: Collection[str]) -> list[sa.Delete]:
    """Delete threads whole: LangGraph's rows of them and ours, with their runs and crons."""
    run_ids = sa.select(runs.c.run_id).where(runs.c.thread_id.in_(keys))
    tables = (*tables_of_threads(database), runs, crons, lifetimes, threads)
    of_them = [sa.delete(one).where(one.c.thread_id.in_(keys)) for one in tables]
    return [sa.delete(events).where(events.c.run_id.in_(run_ids)), *of_them]


def in_use() -> sa.CompoundSelect[Any]:
    """The threads that stay: a run has not ended, or its webhook is still to be called."""
    active = sa.select(runs.c.thread_id).where(runs.c.status.in_(ACTIVE))
    unsent = sa.select(runs.c.thread_id).join(webhooks, webhooks.c.run_id == runs.c.run_id)
    return sa.union_all(active, unsent)


async def set_lifetime(connection: AsyncConnection, thread: str, ttl: Ttl | None) -> None:
    """Keep a thread so long from now on; None leaves it as it is."""
    if ttl is None:
        return
    row = {"strategy": ttl.strategy, "minutes": ttl.ttl, "swept_at": None}
    mine = lifetimes.c.thread_id == thread
    changed = await connection.execute(sa.update(lifetimes).where(mine).values(row))
    if not changed.rowcount:
        await connection.execute(sa.insert(lifetimes).values(thread_id=thread, **row))


async def lifetime_json(database: Database, row: sa.Row[Any]) -> dict[str, Any] | None:
    """How long a thread is kept, as clients see it; None is for ever."""
    query = sa.select(lifetimes).where(lifetimes.c.thread_id == row.thread_id)
    found = await database.first(query)
    if found is None:
        return None
    over = timestamp(row.updated_at + found.minutes * _MINUTE_S)
    return {"strategy": found.strategy, "ttl_minutes": found.minutes, "expires_at": over}


async def sweep(database: Database, now: float) -> int:
    """Delete, or shorten, the threads whose time is over; how many."""
    swept = 0
    for row in await database.rows(_over(now).limit(_AT_ONCE)):
        deletes = row.strategy == "delete"
        if not await _claim(database, row.thread_id, now, deletes=deletes):
            continue
        if not deletes:
            await keep_latest(database, row.thread_id)
        swept += 1
    return swept


def _over(now: float) -> sa.Select[Any]:
    """The threads whose time is over, and that nobody uses."""
    c = lifetimes.c
    return (
        sa.select(threads.c.thread_id, c.strategy)
        .select_from(sa.join(threads, lifetimes, threads.c.thread_id == c.thread_id))
        .where(
            threads.c.updated_at + c.minutes * _MINUTE_S < now,
            sa.or_(c.swept_at.is_(None), c.swept_at < threads.c.updated_at),
            threads.c.thread_id.not_in(in_use()),
        )
    )


async def _claim(database: Database, thread: str, now: float, *, deletes: bool) -> bool:
    """Take a thread away, or mark it as swept. False if it is used again meanwhile."""
    async with database.writing() as connection:
        this = _over(now).where(threads.c.thread_id == thread).with_for_update(of=threads)
        if (await connection.execute(this)).first() is None:
            return False
        mine = lifetimes.c.thread_id == thread
        marked = [sa.update(lifetimes).where(mine).values(swept_at=now)]
        for statement in removal(database, [thread]) if deletes else marked:
            await connection.execute(statement)
        return True
