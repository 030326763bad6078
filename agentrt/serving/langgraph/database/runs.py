"""The rows of runs: their requests, their status, and their results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
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

CANCEL_REASON = "the client cancelled the run"
ROLLBACK_REASON = "the client rolled the run back"
A2A = "a2a"
"""The key of a run's metadata that says that the run belongs to a task of the Agent2Agent protocol.
Its value has the task's id as ``task_id``, except in the task's first run.
"""
_UNSEEN = (
    "the authorization hook for threads.create_run returned a filter that hides this run's new "
    "thread from the user; create the thread first, or set its metadata in the hook"
)
Fields = Mapping[str, Any]
Body = TypeVar("Body", bound=RunBody)
_INTERNAL = ("tenant", "number", "attempt", "origin", "result", "start_at", "graph_id")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as a client requested it. ``kwargs`` is the request's body, merged with the config and
    the context of the assistant. ``created_at`` is in seconds since 1970, and ``start_at`` is a
    time of the database's clock, in seconds. ``number`` rises in the order of arrival.

    ``origin`` describes the thread before the run's first start
    (`agentrt.serving.langgraph.runs.execution`). ``attempt`` counts the starts so far.
    ``cancel_reason`` of a run that has not ended says that a client has cancelled it.
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
    multitask_strategy: str
    metadata: Fields
    kwargs: Fields
    origin: Origin | None
    cancel_reason: str | None = None

    @property
    def stopped_by(self) -> Literal["interrupt", "rollback"] | None:
        """How a client has cancelled the run; None if no client has."""
        if self.cancel_reason is None:
            return None
        return "rollback" if self.cancel_reason == ROLLBACK_REASON else "interrupt"

    def followed_by(self, kind: type[Body], **fields: Any) -> Body:
        """Return the body of a run that follows this run, with this run's assistant, config and
        context, and with ``fields``.
        """
        config, context = self.kwargs.get("config") or {}, self.kwargs.get("context")
        own = {"assistant_id": self.assistant_id, "config": config, "context": context}
        return kind.model_validate({**own, **fields})


def body_after(
    last: RunRecord | None, metadata: Mapping[str, Any], kind: type[Body], /, **fields: Any
) -> Body:
    """Return the body of a run that continues a thread with ``metadata``: the body that follows the
    thread's ``last`` run. A copy of a thread has no run, and a run may have been deleted; then the
    body has the thread's assistant and ``fields``.
    """
    if last is not None:
        return last.followed_by(kind, **fields)
    assistant = metadata.get("assistant_id") or metadata.get("graph_id")
    return kind.model_validate({"assistant_id": assistant, **fields})


_RECORD = [runs.c[name] for name in RunRecord.__slots__]
"""The columns of a record. The result is left out, because it may be as large as the thread."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to create, in ``thread``; None means a new thread, which may be ``temporary``.

    ``make_thread`` creates ``thread`` if it does not exist. ``inherited`` is the metadata of the
    assistant, and ``body_config`` the config of the request's body. ``answers`` are the ids of
    interrupts that the run answers; they must be open. ``claim`` is an update in the transaction
    that creates the run: if it changes no row, the run is not created. ``user`` is the id of the
    user who starts the run.
    """

    thread: UUID | None
    columns: Fields
    kwargs: Fields
    temporary: bool
    make_thread: bool
    inherited: Fields = field(default_factory=dict)
    body_config: Fields = field(default_factory=dict)
    answers: Collection[str] = ()
    claim: sa.Update | None = None
    run_id: UUID = field(default_factory=uuid4)
    user: str = ""


def run_json(row: sa.Row[Any]) -> dict[str, Any]:
    """Return a run in the form that clients get."""
    # Clients look up this key; there is no LangSmith here.
    return {**_parsed(row), "langsmith_session_name": None}


def _parsed(row: sa.Row[Any]) -> dict[str, Any]:
    run = row_json(row, *_INTERNAL)
    return run if "kwargs" not in run else {**run, "kwargs": json.loads(run["kwargs"])}


def record_of(row: sa.Row[Any]) -> RunRecord:
    """Return the record of a run's row."""
    fields = {name: row._mapping[name] for name in RunRecord.__slots__}
    fields["kwargs"] = json.loads(fields["kwargs"])
    if (stored := fields["origin"]) is not None:
        fields["origin"] = Origin.model_validate_json(stored)
    return RunRecord(**fields)


