"""Runs as they are kept: what was asked for, how they stand, what came of them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Row, Update, delete, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from agentrt.serving.langgraph.answers import conflict, missing
from agentrt.serving.langgraph.assistants import Filter
from agentrt.serving.langgraph.database import Database
from agentrt.serving.langgraph.encoding import encode, instant
from agentrt.serving.langgraph.schema import events, runs
from agentrt.serving.langgraph.threads import ACTIVE, add, change, find

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as it was asked for. ``kwargs`` is its body; times are seconds since 1970.

    ``origin`` is where the thread stood when the run first started
    (`agentrt.serving.langgraph.origins`); ``attempt`` counts its starts so far.
    """

    run_id: str
    thread_id: str
    tenant: str
    assistant_id: str
    graph_id: str
    attempt: int
    start_at: float
    metadata: Fields
    kwargs: Fields
    origin: Fields | None


@dataclass(frozen=True, slots=True)
class Order:
    """A run that is to be entered. ``lone`` ones get a thread, ``temporary`` or not."""

    assistant_id: str
    graph_id: str
    metadata: Fields
    kwargs: Fields
    strategy: str
    after_seconds: float
    lone: bool
    temporary: bool
    make_thread: bool


def as_json(row: Row[Any]) -> dict[str, Any]:
    """A run as clients see it."""
    one = dict(row._mapping)
    for key in ("tenant", "number", "attempt", "origin", "result", "start_at", "graph_id"):
        del one[key]
    one["kwargs"] = json.loads(one["kwargs"])
    for key in ("created_at", "updated_at"):
        one[key] = instant(one[key])
    return one


def record_of(row: Row[Any]) -> RunRecord:
    """A row as the queue takes it."""
    one = row._mapping
    return RunRecord(
        run_id=one["run_id"],
        thread_id=one["thread_id"],
        tenant=one["tenant"],
        assistant_id=one["assistant_id"],
        graph_id=one["graph_id"],
        attempt=one["attempt"],
        start_at=one["start_at"],
        metadata=one["metadata"],
        kwargs=json.loads(one["kwargs"]),
        origin=None if one["origin"] is None else json.loads(one["origin"]),
    )


