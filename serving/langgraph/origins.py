"""Where a thread stood before a run: noted at the run's start, and gone back to.

A run adds checkpoints, to the graph itself and to each of its subgraphs, and what tasks write to
the checkpoints that were there: to the last one of the graph, and to those that its subgraphs
have added since. Ids of checkpoints grow with time, over all of these, so that one id divides
what was before the run from what it has added.

What tasks write lies beside the checkpoint, a row for each thing. A task has one row each for its
question, the answers it has taken and its error, which a later attempt replaces; other rows are
never replaced. So of those the values are noted, and of the others that they were there.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

from sqlalchemy import case, delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from agentrt.serving.langgraph.checkpoints import ROW, checkpoints, writes
from agentrt.serving.langgraph.database import Database

Task = tuple[str, str, str]
"""The namespace and the id of a checkpoint, and a task of it."""


@dataclass(frozen=True, slots=True)
class Written:
    """A row: what a task has written. ``value`` is None where it cannot be replaced."""

    checkpoint_ns: str
    checkpoint_id: str
    task_id: str
    idx: int
    task_path: str
    channel: str
    type: str | None
    value: bytes | None

    @property
    def task(self) -> Task:
        """Whose it is."""
        return self.checkpoint_ns, self.checkpoint_id, self.task_id

    @property
    def replaceable(self) -> bool:
        """Whether the task may write this again: LangGraph gives such rows negative numbers."""
        return self.idx < 0


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a thread stood. Ids are "" where there is none.

    ``checkpoint_id`` is the graph's own last checkpoint, and ``latest`` the last one of all.
    ``writes`` is what was written to checkpoints from ``since`` on, None if that is not known:
    an earlier version of this server noted less, and such a run may be live still.
    """

    checkpoint_id: str
    latest: str
    since: str
    writes: tuple[Written, ...] | None

    def as_json(self) -> dict[str, Any]:
        """As a run's row has it."""
        assert self.writes is not None
        return {
            "checkpoint_id": self.checkpoint_id or None,
            "latest": self.latest,
            "since": self.since,
            "rows": [_row_json(one) for one in self.writes],
        }

    @classmethod
    def of(cls, noted: Mapping[str, Any]) -> Origin:
        """From a run's row."""
        own = noted["checkpoint_id"] or ""
        if "rows" not in noted:
            return cls(own, latest=own, since=own, writes=None)
        rows = tuple(_row_of(one) for one in noted["rows"])
        return cls(own, noted["latest"], noted["since"], rows)


def _row_json(row: Written) -> list[Any]:
    value = None if row.value is None else b64encode(row.value).decode()
    return [*astuple(row)[:-1], value]


def _row_of(noted: list[Any]) -> Written:
    row: dict[str, Any] = dict(zip(ROW, noted, strict=True))
    value = row["value"]
    return Written(**{**row, "value": None if value is None else b64decode(value)})


async def standing_now(database: Database, thread: str, also: Collection[str]) -> Origin:
    """Where ``thread`` stands. A run may write to its end, and to the checkpoints ``also``."""
    async with database.reading() as connection:
        own = await last_id(connection, thread, own=True)
        latest = await last_id(connection, thread)
        since = min([own, *also])
        rows = await rows_since(connection, database, thread, since)
    return Origin(own, latest, since, tuple(rows))


async def go_back(database: Database, thread: str, origin: Origin) -> None:
    """Forget what was done to the thread since."""
    table = writes(database)
    async with database.writing() as connection:
        for one in (table, checkpoints):
            later = (one.c.thread_id == thread, one.c.checkpoint_id > origin.latest)
            await connection.execute(delete(one).where(*later))
        if origin.writes is not None:
            now = await rows_since(connection, database, thread, origin.since)
            await _restore(connection, database, thread, now, origin.writes)


async def take_back(
    database: Database, thread: str, origin: Origin, task: Task, without: str | None
) -> None:
    """Make what a task has written what it was, and leave out what was in a channel."""
    async with database.writing() as connection:
        rows = await rows_since(connection, database, thread, origin.since)
        now = [row for row in rows if row.task == task]
        then = [row for row in origin.writes or () if row.task == task and row.channel != without]
        await _restore(connection, database, thread, now, then)


async def rows_since(
    connection: AsyncConnection, database: Database, thread: str, since: str
) -> list[Written]:
    """What was written to the checkpoints of a thread, and of its subgraphs, from one on."""
    table = writes(database)
    value = case((table.c.idx < 0, table.c.value)).label("value")
    asked = select(*(table.c[name] for name in ROW[:-1]), value).where(
        table.c.thread_id == thread, table.c.checkpoint_id >= since
    )
    return [Written(**row) for row in (await connection.execute(asked)).mappings()]


async def last_id(connection: AsyncConnection, thread: str, *, own: bool = False) -> str:
    """The last checkpoint of a thread; the graph's own, or any."""
    asked = select(func.max(checkpoints.c.checkpoint_id)).where(checkpoints.c.thread_id == thread)
    if own:
        asked = asked.where(checkpoints.c.checkpoint_ns == "")
    return (await connection.execute(asked)).scalar() or ""


async def spaces_since(connection: AsyncConnection, thread: str, after: str) -> set[str]:
    """The namespaces that have a checkpoint after one."""
    c = checkpoints.c
    asked = select(c.checkpoint_ns).where(c.thread_id == thread, c.checkpoint_id > after)
    return set((await connection.execute(asked.distinct())).scalars())


async def _restore(
    connection: AsyncConnection,
    database: Database,
    thread: str,
    now: Iterable[Written],
    then: Iterable[Written],
) -> None:
    table = writes(database)
    lasting = {(row.task, row.idx) for row in then if not row.replaceable}
    for row in now:
        if (row.task, row.idx) not in lasting:
            here = [table.c[name] == getattr(row, name) for name in (*ROW[:3], "idx")]
            await connection.execute(delete(table).where(table.c.thread_id == thread, *here))
    for row in then:
        if row.replaceable:
            values = {name: getattr(row, name) for name in ROW}
            await connection.execute(insert(table).values(thread_id=thread, **values))
