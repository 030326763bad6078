"""Work on the checkpointer's tables that its own interface does not have.

Ids of checkpoints grow with time, within a thread too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from sqlalchemy import Column, MetaData, String, Table, bindparam, delete, func, select, tuple_

from agentrt.integrations.langgraph.threads import thread_config
from agentrt.serving.langgraph.database import Database

_KEYS = ("thread_id", "checkpoint_ns", "checkpoint_id")
_metadata = MetaData()


def _table(name: str, *more: str) -> Table:
    return Table(name, _metadata, *(Column(key, String) for key in (*_KEYS, *more)))


_checkpoints = _table("checkpoints")
_writes = {
    True: _table("writes", "task_id"),  # in SQLite
    False: _table("checkpoint_writes", "task_id"),  # in PostgreSQL
}


async def roll_back(
    database: Database, thread: str, origin: str | None, writes: Collection[str]
) -> None:
    """Forget what a run did to its thread: checkpoints after ``origin``, and writes to it.

    ``writes`` are the tasks that had written before.
    """
    table = _writes[database.address.file is not None]
    async with database.writing() as connection:
        for one in (table, _checkpoints):
            later = delete(one).where(one.c.thread_id == thread)
            if origin is not None:
                later = later.where(one.c.checkpoint_id > origin)
            await connection.execute(later)
        if origin is not None:
            added = delete(table).where(
                table.c.thread_id == thread,
                table.c.checkpoint_id == origin,
                table.c.task_id.not_in(sorted(writes)),
            )
            await connection.execute(added)


async def keep_latest(database: Database, thread: str) -> None:
    """Forget all but the last checkpoint of a thread and of each of its subgraphs."""
    table = _writes[database.address.file is not None]
    c = _checkpoints.c
    last = (
        select(c.checkpoint_ns, func.max(c.checkpoint_id))
        .where(c.thread_id == bindparam("thread"))
        .group_by(c.checkpoint_ns)
    )
    async with database.writing() as connection:
        for one in (table, _checkpoints):
            here = tuple_(one.c.checkpoint_ns, one.c.checkpoint_id)
            old = delete(one).where(one.c.thread_id == bindparam("thread"), here.not_in(last))
            await connection.execute(old, {"thread": thread})


async def copy(saver: BaseCheckpointSaver[Any], source: str, target: str) -> None:
    """Give ``target`` all checkpoints of ``source``, with what tasks have written to them."""
    found = [one async for one in saver.alist(thread_config(source))]
    for one in reversed(found):
        before = (one.parent_config or {}).get("configurable", {}).get("checkpoint_id")
        place = {
            "thread_id": target,
            "checkpoint_ns": one.config["configurable"].get("checkpoint_ns", ""),
        }
        parent = place if before is None else {**place, "checkpoint_id": before}
        versions = one.checkpoint["channel_versions"]
        new = await saver.aput({"configurable": parent}, one.checkpoint, one.metadata, versions)
        by_task: dict[str, list[tuple[str, Any]]] = {}
        for task, channel, value in one.pending_writes or ():
            by_task.setdefault(task, []).append((channel, value))
        for task, writes in by_task.items():
            await saver.aput_writes(new, writes, task)
