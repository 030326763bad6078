"""The checkpointer's tables, and work on them that its own interface does not have.

Ids of checkpoints grow with time, within a thread too.
"""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from sqlalchemy import (
    Column,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    delete,
    func,
    select,
    tuple_,
)

from agentrt.integrations.langgraph.threads import thread_config
from agentrt.serving.langgraph.database import Database

ROW = (
    "checkpoint_ns",
    "checkpoint_id",
    "task_id",
    "idx",
    "task_path",
    "channel",
    "type",
    "value",
)
"""The columns of what a task has written, but for its thread."""
_metadata = MetaData()


def _texts(*names: str) -> list[Column[Any]]:
    return [Column(name, String) for name in names]


def _writes(name: str, value: str) -> Table:
    return Table(
        name,
        _metadata,
        *_texts("thread_id", *ROW[:3], *ROW[4:7]),
        Column("idx", Integer),
        Column(value, LargeBinary, key="value"),
    )


checkpoints = Table(
    "checkpoints", _metadata, *_texts("thread_id", "checkpoint_ns", "checkpoint_id")
)
_IN_SQLITE = _writes("writes", "value")
_IN_POSTGRES = _writes("checkpoint_writes", "blob")


def writes(database: Database) -> Table:
    """What tasks have written to checkpoints."""
    return _IN_SQLITE if database.address.file is not None else _IN_POSTGRES


async def keep_latest(database: Database, thread: str) -> None:
    """Forget all but the last checkpoint of a thread and of each of its subgraphs."""
    c = checkpoints.c
    last = (
        select(c.checkpoint_ns, func.max(c.checkpoint_id))
        .where(c.thread_id == bindparam("thread"))
        .group_by(c.checkpoint_ns)
    )
    async with database.writing() as connection:
        for one in (writes(database), checkpoints):
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
