"""LangGraph's own checkpointer and store, in the same database as our tables."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from agentrt.errors import ConfigError
from agentrt.serving.langgraph.database import Address, Database, open_database
from agentrt.serving.langgraph.fence import Fence, Fenced

_BUSY_S = 30.0


@dataclass(frozen=True, slots=True)
class Storage:
    """All that outlives the server: our tables, checkpoints, and the store of all tenants."""

    database: Database
    saver: BaseCheckpointSaver[Any]
    store: BaseStore
    fence: Fence


@asynccontextmanager
async def open_storage(given: str) -> AsyncIterator[Storage]:
    """What ``--database`` names, open. Raises `ConfigError` if that cannot be."""
    address = Address.parse(given)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(address))
        try:
            if address.file is not None:
                saver, store = await _in_sqlite(address, stack)
            else:
                saver, store = await _in_postgres(address, stack)
        except ImportError as error:
            raise ConfigError(
                f"--database {address}: {error}; install agentrt[postgres]"
            ) from error
        yield Storage(database, saver, store, saver.fence)


async def _in_sqlite(address: Address, stack: AsyncExitStack) -> tuple[Fenced, BaseStore]:
    import aiosqlite
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    from langgraph.store.sqlite.aio import AsyncSqliteStore

    class Saver(Fenced, AsyncSqliteSaver):
        fence = Fence()

    assert address.file is not None
    path = str(address.file)
    saver = Saver(await stack.enter_async_context(aiosqlite.connect(path, timeout=_BUSY_S)))
    await saver.setup()
    connection = await stack.enter_async_context(
        aiosqlite.connect(path, timeout=_BUSY_S, isolation_level=None)
    )
    store = await stack.enter_async_context(AsyncSqliteStore(connection))
    await store.setup()
    return saver, store


async def _in_postgres(address: Address, stack: AsyncExitStack) -> tuple[Fenced, BaseStore]:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from langgraph.store.postgres.aio import AsyncPostgresStore
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    class Saver(Fenced, AsyncPostgresSaver):
        fence = Fence()

    pool: AsyncConnectionPool[Any] = AsyncConnectionPool(
        address.url,
        min_size=2,
        max_size=8,
        open=False,
        kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
    )
    await stack.enter_async_context(pool)
    saver = Saver(pool)
    await saver.setup()
    store = await stack.enter_async_context(AsyncPostgresStore(pool))
    await store.setup()
    return saver, store
