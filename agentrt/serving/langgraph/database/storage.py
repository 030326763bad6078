"""The stored data of the LangGraph API: our tables, and LangGraph's checkpointer and store."""

from __future__ import annotations

import asyncio
import copy
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy as sa
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.store.base import BaseStore, TTLConfig

from agentrt.errors import ConfigError
from agentrt.executors.vllm.turns import to_its_end
from agentrt.extras import install_command
from agentrt.integrations._compat.langgraph import CHECKPOINT_TABLE, number_checkpoints_after
from agentrt.integrations.langgraph.threads import thread_config
from agentrt.serving.langgraph.database._compat import (
    EXACT_STORE_TIMES,
    POSTGRES,
    SQLITE,
    STORE_CLOCK,
    check_store_version,
    rising_clock,
)
from agentrt.serving.langgraph.database._compat_sqlite import (
    SqliteConnection,
    TransactionTurns,
    WritingConnection,
)
from agentrt.serving.langgraph.database.connections import (
    TIMEOUTS,
    Address,
    Database,
    open_database,
)
from agentrt.serving.lifetimes import Lifetimes
from agentrt.steady import MachineClocks

T = TypeVar("T")
_BUSY_S = 30.0
_REMEMBERED = 10_000
"""Maximum number of runs that stay revoked. Tasks of older runs have ended, and write no more."""


class RevokedRuns:
    """The runs that must not write checkpoints any more. Use this object on one event loop only."""

    def __init__(self) -> None:
        self._revoked: OrderedDict[str, None] = OrderedDict()
        self._writing: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    async def revoke(self, run_id: str) -> None:
        """Refuse new writes of a run from now on, and wait for the run's writes that have begun."""
        self._revoked[run_id] = None
        if len(self._revoked) > _REMEMBERED:
            self._revoked.popitem(last=False)
        for done in list(self._writing.get(run_id, ())):
            await done.wait()

    @contextmanager
    def writing(self, config: RunnableConfig) -> Iterator[bool]:
        """Enclose a write by the run that ``config`` names, and yield whether the run may write."""
        run_id = str(config["configurable"].get("run_id"))
        done = asyncio.Event()
        self._writing[run_id].add(done)
        try:
            yield run_id not in self._revoked
        finally:
            done.set()
            self._writing[run_id].remove(done)
            if not self._writing[run_id]:
                del self._writing[run_id]


class RevocableSaver(BaseCheckpointSaver[str]):
    """A base class for checkpointers that ignores the writes of revoked runs.

    A stopped run may still write: LangGraph passes the writes of cancelled tasks to the
    checkpointer without waiting for their end, and a node that runs in a thread cannot be stopped.
    Such writes must not change a thread that has been rolled back.
    """

    revoked: RevokedRuns

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        with self.revoked.writing(config) as may:
            if may:
                return await _whole(super().aput(config, checkpoint, metadata, new_versions))
        return config

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        with self.revoked.writing(config) as may:
            if may:
                await _whole(super().aput_writes(config, writes, task_id, task_path))


async def _whole(write: Coroutine[Any, Any, T]) -> T:
    """Await a write to its end, even if the awaiting task is cancelled meanwhile.

    Otherwise the write's transaction would be undone, and what a task has computed would be lost.
    """
    return await to_its_end(asyncio.create_task(write))


@dataclass(frozen=True, slots=True)
class Storage:
    """The database, the checkpointer with its ``revoked`` runs, and the store of all tenants."""

    database: Database
    saver: BaseCheckpointSaver[Any]
    store: BaseStore
    revoked: RevokedRuns

    async def forget_items(self) -> None:
        """Delete the expired items of the store."""
        store: Any = self.store
        await store.sweep_ttl()

    async def copy_thread(self, source: str, target: str) -> None:
        """Copy all checkpoints of a thread, with their pending writes, to another thread."""
        newest_first = [entry async for entry in self.saver.alist(thread_config(source))]
        for entry in reversed(newest_first):
            namespace = entry.config["configurable"].get("checkpoint_ns", "")
            parent = {"thread_id": target, "checkpoint_ns": namespace}
            parent_id = (entry.parent_config or {}).get("configurable", {}).get("checkpoint_id")
            if parent_id is not None:
                parent["checkpoint_id"] = parent_id
            versions = entry.checkpoint["channel_versions"]
            new = await self.saver.aput(
                {"configurable": parent}, entry.checkpoint, entry.metadata, versions
            )
            by_task: defaultdict[str, list[tuple[str, Any]]] = defaultdict(list)
            for task, channel, value in entry.pending_writes or ():
                by_task[task].append((channel, value))
            for task, writes in by_task.items():
                await self.saver.aput_writes(new, writes, task)


