"""Threads that do not stay: each so many minutes after its last change."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from agentrt.serving.langgraph._compat import keep_latest, tables_of_threads
from agentrt.serving.langgraph.database import Database
from agentrt.serving.langgraph.responses import timestamp
from agentrt.serving.langgraph.tables import (
    ACTIVE,
    crons,
    events,
    lifetimes,
    runs,
    threads,
    webhooks,
)
from agentrt.serving.lifetimes import Ttl

_AT_ONCE = 1000
_MINUTE_S = 60.0


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
