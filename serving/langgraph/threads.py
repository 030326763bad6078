"""Threads: what lasts over several runs. Their states are LangGraph's checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from langchain_core.runnables import RunnableConfig
from langgraph.types import PregelTask, StateSnapshot
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from agentrt.integrations.langgraph.graphs import Graph
from agentrt.integrations.langgraph.threads import thread_config
from agentrt.serving.langgraph import bodies
from agentrt.serving.langgraph.database import Database
from agentrt.serving.langgraph.expiry import Deadlines
from agentrt.serving.langgraph.extract import extracted
from agentrt.serving.langgraph.lifetimes import in_use, lifetime_json, removal, set_lifetime
from agentrt.serving.langgraph.quotas import Quotas
from agentrt.serving.langgraph.responses import conflict, not_found, timestamp, to_json
from agentrt.serving.langgraph.tables import ACTIVE, Filter, has, runs, threads
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


def _found(thread: dict[str, Any], body: bodies.ThreadSearch) -> dict[str, Any]:
    """The parts of a thread that a search asks for."""
    shown = {key: thread[key] for key in body.select} if body.select else dict(thread)
    return shown | ({"extracted": extracted(thread, body.extract)} if body.extract else {})


class Threads:
    """The threads of all tenants; every request names its tenant.

    ``asks`` is told when a thread has new questions to a human, or none any more, and
    ``deadlines`` of the time that they have.
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

    async def lifetime(self, row: sa.Row[Any]) -> dict[str, Any] | None:
        """How long the thread of this row is kept."""
        return await lifetime_json(self._database, row)

    async def create(
        self, tenant: str, body: bodies.ThreadCreate, only: Filter = None
    ) -> tuple[dict[str, Any], bool]:
        """The thread, and whether it is new. Raises 409 if its id is taken, by any tenant, and
        the body does not allow that.
        """
        key, is_new = body.thread_id or uuid4(), True
        try:
            async with self._database.writing() as connection:
                await add_thread(connection, tenant, key, body.metadata)
                await set_lifetime(connection, str(key), body.ttl or self._quotas.lifetime)
                await self._quotas.new_thread(connection, tenant)
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

    async def search(
        self, tenant: str, body: bodies.ThreadSearch, only: Filter
    ) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """A page of those that match, and its headers."""
        conditions = _matching(tenant, body, only)
        if body.ids is not None:
            conditions.append(threads.c.thread_id.in_([str(one) for one in body.ids]))
        rows, headers = await self._database.page(threads, conditions, "thread_id", body)
        return [_found(thread_json(row), body) for row in rows], headers

    async def count(self, tenant: str, body: bodies.ThreadCount, only: Filter) -> int:
        """How many match."""
        return await self._database.count(threads, _matching(tenant, body, only))

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
    query = sa.select(threads).where(threads.c.thread_id == str(key), threads.c.tenant == tenant)
    if only:
        query = query.where(has(threads.c.metadata, only))
    row = (await connection.execute(query.with_for_update() if lock else query)).first()
    if row is None:
        raise not_found("thread", key)
    return row


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


def _matching(tenant: str, body: bodies.ThreadCount, only: Filter) -> list[sa.ColumnElement[bool]]:
    column = threads.c
    conditions: list[sa.ColumnElement[bool]] = [column.tenant == tenant, ~column.temporary]
    if body.status is not None:
        conditions.append(column.status == body.status)
    for field, wanted in (
        (column.metadata, body.metadata),
        (column["values"], body.values),
        (column.metadata, only),
    ):
        if wanted:
            conditions.append(has(field, wanted))
    return conditions


# -- states -------------------------------------------------------------------------------


async def last_state(
    graph: Graph, config: RunnableConfig, *, subgraphs: bool = False
) -> StateSnapshot:
    """A thread's last state, with what tasks have written to it since.

    If these writes conflict, as when two tasks write a value that may have one writer, it is the
    state without them.
    """
    try:
        return await graph.aget_state(config, subgraphs=subgraphs)
    except Exception:  # a reducer is the graph's own, and may raise anything
        async for state in graph.aget_state_history(config, limit=1):
            return state
        raise


async def thread_state(graph: Graph, thread: str) -> dict[str, Any]:
    """The columns of a thread's row that come from its last checkpoint."""
    state = await last_state(graph, thread_config(thread))
    interrupts = {task.id: list(task.interrupts) for task in state.tasks if task.interrupts}
    return {
        "status": "interrupted" if state.next else "idle",
        "values": None if state.created_at is None else to_json(state.values),
        "interrupts": to_json(interrupts),
        "error": None,
    }


def state_json(
    state: StateSnapshot, thread: str, select: Sequence[str] | None = None
) -> dict[str, Any]:
    """A snapshot of the thread as clients see it."""
    parent = state.parent_config
    whole = {
        "values": state.values,
        "next": list(state.next),
        "tasks": [_task_json(task, thread) for task in state.tasks],
        "metadata": {**state.metadata, "thread_id": thread} if state.metadata else {},
        "created_at": state.created_at,
        "checkpoint": {"checkpoint_id": None, **checkpoint_json(state.config, thread)},
        "parent_checkpoint": checkpoint_json(parent, thread) if parent else None,
        "interrupts": list(state.interrupts),
        "checkpoint_id": _configurable(state.config).get("checkpoint_id"),
        "parent_checkpoint_id": _configurable(parent).get("checkpoint_id"),
    }
    return whole if select is None else _selected(whole, select)


def checkpoint_json(config: RunnableConfig | None, thread: str | None = None) -> dict[str, Any]:
    """Where a snapshot was taken; without an id, at the end of its namespace."""
    found = _configurable(config)
    checkpoint = {
        "thread_id": found.get("thread_id", thread),
        "checkpoint_ns": found.get("checkpoint_ns", ""),
    }
    known = {key: found[key] for key in ("checkpoint_id", "checkpoint_map") if found.get(key)}
    return checkpoint | known


def _configurable(config: RunnableConfig | None) -> dict[str, Any]:
    return dict((config or {}).get("configurable") or {})


def _task_json(task: PregelTask, thread: str) -> dict[str, Any]:
    inner = task.state
    snapshot = state_json(inner, thread) if isinstance(inner, StateSnapshot) else None
    config = inner.config if isinstance(inner, StateSnapshot) else inner
    return {
        "id": task.id,
        "name": task.name,
        "path": list(task.path),
        "error": None if task.error is None else str(task.error),
        "interrupts": list(task.interrupts),
        "checkpoint": None if config is None else checkpoint_json(config, thread),
        "state": snapshot,
        "result": task.result,
    }


def _selected(whole: dict[str, Any], select: Sequence[str]) -> dict[str, Any]:
    """The parts of a snapshot that were asked for; ``values.KEY`` is one value of the state."""
    chosen: dict[str, Any] = {}
    for name in select:
        key, _, inner = name.partition(".")
        if not inner:
            chosen[key] = whole[key]
        elif isinstance(whole["values"], dict) and inner in whole["values"]:
            chosen.setdefault("values", {})[inner] = whole["values"][inner]
    return chosen
