"""Runs in the database: what was asked for, their status, and their results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID, uuid4

import sqlalchemy as sa
from fastapi import HTTPException
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from agentrt.serving.langgraph.bodies import RunBody
from agentrt.serving.langgraph.database._compat import Origin
from agentrt.serving.langgraph.database.connections import Database
from agentrt.serving.langgraph.database.filters import Filter, stamped, visible
from agentrt.serving.langgraph.database.interrupts import is_open
from agentrt.serving.langgraph.database.quotas import Quotas
from agentrt.serving.langgraph.database.tables import (
    ACTIVE,
    ASKS,
    events,
    has,
    matching,
    runs,
    threads,
)
from agentrt.serving.langgraph.database.threads import change_thread, find_thread, new_thread
from agentrt.serving.langgraph.responses import conflict, encode, not_found, row_json

_UNSEEN = (
    "the filter of the authorization hook for threads.create_run does not let its user see the "
    "thread that this run would create: create the thread first, or set the metadata in the hook"
)
Fields = Mapping[str, Any]
Body = TypeVar("Body", bound=RunBody)
_INTERNAL = ("tenant", "number", "attempt", "origin", "result", "start_at", "graph_id")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as it was asked for. ``kwargs`` is its body; times are seconds since 1970. Runs have
    ``number`` in the order of their arrival.

    ``origin`` is where the thread stood when the run first started
    (`agentrt.serving.langgraph.runs.recovery`); ``attempt`` counts its starts so far.
    """

    run_id: str
    number: int
    thread_id: str
    tenant: str
    assistant_id: str
    graph_id: str
    attempt: int
    created_at: float
    start_at: float
    metadata: Fields
    kwargs: Fields
    origin: Origin | None

    def followed_by(self, kind: type[Body], **given: Any) -> Body:
        """A run as this one was: of its assistant, and with its config and its context."""
        config, context = self.kwargs.get("config") or {}, self.kwargs.get("context")
        own = {"assistant_id": self.assistant_id, "config": config, "context": context}
        return kind.model_validate({**own, **given})


_RECORD = [runs.c[name] for name in RunRecord.__slots__]
"""Without the result, which may be all that a thread has: nobody loads those of many runs."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be created, in ``thread`` or in a new one, which may be ``temporary``.

    ``make_thread``: the thread is created if it does not exist. ``inherited`` is the metadata
    of its assistant, and ``given`` the config of its body. ``answers`` is the id of the interrupt
    that the run answers, if it must be open. ``claim`` is a statement of the same transaction: if
    it changes no row, there is no run. ``user`` is the id of the user who starts it.
    """

    thread: UUID | None
    columns: Fields
    kwargs: Fields
    temporary: bool
    make_thread: bool
    inherited: Fields = field(default_factory=dict)
    given: Fields = field(default_factory=dict)
    answers: str | None = None
    claim: sa.Update | None = None
    run_id: UUID = field(default_factory=uuid4)
    user: str = ""


def run_json(row: sa.Row[Any]) -> dict[str, Any]:
    """A run as clients see it."""
    # Clients look for the key; there is no LangSmith.
    return {**_parsed(row), "langsmith_session_name": None}


def _parsed(row: sa.Row[Any]) -> dict[str, Any]:
    run = row_json(row, *_INTERNAL)
    return run if "kwargs" not in run else {**run, "kwargs": json.loads(run["kwargs"])}


def record_of(row: sa.Row[Any]) -> RunRecord:
    """A row as the queue takes it."""
    one = {name: row._mapping[name] for name in RunRecord.__slots__}
    one["kwargs"] = json.loads(one["kwargs"])
    if (stored := one["origin"]) is not None:
        one["origin"] = Origin.model_validate_json(stored)
    return RunRecord(**one)


