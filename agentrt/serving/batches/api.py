"""Opens the API of files and batches for a server, and resumes the unfinished batches; the routes
of batches.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field, StringConstraints
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentrt.errors import NotServedError
from agentrt.serving.batches.files import PURPOSE_INPUT, Files, read_lifetime
from agentrt.serving.batches.repository import Repository
from agentrt.serving.batches.requests import Endpoints, abandon_runs
from agentrt.serving.batches.runner import BatchRunners, BatchServices
from agentrt.serving.batches.storage import BatchStorage, FolderStorage
from agentrt.serving.batches.stored import StoredBatch
from agentrt.serving.error_responses import ApiError, OpenAIRoute
from agentrt.serving.langgraph.database.connections import Address
from agentrt.serving.middleware import tenant_of
from agentrt.serving.programs.bodies import Strict
from agentrt.serving.programs.runs import ProgramRuns
from agentrt.serving.server import Server
from agentrt.steady import SteadyClock

_MAX_PAGE = 100
_DEFAULT_PAGE = 20
_MAX_BATCHES = 10_000
"""Maximum number of batches of a tenant. When a tenant creates more batches, its oldest ended
batches are removed.
"""
_WINDOW = re.compile(r"([0-9]{1,5})([mhd])")
_UNITS = {"m": 60, "h": 3600, "d": 24 * 3600}
_MAX_WINDOW_S = 30 * 24 * 3600

_MetadataKey = Annotated[str, StringConstraints(max_length=64)]
_MetadataValue = Annotated[str, StringConstraints(max_length=512)]


class Lifetime(Strict):
    """The field `output_expires_after`: when the files that a batch writes expire."""

    anchor: Any = None
    seconds: Any = None


class BatchRequest(Strict):
    """The body of a request that creates a batch."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Annotated[dict[_MetadataKey, _MetadataValue], Field(max_length=16)] | None = None
    output_expires_after: Lifetime | None = None


def _read_window(window: str) -> int:
    """Return the seconds of a completion window: a number of minutes, hours or days, such as
    ``24h``. Raises `ApiError` for a window of another form, below 1 minute or above 30 days.
    """
    match = _WINDOW.fullmatch(window)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= _MAX_WINDOW_S:
        text = f"completion_window must be a time from 1m to 30d, such as 24h, got {window!r}"
        raise ApiError(400, text, param="completion_window", code="invalid_value")
    return seconds


def _add_batches(router: APIRouter, services: BatchServices, runners: BatchRunners) -> None:
    """Add the routes of batches to a router."""
    records = services.records
    creating = asyncio.Lock()

    @router.post("/batches", response_model=None)
    async def create_batch(request: Request, body: BatchRequest) -> Response:
        """Create a batch. Its requests are the lines of an uploaded file."""
        tenant = tenant_of(request)
        async with creating:  # the next request counts this batch, too, against its limit
            record = _new_batch(services, tenant, body)
            await records.put(record)
        runners.start(record)
        ended = [batch for batch in records.of(tenant) if not batch.is_live]
        for old in ended[: max(0, len(records.of(tenant)) - _MAX_BATCHES)]:
            await records.remove(old)
        return JSONResponse(record.to_json())

    @router.get("/batches", response_model=None)
    async def list_batches(
        request: Request,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=_MAX_PAGE)] = _DEFAULT_PAGE,
    ) -> Response:
        """List the batches of the tenant, the newest batch first."""
        return JSONResponse(records.page(tenant_of(request), after=after, limit=limit))

    @router.get("/batches/{batch_id}", response_model=None)
    async def retrieve_batch(request: Request, batch_id: str) -> Response:
        """Return a batch, with its status and its counts of requests."""
        return JSONResponse(records.get(tenant_of(request), batch_id).to_json())

    @router.post("/batches/{batch_id}/cancel", response_model=None)
    async def cancel_batch(request: Request, batch_id: str) -> Response:
        """Cancel a batch. Requests in flight are aborted. Answers that were written are kept."""
        record = records.get(tenant_of(request), batch_id)
        if record.status in ("validating", "in_progress"):
            record.enter("cancelling", services.clock.now())
            # Interrupt first, so that the batch ends even if the disk is full and `put` fails.
            runners.interrupt(record)
            await records.put(record)
        elif record.status != "cancelling":
            text = f"batch {batch_id!r} has status {record.status!r} and cannot be cancelled"
            raise ApiError(400, text, code="batch_not_cancellable")
        return JSONResponse(record.to_json())


def _new_batch(services: BatchServices, tenant: str, body: BatchRequest) -> StoredBatch:
    """Return the new batch that a request describes. Raises `ApiError` if the batch is not
    allowed.
    """
    seconds = _read_window(body.completion_window)
    try:
        services.endpoints.find(body.endpoint)
    except NotServedError as error:
        raise ApiError(400, f"endpoint: {error}", param="endpoint", code="invalid_value") from None
    file = services.files.records.find(tenant, body.input_file_id)
    if file is None or file.purpose != PURPOSE_INPUT:
        text = f"input_file_id: no such file with purpose {PURPOSE_INPUT!r}: {body.input_file_id!r}"
        raise ApiError(400, text, param="input_file_id", code="not_found")
    output_lifetime_s = None
    if (lifetime := body.output_expires_after) is not None:
        output_lifetime_s = read_lifetime(lifetime.anchor, lifetime.seconds, "output_expires_after")
    limit = services.server.tenants.limits(tenant).batches
    if sum(record.is_live for record in services.records.of(tenant)) >= limit:
        text = f"tenant {tenant!r} has {limit} batches that have not ended, the most that it may"
        text += " have (its limit 'batches'); wait until a batch has ended, or cancel a batch"
        raise ApiError(429, text, code="batch_limit_exceeded")
    now = services.clock.now()
    return StoredBatch(
        services.records.new_id(),
        tenant,
        services.records.next_number(),
        body.endpoint,
        file.id,
        body.completion_window,
        int(now),
        int(now) + seconds,
        services.files.records.new_id(),
        services.files.records.new_id(),
        body.metadata,
        output_lifetime_s,
    )


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
            Repository, storage, "batch_", "batch", StoredBatch.from_fields
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
        _add_batches(router, services, runners)
        server.at_drain.append(runners.drain)
        stack.push_async_callback(runners.close)
        live_ids = {record.id for record in live}
        await abandon_runs(server, lambda batch_id: batch_id not in live_ids)
        for record in live:
            runners.start(record)
        yield router


def open_storage(database: str) -> BatchStorage:
    """Open the storage of a server with this database URL: tables in a PostgreSQL database, or a
    folder beside an SQLite database. Raises `ConfigError` if the database or the folder cannot be
    used.
    """
    address = Address.parse(database)
    if address.file is not None:
        return FolderStorage(address.file.with_name(f"{address.file.name}.files"))
    from agentrt.serving.batches.postgres import PostgresStorage  # needs the extra postgres

    return PostgresStorage(address)