@asynccontextmanager
async def open_storage(
    option: str, lifetimes: Lifetimes | None = None, machine: MachineClocks | None = None
) -> AsyncIterator[Storage]:
    """Open the database that ``option``, the value of ``--database``, names.

    ``lifetimes`` are the defaults for items and threads. ``machine`` has the clocks of the machine.
    Raises `ConfigError` if the database cannot be opened, or if the installed version of
    LangGraph's store is too old (`check_store_version`).
    """
    lifetimes = lifetimes or Lifetimes()
    # A read that refreshes a lifetime is also a write, so reads refresh only if the project wants
    # that.
    ttl = TTLConfig(refresh_on_read=lifetimes.refresh_items, default_ttl=lifetimes.items)
    address = Address.parse(option)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(address, machine))
        try:
            check_store_version(POSTGRES if address.file is None else SQLITE)
            open_langgraphs = _in_postgres if address.file is None else _in_sqlite
            saver, store = await open_langgraphs(address, stack, ttl)
        except ImportError as error:
            raise ConfigError(
                f"--database {address}: {error}; run: {install_command('postgres')}"
            ) from error
        query = sa.text(f"SELECT max(checkpoint_id) FROM {CHECKPOINT_TABLE}")
        async with database.reading() as connection:
            number_checkpoints_after((await connection.execute(query)).scalar())
        yield Storage(database, saver, store, saver.revoked)


async def _in_sqlite(
    address: Address, stack: AsyncExitStack, ttl: TTLConfig
) -> tuple[RevocableSaver, BaseStore]:
    import aiosqlite
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    from langgraph.store.sqlite.aio import AsyncSqliteStore

    path, writer = str(address.file), address.writer
    assert writer is not None
    writing = WritingConnection(writer, await writer.open())
    quick = SqliteConnection(path, timeout=_BUSY_S)
    await stack.enter_async_context(quick)
    quick.direct = True

    class Grouped(AsyncSqliteSaver):
        """LangGraph's checkpointer, whose writes share commits with other transactions
        (`CommitGroups`), and whose reads do not wait for writes.
        """

        async def setup(self) -> None:
            if not self.is_setup:
                await super().setup()

        async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
            reads = self._using(quick, nullcontext())
            return await super(Grouped, reads).aget_tuple(config)

        async def aput(
            self,
            config: RunnableConfig,
            checkpoint: Checkpoint,
            metadata: CheckpointMetadata,
            new_versions: ChannelVersions,
        ) -> RunnableConfig:
            writes = self._using(writing, TransactionTurns(writing))
            return await super(Grouped, writes).aput(config, checkpoint, metadata, new_versions)

        async def aput_writes(
            self,
            config: RunnableConfig,
            writes: Sequence[tuple[str, Any]],
            task_id: str,
            task_path: str = "",
        ) -> None:
            own = self._using(writing, TransactionTurns(writing))
            await super(Grouped, own).aput_writes(config, writes, task_id, task_path)

        async def adelete_thread(self, thread_id: str) -> None:
            writes = self._using(writing, TransactionTurns(writing))
            await super(Grouped, writes).adelete_thread(thread_id)

        def _using(self, connection: Any, lock: Any) -> Grouped:
            """Return a copy of this checkpointer with another connection and lock."""
            other = copy.copy(self)
            other.conn, other.lock = connection, lock
            return other

    class SqliteSaver(RevocableSaver, Grouped):
        revoked = RevokedRuns()

    saver = SqliteSaver(await stack.enter_async_context(SqliteConnection(path, timeout=_BUSY_S)))
    await saver.setup()
    connection = await stack.enter_async_context(
        aiosqlite.connect(path, timeout=_BUSY_S, isolation_level=None)
    )
    store = await stack.enter_async_context(AsyncSqliteStore(connection, ttl=ttl))
    await store.setup()
    await connection.create_function(STORE_CLOCK, 0, rising_clock())
    await connection.executescript(EXACT_STORE_TIMES)
    return saver, store


async def _in_postgres(
    address: Address, stack: AsyncExitStack, ttl: TTLConfig
) -> tuple[RevocableSaver, BaseStore]:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from langgraph.store.postgres.aio import AsyncPostgresStore
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    class PostgresSaver(RevocableSaver, AsyncPostgresSaver):
        revoked = RevokedRuns()

    pool: AsyncConnectionPool[Any] = AsyncConnectionPool(
        address.url,
        min_size=2,
        max_size=8,
        open=False,
        kwargs={
            "autocommit": True,
            "prepare_threshold": 0,
            "row_factory": dict_row,
            **TIMEOUTS,
        },
        configure=_limit_statements,
    )
    await stack.enter_async_context(pool)
    saver = PostgresSaver(pool)
    await saver.setup()
    store = await stack.enter_async_context(AsyncPostgresStore(pool, ttl=ttl))
    await store.setup()
    return saver, store


async def _limit_statements(connection: Any) -> None:
    """Make PostgreSQL stop each statement after `_BUSY_S` seconds, for example a statement that
    waits for a lock. SQLite waits as long for its lock.
    """
    await connection.execute(f"SET statement_timeout = {round(_BUSY_S * 1000)}")
