"""Where we reach into the tables of LangGraph's checkpointers and stores.

A checkpointer's interface can neither delete single checkpoints nor change what was written to
one, so rollback and recovery work on its tables. ``tests/serving/langgraph/test_compat.py`` names
the versions that this was tested with, and fails when something here is gone or has changed.
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
"""The namespace and the id of a checkpoint, and a task of it."""
_TASK = ("checkpoint_ns", "checkpoint_id", "task_id")
_metadata = sa.MetaData()


def _writes(name: str, value: str) -> sa.Table:
    strings = ("thread_id", *_TASK, "task_path", "channel", "type")
    return sa.Table(
        name,
        _metadata,
        *[sa.Column(one, sa.String) for one in strings],
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
"""PostgreSQL's values of checkpoints, each of which several may have."""
store = sa.Table(
    "store",
    _metadata,
    *[sa.Column(name, sa.String) for name in ("prefix", "key", "value")],
)
SQLITE_WRITES = _writes("writes", "value")
POSTGRES_WRITES = _writes("checkpoint_writes", "blob")


def writes_table(database: Database) -> sa.Table:
    """The table of what tasks have written to checkpoints."""
    return SQLITE_WRITES if database.address.file is not None else POSTGRES_WRITES


class Write(NamedTuple):
    """A row of that table. ``value`` is None where it cannot be overwritten."""

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
        """The task that wrote it."""
        return self.checkpoint_ns, self.checkpoint_id, self.task_id

    @property
    def replaceable(self) -> bool:
        """Whether the task may write this again: LangGraph gives such rows negative numbers."""
        return self.idx < 0


class Origin(BaseModel):
    """Where a thread stood. ``rows`` is what was written to checkpoints from ``since`` on.

    ``checkpoint_id`` is the graph's own last checkpoint, if it has one, and ``latest`` the last one
    of all, or "".
    """

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")

    checkpoint_id: str | None
    latest: str
    since: str
    rows: tuple[Write, ...]


async def writes_since(
    connection: AsyncConnection, database: Database, thread: str, since: str
) -> list[Write]:
    """What was written to the checkpoints of a thread and its subgraphs, from one on."""
    c = writes_table(database).c
    value = sa.case((c.idx < 0, c.value)).label("value")
    columns = (*(c[name] for name in _TASK), c.idx, c.task_path, c.channel, c.type, value)
    query = sa.select(*columns).where(c.thread_id == thread, c.checkpoint_id >= since)
    return [Write(*row) for row in await connection.execute(query)]


async def last_checkpoint(connection: AsyncConnection, thread: str, *, own: bool = False) -> str:
    """The id of a thread's last checkpoint; with ``own`` of the graph itself, not a subgraph."""
    c = checkpoints.c
    query = sa.select(sa.func.max(c.checkpoint_id)).where(c.thread_id == thread)
    if own:
        query = query.where(c.checkpoint_ns == "")
    return (await connection.execute(query)).scalar() or ""


async def namespaces_since(connection: AsyncConnection, thread: str, after: str) -> set[str]:
    """The namespaces with a checkpoint after one."""
    c = checkpoints.c
    query = sa.select(c.checkpoint_ns).where(c.thread_id == thread, c.checkpoint_id > after)
    return set((await connection.execute(query.distinct())).scalars())


async def delete_after(
    connection: AsyncConnection, database: Database, thread: str, last: str
) -> None:
    """Delete a thread's checkpoints after ``last``, and what was written to them."""
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
    """Replace the rows ``now`` by the rows ``then``."""
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
    """All tables that have rows of a thread."""
    tables = [writes_table(database), checkpoints]
    return tables if database.address.file is not None else [*tables, _blobs]


async def keep_latest(database: Database, thread: str) -> bool:
    """Delete all but the last checkpoint of a thread and of each of its subgraphs. False, and
    nothing is deleted, where the state is in the past ones: a graph with a `DeltaChannel`.
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


# -- stores that keep namespaces apart ----------------------------------------------------

SQLITE, POSTGRES = "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres"
FIRST_SAFE = "3.1.1"
"""The first version of either that does not find ("docs-2",) for the prefix ("docs",)."""


def check_store_version(package: str) -> None:
    """Raise `ConfigError` for an installed version whose store mixes namespaces."""
    installed = version(package)
    if Version(installed) < Version(FIRST_SAFE):
        raise ConfigError(
            f"{package} {installed} finds items of other namespaces, such as those of the tenant "
            f"'acme-corp' for 'acme': install {package}>={FIRST_SAFE}"
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
"""For the connection of the store: LangGraph writes whole seconds without a zone, and a new
creation with each change. Temporary, so that the database stays one that all others can write.
"""


def rising_clock() -> Callable[[], str]:
    """The time now, in UTC, later with each call: in the order of the writes."""
    last = datetime.fromtimestamp(0, UTC)

    def now() -> str:
        nonlocal last
        last = max(datetime.now(UTC), last + timedelta(microseconds=1))
        return last.isoformat(" ", "microseconds")

    return now
