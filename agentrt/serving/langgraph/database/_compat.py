"""The tables of LangGraph's checkpointers and stores that we read and change directly.

A checkpointer's interface can neither delete single checkpoints nor change their pending writes, so
rollback and recovery change the tables themselves. ``tests/serving/langgraph/test_compat.py`` names
the tested versions, and fails when a part that is used here has changed or disappeared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import NamedTuple

import sqlalchemy as sa
from packaging.version import Version
from pydantic import BaseModel, ConfigDict
from sqlalchemy.ext.asyncio import AsyncConnection

from agentrt.errors import ConfigError
from agentrt.serving.langgraph.database.connections import Database

# -- checkpoint tables --------------------------------------------------------------------

Task = tuple[str, str, str]
"""A task of a checkpoint: the checkpoint's namespace and id, and the task's id."""
_TASK = ("checkpoint_ns", "checkpoint_id", "task_id")
_metadata = sa.MetaData()


def _writes(name: str, value: str) -> sa.Table:
    strings = ("thread_id", *_TASK, "task_path", "channel", "type")
    return sa.Table(
        name,
        _metadata,
        *[sa.Column(column, sa.String) for column in strings],
        sa.Column("idx", sa.Integer),
        sa.Column(value, sa.LargeBinary, key="value"),
    )


checkpoints = sa.Table(
    "checkpoints",
    _metadata,
    *[sa.Column(name, sa.String) for name in ("thread_id", "checkpoint_ns", "checkpoint_id")],
    sa.Column("metadata", sa.Text),
)
_blobs = sa.Table(
    "checkpoint_blobs",
    _metadata,
    *[sa.Column(name, sa.String) for name in ("thread_id", "checkpoint_ns", "channel", "version")],
)
"""The values of channels in PostgreSQL, which several checkpoints may share."""
store = sa.Table(
    "store",
    _metadata,
    *[sa.Column(name, sa.String) for name in ("prefix", "key", "value")],
)
SQLITE_WRITES = _writes("writes", "value")
POSTGRES_WRITES = _writes("checkpoint_writes", "blob")


def writes_table(database: Database) -> sa.Table:
    """Return the table of pending writes, which tasks have written to checkpoints."""
    return SQLITE_WRITES if database.address.file is not None else POSTGRES_WRITES


class Write(NamedTuple):
    """A pending write: a row of `writes_table`. ``value`` is None in rows that are never replaced,
    because only their presence matters here.
    """

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
        """The task that wrote the row."""
        return self.checkpoint_ns, self.checkpoint_id, self.task_id

    @property
    def replaceable(self) -> bool:
        """Whether a later attempt of the task replaces the row. LangGraph gives such rows a
        negative ``idx``.
        """
        return self.idx < 0


class Origin(BaseModel):
    """The condition of a thread before a run's first start.

    ``checkpoint_id`` is the latest checkpoint of the graph itself, without its subgraphs, or None.
    ``latest`` is the latest checkpoint of the graph and its subgraphs, or "". ``rows`` are the
    pending writes of the checkpoints from ``since`` on.
    """

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")

    checkpoint_id: str | None
    latest: str
    since: str
    rows: tuple[Write, ...]


async def writes_since(
    connection: AsyncConnection, database: Database, thread: str, since: str
) -> list[Write]:
    """Return the pending writes of a thread's checkpoints, from checkpoint id ``since`` on."""
    c = writes_table(database).c
    value = sa.case((c.idx < 0, c.value)).label("value")
    columns = (*(c[name] for name in _TASK), c.idx, c.task_path, c.channel, c.type, value)
    query = sa.select(*columns).where(c.thread_id == thread, c.checkpoint_id >= since)
    return [Write(*row) for row in await connection.execute(query)]


async def last_checkpoints(connection: AsyncConnection, thread: str) -> tuple[str, str]:
    """Return the id of a thread's latest checkpoint, and the id of the latest checkpoint of the
    graph itself, without its subgraphs. An id is "" if there is no such checkpoint.
    """
    latest, own = (await connection.execute(_LATEST, {"thread": thread})).one()
    return latest or "", own or ""


_LATEST = sa.select(
    sa.func.max(checkpoints.c.checkpoint_id),
    sa.func.max(sa.case((checkpoints.c.checkpoint_ns == "", checkpoints.c.checkpoint_id))),
).where(checkpoints.c.thread_id == sa.bindparam("thread"))


async def namespaces_since(connection: AsyncConnection, thread: str, after: str) -> set[str]:
    """Return the namespaces of a thread that have checkpoints after checkpoint id ``after``."""
    c = checkpoints.c
    query = sa.select(c.checkpoint_ns).where(c.thread_id == thread, c.checkpoint_id > after)
    return set((await connection.execute(query.distinct())).scalars())


async def delete_after(
    connection: AsyncConnection, database: Database, thread: str, last: str
) -> None:
    """Delete a thread's checkpoints after checkpoint id ``last``, and their pending writes."""
    for table in (writes_table(database), checkpoints):
        later = (table.c.thread_id == thread, table.c.checkpoint_id > last)
        await connection.execute(sa.delete(table).where(*later))


