"""Threads: what lasts over several runs. Their states are LangGraph's checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from agentrt.serving.langgraph import bodies
from agentrt.serving.langgraph.database import Database
from agentrt.serving.langgraph.expiry import Deadlines
from agentrt.serving.langgraph.lifetimes import in_use, removal, set_lifetime
from agentrt.serving.langgraph.quotas import Quotas
from agentrt.serving.langgraph.responses import conflict, not_found, timestamp
from agentrt.serving.langgraph.tables import ACTIVE, Filter, matching, runs, threads
from agentrt.serving.lifetimes import Ttl

_TIMES = ("created_at", "updated_at", "state_updated_at")
_AT_ONCE = 1000
"""Threads that are deleted in one transaction."""


def thread_json(row: sa.Row[Any]) -> dict[str, Any]:
    """A thread as clients see it."""
    one = dict(row._mapping)
    del one["tenant"], one["temporary"]
    for key in _TIMES:
        one[key] = timestamp(one[key])
    return one


class Threads:
    """The threads of all tenants; every request names its tenant.

    ``asks`` is called when a thread has new questions to a human, or none any more; until when
    they can be answered is noted in ``deadlines``.
    """

    def __init__(
        self,
        database: Database,
        quotas: Quotas,
        asks: Callable[[], None] = lambda: None,
        deadlines: Deadlines | None = None,
    ) -> None:
        self._database = database
        self._quotas = quotas
        self._asks = asks
        self._deadlines = deadlines or Deadlines()

    async def get(self, tenant: str, key: UUID, only: Filter = None) -> sa.Row[Any]:
        """The thread, or 404."""
        async with self._database.reading() as connection:
            return await find_thread(connection, tenant, key, only)

    async def create(
        self, tenant: str, body: bodies.ThreadCreate, only: Filter = None
    ) -> tuple[dict[str, Any], bool]:
        """The thread, and whether it is new. Raises 409 if its id is taken, by any tenant, and
        the body does not allow that.
        """
        key, is_new = body.thread_id or uuid4(), True
        try:
            async with self._database.writing() as connection:
                await new_thread(connection, self._quotas, tenant, key, body.metadata, body.ttl)
        except IntegrityError:
            if body.if_exists == "raise":
                raise conflict(f"thread {key} exists already") from None
            is_new = False
        return thread_json(await self.get(tenant, key, only)), is_new

    async def patch(
        self, tenant: str, key: UUID, metadata: Mapping[str, Any], ttl: Ttl | None, only: Filter
    ) -> dict[str, Any]:
        """Merge metadata, and keep the thread for so long from now on."""
        async with self._database.writing() as connection:
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
        async with self._database.writing() as connection:
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
            self._deadlines.note(state.get("interrupts"))

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
    connection: AsyncConnection, tenant: str, key: UUID, only: Filter, *, lock: bool = False
) -> sa.Row[Any]:
    """The thread, or 404; ``lock`` keeps others from changing it until the transaction's end."""
    this = matching(threads, tenant, {"thread_id": str(key)}, [("metadata", only)])
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
        **dict.fromkeys(_TIMES, time.time()),
    }
    await connection.execute(sa.insert(threads).values(row))


async def change_thread(connection: AsyncConnection, key: UUID, values: Mapping[str, Any]) -> None:
    """Set columns of a thread."""
    where = threads.c.thread_id == str(key)
    await connection.execute(sa.update(threads).where(where).values(dict(values)))