# Statements that each run needs are built once: building them takes as long as executing them.
_KEY = "key"  # the parameter's name
_ACTIVE_IN = (
    sa.select(runs.c.run_id, runs.c.kwargs)
    .where(runs.c.thread_id == sa.bindparam(_KEY), runs.c.status.in_(ACTIVE))
    .order_by(runs.c.number)
)
_LOCK = (
    sa.select(threads.c.thread_id)
    .where(threads.c.thread_id == sa.bindparam(_KEY), threads.c.tenant == sa.bindparam("tenant"))
    .with_for_update()
)
_LAST = (
    sa.select(runs.c.run_id, runs.c.metadata)
    .where(runs.c.thread_id == sa.bindparam(_KEY))
    .order_by(runs.c.number.desc())
    .limit(1)
)
_INSERT = sa.insert(runs)  # not RETURNING, as in `add_thread`
_STORED = sa.select(runs).where(runs.c.run_id == sa.bindparam(_KEY))


class Runs:
    """The runs of all tenants. Before a method that takes no tenant is called for a client, the
    client's access to the thread must be checked.

    ``asks`` is called when a new run enters a thread with open questions.
    """

    def __init__(
        self, database: Database, quotas: Quotas, asks: Callable[[], None] = lambda: None
    ) -> None:
        self._database = database
        self._quotas = quotas
        self._asks = asks

    async def enter(self, new: NewRun, only: Filter | None) -> tuple[sa.Row[Any], list[str]]:
        """Insert a pending run, and return its row and the ids of the thread's other active runs.

        Raises 404 if the thread does not exist or the filter ``only`` hides it, and 403 if ``only``
        would hide the thread that `NewRun.make_thread` creates. Raises 409 if the thread has an
        active run and the strategy is ``reject``, if an interrupt that `NewRun.answers` names is
        not open, or if the update `NewRun.claim` changes no row. Raises 507 if the tenant has
        reached its limit of threads.
        """
        [entered] = await self.enter_all([(new, only)])
        return entered

    async def enter_all(
        self, entries: Sequence[tuple[NewRun, Filter | None]]
    ) -> list[tuple[sa.Row[Any], list[str]]]:
        """Insert several runs as `enter` does, but all of them or none."""
        existing = {(str(new.thread), new.columns["tenant"]) for new, _ in entries if new.thread}
        async with self._database.writing(rows=len(entries) == 1) as connection:
            # Locked in one order, because two batches may differ in theirs, and before `new_thread`
            # lets no other transaction add threads.
            if len(entries) > 1:
                for key, tenant in sorted(existing):
                    await connection.execute(_LOCK, {_KEY: key, "tenant": tenant})
            entered = [await self._enter(connection, new, only) for new, only in entries]
        if any(asks for _, _, asks in entered):
            self._asks()
        return [(row, others) for row, others, _ in entered]

    async def _enter(
        self, connection: AsyncConnection, new: NewRun, only: Filter | None
    ) -> tuple[sa.Row[Any], list[str], bool]:
        """Insert a run, as `enter` does. Also return whether its thread has open questions."""
        thread, run_id, now = new.thread or uuid4(), str(new.run_id), time.time()
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
        before = await self._prepare_thread(connection, thread, new, only)
        by_task = before._mapping["interrupts"]
        own = {**before._mapping["metadata"], **_about(new), **new.columns["metadata"]}
        row["metadata"] = {**new.inherited, **own}
        if (new.kwargs.get("command") or {}).get("resume") is not None:
            row["metadata"] |= await _task_of_last(connection, str(thread), new)
        rows = (await connection.execute(_ACTIVE_IN, {_KEY: str(thread)})).all()
        others = [other.run_id for other in rows]
        active = [json.loads(other.kwargs) for other in rows] if new.answers else []
        for answered in new.answers:
            if not is_open(answered, by_task, active):
                raise conflict(
                    f"interrupt {answered} of thread {thread} is not open; it was answered "
                    "already, was withdrawn, or does not exist"
                )
        if others and new.columns["multitask_strategy"] == "reject":
            raise conflict(
                f"thread {thread} has a run that has not ended; wait for its end, or choose "
                "another multitask_strategy"
            )
        if new.claim is not None and not (await connection.execute(new.claim)).rowcount:
            raise conflict("the cron of this run was changed or deleted meanwhile")
        await connection.execute(_INSERT, row)
        stored = (await connection.execute(_STORED, {_KEY: run_id})).one()
        return stored, others, bool(by_task)

    async def _prepare_thread(
        self, connection: AsyncConnection, thread: UUID, new: NewRun, only: Filter | None
    ) -> sa.Row[Any]:
        """Create the run's thread if the run wants that, set the thread's status to busy, and
        return the thread's previous row. A new thread gets the metadata that the filter ``only``
        implies (`stamped`), because the user will request the thread later.
        """
        tenant, metadata = new.columns["tenant"], stamped(new.columns["metadata"], only, new.user)
        quotas = self._quotas
        if new.thread is None:
            await new_thread(connection, quotas, tenant, thread, metadata, temporary=new.temporary)
            only = None
        elif new.make_thread:
            with suppress(IntegrityError):
                async with connection.begin_nested():
                    await new_thread(connection, quotas, tenant, thread, metadata)
                    if only is not None and not only.allows(metadata):
                        raise HTTPException(403, _UNSEEN)
        row = await find_thread(connection, tenant, thread, only, lock=True)
        changed = {
            "status": "busy",
            "metadata": {**row._mapping["metadata"], **_about(new)},
            "config": {"configurable": {}, **new.body_config},
            "updated_at": time.time(),
        }
        await change_thread(connection, thread, changed)
        return row

    async def get(self, tenant: str, thread: UUID, run: UUID) -> sa.Row[Any]:
        """Return a run's row. Raises 404 if the thread has no such run."""
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
        """Return a page of a thread's runs, the newest first, with the columns that ``select``
        names; None means all columns that clients get.
        """
        these = matching(runs, tenant, {"thread_id": str(thread), "status": status})
        names = [name for name in select or runs.c.keys() if name not in _INTERNAL]
        query = sa.select(*(runs.c[name] for name in dict.fromkeys(names))).where(*these)
        query = query.order_by(runs.c.number.desc()).limit(limit).offset(offset)
        rows = await self._database.rows(query)
        return [run_json(row) if select is None else _parsed(row) for row in rows]

    async def since(
        self, thread: str, number: int, most: int, ended_after: float = 0.0
    ) -> list[RunRecord]:
        """Return the thread's runs whose numbers are at least ``number``, the oldest first.

        Leaves out runs that ended before ``ended_after`` (seconds since 1970), and returns at most
        the newest ``most``.
        """
        fresh = sa.or_(runs.c.status.in_(ACTIVE), runs.c.updated_at >= ended_after)
        of_thread = (runs.c.thread_id == thread, runs.c.number >= number)
        return (await self._records(*of_thread, fresh, most=most))[::-1]

    async def last_of(self, thread: str) -> RunRecord | None:
        """Return the newest run of a thread, or None."""
        return next(iter(await self._records(runs.c.thread_id == thread, most=1)), None)

    async def active(self) -> list[RunRecord]:
        """Return all unfinished runs, in the order of their arrival."""
        return (await self._records(runs.c.status.in_(ACTIVE)))[::-1]

    async def _records(
        self, *conditions: sa.ColumnElement[bool], most: int | None = None
    ) -> list[RunRecord]:
        """Return at most ``most`` runs, the newest first."""
        query = sa.select(*_RECORD).where(*conditions).order_by(runs.c.number.desc())
        return [record_of(row) for row in await self._database.rows(query.limit(most))]

    async def last_of_task(self, thread: str, task: str, first: str) -> sa.Row[Any] | None:
        """Return the newest run of a task of the Agent2Agent protocol, whose first run is
        ``first``; None if the run has been deleted. The row also has the ``interrupts`` of the
        thread, and ``is_newest``, which says whether the thread has no newer run.

        A single statement reads all this, so that a run that ends meanwhile does not seem to have
        ended without its question.
        """
        newest = sa.select(sa.func.max(runs.c.number)).where(runs.c.thread_id == thread)
        is_newest = (runs.c.number == newest.scalar_subquery()).label("is_newest")
        of_task = sa.or_(runs.c.run_id == first, has(runs.c.metadata, {A2A: {"task_id": task}}))
        query = (
            sa.select(runs, threads.c.interrupts, is_newest)
            .join(threads, threads.c.thread_id == runs.c.thread_id)
            .where(runs.c.thread_id == thread, of_task)
        )
        return await self._database.first(query.order_by(runs.c.number.desc()).limit(1))

    async def statuses(self, thread: str, most: int) -> Sequence[sa.Row[Any]]:
        """Return up to ``most`` of a thread's newest runs, the newest first, with their status, but
        without their requests and results.
        """
        names = ("run_id", "assistant_id", "metadata", "status", "updated_at")
        query = sa.select(*(runs.c[name] for name in names)).where(runs.c.thread_id == thread)
        return await self._database.rows(query.order_by(runs.c.number.desc()).limit(most))

    async def ids(
        self, tenant: str, statuses: Sequence[str], only: Filter | None = None
    ) -> list[str]:
        """Return the ids of a tenant's runs with these statuses, in threads that pass the filter
        ``only``.
        """
        query = sa.select(runs.c.run_id).where(runs.c.tenant == tenant, runs.c.status.in_(statuses))
        if only is not None:
            seen = sa.select(threads.c.thread_id).where(*visible(threads.c.metadata, only))
            query = query.where(runs.c.thread_id.in_(seen))
        return [row[0] for row in await self._database.rows(query)]

    async def began(self, record: RunRecord) -> None:
        """Store that a run is running, together with the attempt and the origin in its
        ``record``.
        """
        assert record.origin is not None
        origin = record.origin.model_dump_json()
        await self._database.write_rows(
            _changed(record.run_id, status="running", attempt=record.attempt, origin=origin)
        )

    async def cancelled(
        self, run_ids: Collection[str], action: Literal["interrupt", "rollback"]
    ) -> None:
        """Store that a client has cancelled runs, for a server that starts before they have ended.
        Runs that have ended are left out, and a run that is rolled back already stays so.
        """
        reason = ROLLBACK_REASON if action == "rollback" else CANCEL_REASON
        these = [runs.c.run_id.in_(run_ids), runs.c.status.in_(ACTIVE)]
        if action == "interrupt":
            these.append(runs.c.cancel_reason.is_(None))
        update = sa.update(runs).where(*these).values(cancel_reason=reason, updated_at=time.time())
        await self._database.write(update)

    def end(self, run_id: str, status: str, result: bytes, reason: str | None) -> sa.Update:
        """Return the update that stores the end of a run, with the ``result`` that clients get.

        `Threads.update_state` executes this update in the same transaction as the update of the
        thread, so that both are stored or neither, even if the server is killed. The update also
        removes the run's origin, which is not needed any more.
        """
        return _changed(
            run_id, status=status, result=result.decode(), cancel_reason=reason, origin=None
        )

    async def stored_end(self, run_id: str) -> bytes | None:
        """Return the result of a run whose end is stored; None for a run that has not ended."""
        query = sa.select(runs.c.result).where(
            runs.c.run_id == run_id, runs.c.status.not_in(ACTIVE)
        )
        row = await self._database.first(query)
        return None if row is None else str(row.result).encode()

    async def forget_streams(self, before: float) -> None:
        """Delete the events of runs that ended before the time ``before`` (seconds since 1970).
        Lifecycle events, and events that ask questions, stay until the thread's questions are
        answered.
        """
        ended = sa.select(runs.c.run_id).where(
            runs.c.status.not_in(ACTIVE), runs.c.updated_at < before
        )
        asking = sa.select(threads.c.thread_id).where(
            sa.cast(threads.c.interrupts, sa.Text) != "{}"
        )
        of_asking = sa.select(runs.c.run_id).where(runs.c.thread_id.in_(asking))
        stays = sa.and_(ASKS, events.c.run_id.in_(of_asking))
        await self._database.write(
            sa.delete(events).where(events.c.run_id.in_(ended), sa.not_(stays))
        )

    async def remove(self, run_id: str) -> None:
        """Delete a run and its events."""
        await self._database.write(*self.removal(run_id))

    def removal(self, run_id: str) -> list[sa.Delete]:
        """Return the statements that delete a run and its events."""
        return [sa.delete(table).where(table.c.run_id == run_id) for table in (events, runs)]


async def _task_of_last(connection: AsyncConnection, thread: str, new: NewRun) -> dict[str, Any]:
    """Return the metadata of a run that resumes a thread: if the thread's last run belongs to a
    task of the Agent2Agent protocol, the new run does, too, whichever API brought the answer.
    """
    if A2A in new.columns["metadata"]:
        return {}
    last = (await connection.execute(_LAST, {_KEY: thread})).first()
    if last is None or not isinstance(about := last.metadata.get(A2A), dict):
        return {}
    return {A2A: {"task_id": f"{thread}:{last.run_id}", **about}}


def _about(new: NewRun) -> dict[str, Any]:
    return {name: new.columns[name] for name in ("graph_id", "assistant_id")}


def _changed(run_id: str, **values: Any) -> sa.Update:
    return sa.update(runs).where(runs.c.run_id == run_id).values(**values, updated_at=time.time())