class Runs:
    """The runs of all tenants; every question of a client names whose."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def enter(
        self, tenant: str, thread: UUID | None, order: Order, only: Filter
    ) -> tuple[Row[Any], list[str]]:
        """A new, pending run, and the ids of those that are active in its thread.

        Raises 404 for a thread that is not there, and 409 where the strategy is to reject.
        """
        key = thread or uuid4()
        async with self._database.writing() as connection:
            await self._open_thread(connection, tenant, key, order, only)
            others = await _active(connection, str(key))
            if others and order.strategy == "reject":
                raise conflict(
                    f"thread {key} has a run that has not ended; wait for it, or choose another "
                    "multitask_strategy"
                )
            run_id = str(uuid4())
            await connection.execute(insert(runs).values(_row(run_id, tenant, key, order)))
            row = (await connection.execute(select(runs).where(runs.c.run_id == run_id))).one()
        return row, others

    async def _open_thread(
        self, connection: AsyncConnection, tenant: str, key: UUID, order: Order, only: Filter
    ) -> None:
        """The run's thread, made if that was asked for, and busy now."""
        if order.lone:
            await add(connection, tenant, key, order.metadata, temporary=order.temporary)
        elif order.make_thread:
            try:
                async with connection.begin_nested():
                    await add(connection, tenant, key, order.metadata)
            except IntegrityError:
                pass
        row = await find(connection, tenant, key, None if order.lone else only, lock=True)
        about = {"graph_id": order.graph_id, "assistant_id": order.assistant_id}
        metadata = {**row._mapping["metadata"], **about}
        now = time.time()
        await change(connection, key, {"status": "busy", "metadata": metadata, "updated_at": now})

    async def get(self, tenant: str, thread: UUID, run: UUID) -> Row[Any]:
        """The run, or 404."""
        asked = select(runs).where(
            runs.c.run_id == str(run),
            runs.c.thread_id == str(thread),
            runs.c.tenant == tenant,
        )
        async with self._database.reading() as connection:
            row = (await connection.execute(asked)).first()
        if row is None:
            raise missing("run", run)
        return row

    async def of_thread(
        self, tenant: str, thread: UUID, status: str | None, limit: int, offset: int
    ) -> list[dict[str, Any]]:
        """The runs of a thread, the last one first."""
        asked = select(runs).where(runs.c.thread_id == str(thread), runs.c.tenant == tenant)
        if status is not None:
            asked = asked.where(runs.c.status == status)
        asked = asked.order_by(runs.c.number.desc()).limit(limit).offset(offset)
        async with self._database.reading() as connection:
            return [as_json(row) for row in await connection.execute(asked)]

    async def ids(self, tenant: str, statuses: Sequence[str]) -> Sequence[str]:
        """The ids of a tenant's runs of some statuses."""
        asked = select(runs.c.run_id).where(runs.c.tenant == tenant, runs.c.status.in_(statuses))
        async with self._database.reading() as connection:
            return (await connection.execute(asked)).scalars().all()

    async def active(self) -> Sequence[RunRecord]:
        """All runs that have not ended, as they came."""
        asked = select(runs).where(runs.c.status.in_(ACTIVE)).order_by(runs.c.number)
        async with self._database.reading() as connection:
            return [record_of(row) for row in await connection.execute(asked)]

    async def began(self, record: RunRecord) -> None:
        """The run is running: its attempt and its origin are as in ``record``."""
        await self._set(
            record.run_id,
            status="running",
            attempt=record.attempt,
            origin=encode(record.origin).decode(),
        )

    def ending(self, run_id: str, status: str, result: bytes, reason: str | None) -> Update:
        """What says that the run has ended; ``result`` is what those who wait for it get.

        `Threads.settle` does it together with what its thread becomes: whoever sees the one sees
        the other, whenever the server is killed. Where the run began matters no more.
        """
        return _changed(
            run_id, status=status, result=result.decode(), cancel_reason=reason, origin=None
        )

    async def _set(self, run_id: str, **values: Any) -> None:
        async with self._database.writing() as connection:
            await connection.execute(_changed(run_id, **values))

    async def forget_streams(self, before: float) -> None:
        """The events of runs that had ended at that time."""
        over = select(runs.c.run_id).where(runs.c.status.not_in(ACTIVE), runs.c.updated_at < before)
        async with self._database.writing() as connection:
            await connection.execute(delete(events).where(events.c.run_id.in_(over)))

    async def remove(self, run_id: str) -> None:
        """The run and its events, as if it had never been."""
        async with self._database.writing() as connection:
            await connection.execute(delete(events).where(events.c.run_id == run_id))
            await connection.execute(delete(runs).where(runs.c.run_id == run_id))


def _changed(run_id: str, **values: Any) -> Update:
    return update(runs).where(runs.c.run_id == run_id).values(**values, updated_at=time.time())


def _row(run_id: str, tenant: str, thread: UUID, order: Order) -> dict[str, Any]:
    now = time.time()
    return {
        "run_id": run_id,
        "thread_id": str(thread),
        "tenant": tenant,
        "assistant_id": order.assistant_id,
        "graph_id": order.graph_id,
        "status": "pending",
        "attempt": 0,
        "multitask_strategy": order.strategy,
        "metadata": order.metadata,
        "kwargs": encode(order.kwargs).decode(),
        "start_at": now + order.after_seconds,
        "created_at": now,
        "updated_at": now,
    }


async def _active(connection: AsyncConnection, thread: str) -> list[str]:
    asked = select(runs.c.run_id).where(runs.c.thread_id == thread, runs.c.status.in_(ACTIVE))
    return list((await connection.execute(asked.order_by(runs.c.number))).scalars())