async def restore_writes(
    connection: AsyncConnection,
    database: Database,
    thread: str,
    now: Iterable[Write],
    then: Iterable[Write],
) -> None:
    """Restore a thread's pending writes from the rows ``now`` to the earlier rows ``then``.

    Rows in ``then`` that are never replaced must still be in the table, and stay there. All other
    rows in ``now`` are deleted, and the replaceable rows in ``then`` are inserted.
    """
    table = writes_table(database)
    lasting = {(row.task, row.idx) for row in then if not row.replaceable}
    for row in now:
        if (row.task, row.idx) not in lasting:
            here = [table.c[name] == getattr(row, name) for name in (*_TASK, "idx")]
            await connection.execute(sa.delete(table).where(table.c.thread_id == thread, *here))
    for row in then:
        if row.replaceable:
            await connection.execute(sa.insert(table).values(thread_id=thread, **row._asdict()))


def tables_of_threads(database: Database) -> list[sa.Table]:
    """Return all tables of the checkpointer that have rows of threads."""
    tables = [writes_table(database), checkpoints]
    return tables if database.address.file is not None else [*tables, _blobs]


async def keep_latest(database: Database, thread: str) -> bool:
    """Delete all checkpoints of a thread except the latest of the graph and of each subgraph.

    Returns False, and deletes nothing, if the graph has a `DeltaChannel`: then the state is spread
    over earlier checkpoints.
    """
    c = checkpoints.c
    of_deltas = sa.cast(c.metadata, sa.Text).contains("counters_since_delta_snapshot")
    async with database.writing() as connection:
        deltas = sa.select(c.checkpoint_id).where(c.thread_id == thread, of_deltas).limit(1)
        if (await connection.execute(deltas)).first() is not None:
            return False
        last = (
            sa.select(c.checkpoint_ns, sa.func.max(c.checkpoint_id))
            .where(c.thread_id == thread)
            .group_by(c.checkpoint_ns)
        )
        for table in (writes_table(database), checkpoints):
            place = sa.tuple_(table.c.checkpoint_ns, table.c.checkpoint_id)
            old = (table.c.thread_id == thread, place.not_in(last))
            await connection.execute(sa.delete(table).where(*old))
        if database.address.file is None:
            await connection.execute(_UNUSED_BLOBS, {"thread": thread})
    return True


_UNUSED_BLOBS = sa.text("""
    DELETE FROM checkpoint_blobs AS b WHERE b.thread_id = :thread AND NOT EXISTS (
        SELECT FROM checkpoints AS c, jsonb_each_text(c.checkpoint -> 'channel_versions') AS v
        WHERE c.thread_id = b.thread_id AND c.checkpoint_ns = b.checkpoint_ns
            AND v.key = b.channel AND v.value = b.version
    )
""")


# -- versions of the store ----------------------------------------------------------------

SQLITE, POSTGRES = "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres"
FIRST_SAFE = "3.1.1"
"""The first version of both packages whose search for the prefix ("docs",) leaves out ("docs-2",).
"""


def check_store_version(package: str) -> None:
    """Raise `ConfigError` if the installed version of ``package`` returns items of other
    namespaces.
    """
    installed = version(package)
    if Version(installed) < Version(FIRST_SAFE):
        raise ConfigError(
            f"{package} {installed} returns items of other namespaces, such as the tenant "
            f"'acme-corp' for 'acme'; install {package}>={FIRST_SAFE}"
        )


# -- SQLite's store -----------------------------------------------------------------------

STORE_CLOCK = "agentrt_now"
EXACT_STORE_TIMES = f"""
CREATE TEMP TABLE agentrt_created (prefix, key, created_at);
CREATE TEMP TRIGGER agentrt_before BEFORE INSERT ON main.store BEGIN
    INSERT INTO agentrt_created SELECT prefix, key, created_at FROM main.store
        WHERE prefix = NEW.prefix AND key = NEW.key;
END;
CREATE TEMP TRIGGER agentrt_after AFTER INSERT ON main.store BEGIN
    UPDATE store SET created_at = COALESCE((SELECT created_at FROM agentrt_created
            WHERE prefix = NEW.prefix AND key = NEW.key), {STORE_CLOCK}()),
        updated_at = {STORE_CLOCK}()
        WHERE prefix = NEW.prefix AND key = NEW.key;
    DELETE FROM agentrt_created;
END;
"""
"""Triggers for the connection of the store. Without them, LangGraph stores times in whole seconds
without a time zone, and changes ``created_at`` with each update. They are temporary, so that other
programs can still write to the database.
"""


def rising_clock() -> Callable[[], str]:
    """Return a function that returns the current time in UTC; each call returns a later time than
    the call before.
    """
    last = datetime.fromtimestamp(0, UTC)

    def now() -> str:
        nonlocal last
        last = max(datetime.now(UTC), last + timedelta(microseconds=1))
        return last.isoformat(" ", "microseconds")

    return now