class Runs:
    """The runs of all tenants; every request of a client names its tenant.

    ``asks`` is called when a run enters a thread with questions to a human.
    """

    def __init__(
        self, database: Database, quotas: Quotas, asks: Callable[[], None] = lambda: None
    ) -> None:
        self._database = database
        self._quotas = quotas
        self._asks = asks

    async def enter(self, new: NewRun, only: Filter | None) -> tuple[sa.Row[Any], list[str]]:
        """A new, pending run, and the ids of those that are active in its thread.

        Raises 404 if there is no such thread, 409 where the strategy is to reject, the run
        answers what is not open, or its claim fails.
        """
        thread, run_id, now = new.thread or uuid4(), str(new.run_id), time.time()
        active = sa.select(runs.c.run_id, runs.c.kwargs).where(
            runs.c.thread_id == str(thread), runs.c.status.in_(ACTIVE)
        )
        row = {
            **new.columns,
            "run_id": run_id,
            "thread_id": str(thread),
            "status": "pending",
            "attempt": 0,
            "kwargs": encode(new.kwargs).decode(),
            "created_at": now,
            "updated_at": now,
        }
        async with self._database.writing(rows=True) as connection:
            before = await self._prepare_thread(connection, thread, new, only)
            by_task = before._mapping["interrupts"]
            own = {**before._mapping["metadata"], **_about(new), **new.columns["metadata"]}
            row["metadata"] = {**new.inherited, **own}
            found = (await connection.execute(active.order_by(runs.c.number))).all()
            others = [one.run_id for one in found]
            if new.answers is not None and not is_open(
                new.answers, by_task, [json.loads(one.kwargs) for one in found]
            ):
                raise conflict(f"interrupt {new.answers} of thread {thread} was answered already")
            if others and new.columns["multitask_strategy"] == "reject":
                raise conflict(
                    f"thread {thread} has a run that has not ended; wait for it, or choose "
                    "another multitask_strategy"
                )
            if new.claim is not None and not (await connection.execute(new.claim)).rowcount:
                raise conflict("this run was claimed already")
            await connection.execute(sa.insert(runs).values(row))
            stored = (
                await connection.execute(sa.select(runs).where(runs.c.run_id == run_id))
            ).one()
        if by_task:
            self._asks()
        return stored, others

    async def _prepare_thread(
        self, connection: AsyncConnection, thread: UUID, new: NewRun, only: Filter | None
    ) -> sa.Row[Any]:
        """Create the run's thread if that was asked for, and make it busy; how it was before.
        A thread that is created is one that ``only`` allows: its user will ask for it.
        """
        tenant, given = new.columns["tenant"], stamped(new.columns["metadata"], only, new.user)
        quotas = self._quotas
        if new.thread is None:
            await new_thread(connection, quotas, tenant, thread, given, temporary=new.temporary)
            only = None
        elif new.make_thread:
            with suppress(IntegrityError):
                async with connection.begin_nested():
                    await new_thread(connection, quotas, tenant, thread, given)
                    if only is not None and not only.allows(given):
                        raise HTTPException(403, _UNSEEN)
        row = await find_thread(connection, tenant, thread, only, lock=True)
        changed = {
            "status": "busy",
            "metadata": {**row._mapping["metadata"], **_about(new)},
            "config": {"configurable": {}, **new.given},
            "updated_at": time.time(),
        }
        await change_thread(connection, thread, changed)
        return row

    async def get(self, tenant: str, thread: UUID, run: UUID) -> sa.Row[Any]:
        """The run, or 404."""
        this = matching(runs, tenant, {"run_id": str(run), "thread_id": str(thread)})
        row = await self._database.first(sa.select(runs).where(*this))
        if row is None:
            raise not_found("run", run)
        return row

    async def of_thread(
        self,
        tenant: str,
        thread: UUID,
        status: str | None,
        limit: int,
        offset: int,
        select: Sequence[str] | None = None,
    ) -> list[dict[str, Any]]:
        """The runs of a thread, the last one first, with those columns that ``select`` names."""
        these = matching(runs, tenant, {"thread_id": str(thread), "status": status})
        names = [name for name in select or runs.c.keys() if name not in _INTERNAL]
        query = sa.select(*(runs.c[name] for name in dict.fromkeys(names))).where(*these)
        query = query.order_by(runs.c.number.desc()).limit(limit).offset(offset)
        rows = await self._database.rows(query)
        return [run_json(row) if select is None else _parsed(row) for row in rows]

    async def since(
        self, thread: str, number: int, most: int, ended_after: float = 0.0
    ) -> list[RunRecord]:
        """The runs of a thread from one on, at most the last so many, in their order; without
        those that have ended before a time.
        """
        fresh = sa.or_(runs.c.status.in_(ACTIVE), runs.c.updated_at >= ended_after)
        of_thread = (runs.c.thread_id == thread, runs.c.number >= number)
        return (await self._records(*of_thread, fresh, most=most))[::-1]

    async def last_of(self, thread: str) -> RunRecord | None:
        """The last run of a thread."""
        return next(iter(await self._records(runs.c.thread_id == thread, most=1)), None)

    async def active(self) -> list[RunRecord]:
        """All runs that have not ended, in the order of their arrival."""
        return (await self._records(runs.c.status.in_(ACTIVE)))[::-1]

    async def _records(
        self, *conditions: sa.ColumnElement[bool], most: int | None = None
    ) -> list[RunRecord]:
        """At most so many runs, the last one first."""
        query = sa.select(*_RECORD).where(*conditions).order_by(runs.c.number.desc())
        return [record_of(row) for row in await self._database.rows(query.limit(most))]

    async def last_about(self, thread: str, about: Fields) -> str | None:
        """The id of a thread's last run with these metadata."""
        query = sa.select(runs.c.run_id).where(runs.c.thread_id == thread)
        query = query.where(has(runs.c.metadata, about)).order_by(runs.c.number.desc())
        row = await self._database.first(query.limit(1))
        return None if row is None else str(row.run_id)

    async def statuses(self, thread: str, most: int) -> Sequence[sa.Row[Any]]:
        """How the last runs of a thread stand, the last one first, without what they were asked."""
        names = ("run_id", "assistant_id", "metadata", "status", "updated_at")
        query = sa.select(*(runs.c[name] for name in names)).where(runs.c.thread_id == thread)
        return await self._database.rows(query.order_by(runs.c.number.desc()).limit(most))

    async def ids(
        self, tenant: str, statuses: Sequence[str], only: Filter | None = None
    ) -> list[str]:
        """The ids of a tenant's runs of some statuses, in threads that ``only`` allows."""
        query = sa.select(runs.c.run_id).where(runs.c.tenant == tenant, runs.c.status.in_(statuses))
        if only is not None:
            seen = sa.select(threads.c.thread_id).where(*visible(threads.c.metadata, only))
            query = query.where(runs.c.thread_id.in_(seen))
        return [row[0] for row in await self._database.rows(query)]

    async def began(self, record: RunRecord) -> None:
        """Store that the run is running, with the attempt and the origin of ``record``."""
        assert record.origin is not None
        origin = record.origin.model_dump_json()
        await self._database.write_rows(
            _changed(record.run_id, status="running", attempt=record.attempt, origin=origin)
        )

    def end(self, run_id: str, status: str, result: bytes, reason: str | None) -> sa.Update:
        """The update for a run that has ended; those who wait for the run get ``result``.

        `Threads.update_state` executes it together with the update of the thread: whoever sees
        one sees the other, even if the server is killed. The run's origin is needed no more.
        """
        return _changed(
            run_id, status=status, result=result.decode(), cancel_reason=reason, origin=None
        )

    async def forget_streams(self, before: float) -> None:
        """Delete the events of runs that had ended at that time. Questions stay, with what says
        how their runs stand, until those of their thread are answered.
        """
        over = sa.select(runs.c.run_id).where(
            runs.c.status.not_in(ACTIVE), runs.c.updated_at < before
        )
        asking = sa.select(threads.c.thread_id).where(
            sa.cast(threads.c.interrupts, sa.Text) != "{}"
        )
        of_asking = sa.select(runs.c.run_id).where(runs.c.thread_id.in_(asking))
        stays = sa.and_(ASKS, events.c.run_id.in_(of_asking))
        await self._database.write(
            sa.delete(events).where(events.c.run_id.in_(over), sa.not_(stays))
        )

    async def remove(self, run_id: str) -> None:
        """Delete the run and its events."""
        await self._database.write(
            sa.delete(events).where(events.c.run_id == run_id),
            sa.delete(runs).where(runs.c.run_id == run_id),
        )


def _about(new: NewRun) -> dict[str, Any]:
    return {name: new.columns[name] for name in ("graph_id", "assistant_id")}


def _changed(run_id: str, **values: Any) -> sa.Update:
    return sa.update(runs).where(runs.c.run_id == run_id).values(**values, updated_at=time.time())
