"""Opens the API of files and batches over a server, and goes on with the batches that it finds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from fastapi import APIRouter

from agentrt.serving.batches.files import Files
from agentrt.serving.batches.records import Folder, Records
from agentrt.serving.batches.requests import Targets, abandon_runs
from agentrt.serving.batches.routes import add_batches
from agentrt.serving.batches.stored import StoredBatch
from agentrt.serving.batches.work import Shop, Works
from agentrt.serving.error_responses import OpenAIRoute
from agentrt.serving.langgraph.database.connections import Address
from agentrt.serving.programs.runs import ProgramRuns
from agentrt.serving.server import Server
from agentrt.steady import SteadyClock

_SWEEP_S = 60.0


@asynccontextmanager
async def api(server: Server) -> AsyncIterator[APIRouter]:
    """Files and batches in a folder beside the server's SQLite database. With PostgreSQL and no
    folder of its own, the server has neither. Raises `ConfigError` if the folder cannot be used.
    """
    router = APIRouter(prefix="/v1", route_class=OpenAIRoute)
    place = folder_beside(server.database)
    if place is None:
        yield router
        return
    async with AsyncExitStack() as stack:
        folder = Folder(place)
        stack.callback(folder.close)
        clock = SteadyClock(server.machine)
        batches = Records(folder, "batch_", "batch", StoredBatch.read)
        live = [record for record in batches.all() if record.is_live]

        def reader_of(tenant: str, file_id: str) -> str | None:
            reading = (each for each in batches.of(tenant) if each.input_file_id == file_id)
            return next((each.id for each in reading if each.is_live), None)

        files = Files(server, folder, clock, reader_of)
        written = {
            files.content(record.tenant, file_id)
            for record in live
            for file_id in (record.output_id, record.error_id)
        }
        files.forget_rest(written.__contains__)
        files.add_to(router)
        await stack.enter_async_context(
            server.background.doing("sweep of files", files.sweep, _SWEEP_S)
        )
        runs = ProgramRuns(server)
        stack.push_async_callback(runs.close)
        shop = Shop(server, clock, files, batches, Targets(server, runs))
        works = Works(shop)
        add_batches(router, shop, works)
        server.at_drain.append(works.drain)
        stack.push_async_callback(works.close)
        going_on = {record.id for record in live}
        await abandon_runs(server, lambda batch: batch not in going_on)
        for record in live:
            works.begin(record)
        yield router


def folder_beside(database: str) -> Path | None:
    """Return the folder of the files of a server with this database; None for PostgreSQL."""
    file = Address.parse(database).file
    return None if file is None else file.with_name(f"{file.name}.files")
