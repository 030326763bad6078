"""Opens the API of files and batches for a server, and resumes the unfinished batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import APIRouter

from agentrt.serving.batches.files import Files
from agentrt.serving.batches.folder import FolderStorage
from agentrt.serving.batches.records import Records
from agentrt.serving.batches.requests import Endpoints, abandon_runs
from agentrt.serving.batches.routes import add_batches
from agentrt.serving.batches.runner import BatchRunners, BatchServices
from agentrt.serving.batches.storage import Storage
from agentrt.serving.batches.stored import StoredBatch
from agentrt.serving.error_responses import OpenAIRoute
from agentrt.serving.langgraph.database.connections import Address
from agentrt.serving.programs.runs import ProgramRuns
from agentrt.serving.server import Server
from agentrt.steady import SteadyClock

_SWEEP_S = 60.0
"""Seconds between two removals of expired files."""


@asynccontextmanager
async def api(server: Server) -> AsyncIterator[APIRouter]:
    """Open the routes of files and batches. Raises `ConfigError` if the server cannot store files
    and batches.
    """
    router = APIRouter(prefix="/v1", route_class=OpenAIRoute)
    async with AsyncExitStack() as stack:
        storage = await asyncio.to_thread(open_storage, server.database)
        stack.callback(storage.close)
        clock = SteadyClock(server.machine)
        # Reading from the storage blocks, so it runs in threads.
        batches = await asyncio.to_thread(
            Records, storage, "batch_", "batch", StoredBatch.from_fields
        )
        live = [record for record in batches.all() if record.is_live]

        def batch_reading(tenant: str, file_id: str) -> str | None:
            return next(
                (
                    batch.id
                    for batch in batches.of(tenant)
                    if batch.input_file_id == file_id and batch.is_live
                ),
                None,
            )

        files = await asyncio.to_thread(Files, server, storage, clock, batch_reading)
        being_written = {
            (record.tenant, file_id)
            for record in live
            for file_id in (record.output_id, record.error_id)
        }
        await asyncio.to_thread(files.remove_orphans, being_written)
        files.add_to(router)
        await stack.enter_async_context(
            server.background.doing("sweep of files", files.sweep, _SWEEP_S)
        )
        runs = ProgramRuns(server)
        stack.push_async_callback(runs.close)
        services = BatchServices(server, clock, files, batches, Endpoints(server, runs))
        runners = BatchRunners(services)
        add_batches(router, services, runners)
        server.at_drain.append(runners.drain)
        stack.push_async_callback(runners.close)
        live_ids = {record.id for record in live}
        await abandon_runs(server, lambda batch_id: batch_id not in live_ids)
        for record in live:
            runners.start(record)
        yield router


def open_storage(database: str) -> Storage:
    """Open the storage of a server with this database URL: tables in a PostgreSQL database, or a
    folder beside an SQLite database. Raises `ConfigError` if the database or the folder cannot be
    used.
    """
    address = Address.parse(database)
    if address.file is not None:
        return FolderStorage(address.file.with_name(f"{address.file.name}.files"))
    from agentrt.serving.batches.postgres import PostgresStorage  # needs the extra postgres

    return PostgresStorage(address)
