"""The rows of threads. The states of threads are LangGraph's checkpoints.

A thread outlives its runs. It may have a lifetime, at whose end the server deletes the thread or
only the thread's older checkpoints. The temporary thread of a stateless run is deleted some time
after the run's end.
"""

from __future__ import annotations

import json
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
from agentrt.serving.langgraph.database.filters import Filter, visible
from agentrt.serving.langgraph.database.interrupts import (
    Deadlines,
    deadline_of,
    interrupts_in,
    is_open,
)
from agentrt.serving.langgraph.database.quotas import Quotas
from agentrt.serving.langgraph.database.tables import (
    ACTIVE,
    crons,
    events,
    lifetimes,
    runs,
    threads,
    webhooks,
)
from agentrt.serving.langgraph.responses import conflict, not_found, row_json, timestamp
from agentrt.serving.lifetimes import ThreadTtl

_AT_ONCE = 1000
"""Maximum number of threads that one transaction deletes, or that one sweep handles."""
_MINUTE_S = 60.0


def thread_json(row: sa.Row[Any]) -> dict[str, Any]:
    """Return a thread in the form that clients get."""
    return row_json(row, "tenant", "temporary")


class Threads:
    """The threads of all tenants. Before a method that takes no tenant is called for a client, the
    client's access to the thread must be checked.

    ``asks`` is called when the open questions of a thread may have changed. The deadlines of open
    questions are noted in ``deadlines``.
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
        """Return a thread. Raises 404 if the thread does not exist or the filter ``only``
        hides it.
        """
        async with self._database.reading() as connection:
            return await find_thread(connection, tenant, key, only)

    async def create(
        self, tenant: str, body: bodies.ThreadCreate, only: Filter | None = None
    ) -> tuple[dict[str, Any], bool]:
        """Create a thread unless it exists, and return the thread and whether it is new.

        If the thread exists, raises 409 unless the body's ``if_exists`` allows an existing thread
        and the thread passes the filter ``only``. Raises 404 if ``if_exists`` allows an existing
        thread, but the thread belongs to another tenant. Raises 507 if the tenant has reached its
        limit of threads.
        """
        key = body.thread_id or uuid4()
        try:
            async with self._database.writing(rows=True) as connection:
                row = await new_thread(
                    connection, self._quotas, tenant, key, body.metadata, body.ttl
                )
        except IntegrityError:
            stored = None if body.if_exists == "raise" else await self.get(tenant, key)
            if stored is None or (
                only is not None and not only.allows(stored._mapping["metadata"])
            ):
                raise conflict(f"thread {key} exists already") from None
            return thread_json(stored), False
        return thread_json(row), True

    async def patch(
        self,
        tenant: str,
        key: UUID,
        metadata: Mapping[str, Any],
        ttl: ThreadTtl | None,
        only: Filter | None,
    ) -> dict[str, Any]:
        """Merge ``metadata`` into a thread's metadata, set its lifetime to ``ttl`` if that is not
        None, and return the thread. Raises 404 if the thread does not exist or the filter ``only``
        hides it.
        """
        async with self._database.writing(rows=True) as connection:
            row = await find_thread(connection, tenant, key, only, lock=True)
            merged = {**row._mapping["metadata"], **metadata}
            await change_thread(connection, key, {"metadata": merged, "updated_at": time.time()})
            await set_lifetime(connection, str(key), ttl)
        return thread_json(await self.get(tenant, key))

    async def update_state(
        self, key: str, state: Mapping[str, Any], *run_end: sa.Executable
    ) -> None:
        """Store a thread's state (`thread_state`) after a change or at the end of a run.

        ``run_end`` are the statements that store the run's end (`Runs.end`), its webhook, and the
        last events of its stream; they are executed in the same transaction.
        """
        now = time.time()
        async with self._database.writing(rows=True) as connection:
            for statement in run_end:
                await connection.execute(statement)
            # Lock first, in a statement of its own: a statement that locks and reads would read the
            # runs as they were before PostgreSQL got the lock.
            await connection.execute(_LOCK, {_KEY: key})
            row = (await connection.execute(_BEFORE, {_KEY: key})).first()
            busy, before = (False, None) if row is None else row
            status = "busy" if busy else state["status"]
            changed = {**state, "status": status, "updated_at": now, "state_updated_at": now}
            await change_thread(connection, UUID(key), changed)
        if before or state.get("interrupts"):
            self._asks()
            for interrupt in interrupts_in(state.get("interrupts")):
                self._deadlines.note(deadline_of(interrupt))

    async def withdraw(self, key: str, questions: Collection[str], run_end: sa.Executable) -> bool:
        """Remove all questions of a thread, and execute ``run_end`` in the same transaction.
        ``questions`` are the ids of the questions that the caller knows. If one of these is not
        open any more, for example because a run answers it, return False and change nothing.
        """
        now = time.time()
        async with self._database.writing(rows=True) as connection:
            await connection.execute(_LOCK, {_KEY: key})  # a statement of its own, as above
            row = (await connection.execute(_BEFORE, {_KEY: key})).first()
            rows = (await connection.execute(_ACTIVE_KWARGS, {_KEY: key})).all()
            active = [json.loads(run.kwargs) for run in rows]
            if row is None or not all(is_open(q, row.interrupts, active) for q in questions):
                return False
            await connection.execute(run_end)
            changed: dict[str, Any] = {"status": "busy" if active else "idle", "interrupts": {}}
            changed |= {"updated_at": now, "state_updated_at": now}
            await change_thread(connection, UUID(key), changed)
        self._asks()
        return True

    async def remove(self, keys: Sequence[str]) -> None:
        """Delete threads with their runs, events, checkpoints and crons."""
        for start in range(0, len(keys), _AT_ONCE):  # a statement has a limit of values
            batch = keys[start : start + _AT_ONCE]
            await self._database.write(*removal(self._database, batch))
        self._asks()

    async def left_over(self, before: float) -> list[str]:
        """Return the ids of the temporary threads that last changed before the time ``before``
        (seconds since 1970), and that no run and no webhook needs any more (`in_use`).
        """
        c = threads.c
        old = (c.temporary, c.updated_at < before, c.thread_id.not_in(in_use()))
        return [row[0] for row in await self._database.rows(sa.select(c.thread_id).where(*old))]


# -- inside a transaction -----------------------------------------------------------------

# Statements that a run needs are built once: building them takes as long as executing them.
_KEY = "of_thread"  # a parameter's name; a column's name would be a value to store
_FIND = sa.select(threads).where(
    threads.c.tenant == sa.bindparam("tenant"), threads.c.thread_id == sa.bindparam(_KEY)
)
_FIND_LOCKED = _FIND.with_for_update()
_INSERT = sa.insert(threads)
_CHANGE = sa.update(threads).where(threads.c.thread_id == sa.bindparam(_KEY))
_LOCK = sa.select(sa.literal(1)).where(threads.c.thread_id == sa.bindparam(_KEY)).with_for_update()
_IS_BUSY = sa.exists().where(runs.c.thread_id == threads.c.thread_id, runs.c.status.in_(ACTIVE))
_ACTIVE_KWARGS = sa.select(runs.c.kwargs).where(
    runs.c.thread_id == sa.bindparam(_KEY), runs.c.status.in_(ACTIVE)
)
_BEFORE = sa.select(_IS_BUSY, threads.c.interrupts).where(threads.c.thread_id == sa.bindparam(_KEY))


async def find_thread(
    connection: AsyncConnection, tenant: str, key: UUID, only: Filter | None, *, lock: bool = False
) -> sa.Row[Any]:
    """Return the row of a thread. Raises 404 if the thread does not exist or the filter ``only``
    hides it.

    ``lock`` keeps other transactions from changing the thread until this transaction's end.
    """
    query = _FIND_LOCKED if lock else _FIND
    if only is not None:
        query = query.where(*visible(threads.c.metadata, only))
    row = (await connection.execute(query, {_KEY: str(key), "tenant": tenant})).first()
    if row is None:
        raise not_found("thread", key)
    return row


async def new_thread(
    connection: AsyncConnection,
    quotas: Quotas,
    tenant: str,
    key: UUID,
    metadata: Mapping[str, Any],
    ttl: ThreadTtl | None = None,
    *,
    temporary: bool = False,
) -> sa.Row[Any]:
    """Insert a new thread with the lifetime ``ttl``, and return its row. If ``ttl`` is None, the
    server's default lifetime applies. A ``temporary`` thread gets no lifetime.

    Raises `IntegrityError` if the id is taken, and 507 if the tenant has reached its limit of
    threads.
    """
    await quotas.adding(connection, threads, tenant)
    row = await add_thread(connection, tenant, key, metadata, temporary=temporary)
    if not temporary:
        await set_lifetime(connection, str(key), ttl or quotas.lifetime)
    await quotas.added(connection, threads, tenant)
    return row


async def add_thread(
    connection: AsyncConnection,
    tenant: str,
    key: UUID,
    metadata: Mapping[str, Any],
    *,
    temporary: bool = False,
) -> sa.Row[Any]:
    """Insert a new, idle thread without a lifetime, and return its row.

    Raises `IntegrityError` if the id is taken.
    """
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
    # Not RETURNING: a transaction that is cancelled before it has read the row would keep the
    # statement open, and SQLite would refuse the next transaction of its group.
    await connection.execute(_INSERT, row)
    return (await connection.execute(_FIND, {_KEY: str(key), "tenant": tenant})).one()


async def change_thread(connection: AsyncConnection, key: UUID, values: Mapping[str, Any]) -> None:
    """Set the columns of a thread to ``values``."""
    await connection.execute(_CHANGE, {_KEY: str(key), **values})


# -- lifetimes: a thread expires some minutes after its last change ------------------------


def removal(database: Database, keys: Collection[str]) -> list[sa.Delete]:
    """Return the statements that delete threads with their runs, events, checkpoints and crons."""
    run_ids = sa.select(runs.c.run_id).where(runs.c.thread_id.in_(keys))
    tables = (*tables_of_threads(database), runs, crons, lifetimes, threads)
    deletes = [sa.delete(table).where(table.c.thread_id.in_(keys)) for table in tables]
    return [sa.delete(events).where(events.c.run_id.in_(run_ids)), *deletes]


def in_use() -> sa.CompoundSelect[Any]:
    """Return a query for the ids of threads that must stay, because a run has not ended or a
    webhook is still to be called.
    """
    active = sa.select(runs.c.thread_id).where(runs.c.status.in_(ACTIVE))
    unsent = sa.select(runs.c.thread_id).join(webhooks, webhooks.c.run_id == runs.c.run_id)
    return sa.union_all(active, unsent)


async def set_lifetime(connection: AsyncConnection, thread: str, ttl: ThreadTtl | None) -> None:
    """Set the lifetime of a thread; None leaves it unchanged."""
    if ttl is None:
        return
    row = {"strategy": ttl.strategy, "minutes": ttl.ttl, "swept_at": None}
    mine = lifetimes.c.thread_id == thread
    changed = await connection.execute(sa.update(lifetimes).where(mine).values(row))
    if not changed.rowcount:
        await connection.execute(sa.insert(lifetimes).values(thread_id=thread, **row))


async def lifetime_json(database: Database, row: sa.Row[Any]) -> dict[str, Any] | None:
    """Return the lifetime of a thread in the form that clients get; None means that the thread has
    no limit.
    """
    query = sa.select(lifetimes).where(lifetimes.c.thread_id == row.thread_id)
    lifetime = await database.first(query)
    if lifetime is None:
        return None
    expires_at = timestamp(row.updated_at + lifetime.minutes * _MINUTE_S)
    return {
        "strategy": lifetime.strategy,
        "ttl_minutes": lifetime.minutes,
        "expires_at": expires_at,
    }


async def sweep(database: Database, now: float) -> int:
    """Delete the expired threads whose strategy is ``delete``. Delete the older checkpoints of the
    other expired threads (`keep_latest`).

    Returns the number of threads that were handled, at most `_AT_ONCE`. ``now`` is in seconds since
    1970.
    """
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
    """Return a query for the expired threads that are not in use, and that no sweep has handled
    since their last change.
    """
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
    """Delete an expired thread if ``deletes``, and otherwise mark the thread as swept. Returns
    False, and changes nothing, if the thread has been used meanwhile.
    """
    async with database.writing() as connection:
        this = _over(now).where(threads.c.thread_id == thread).with_for_update(of=threads)
        if (await connection.execute(this)).first() is None:
            return False
        mine = lifetimes.c.thread_id == thread
        marked = [sa.update(lifetimes).where(mine).values(swept_at=now)]
        for statement in removal(database, [thread]) if deletes else marked:
            await connection.execute(statement)
        return True
