"""The routes of batches."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field, StringConstraints
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentrt.errors import NotServedError
from agentrt.serving.batches.files import UPLOADED, read_lifetime
from agentrt.serving.batches.stored import StoredBatch
from agentrt.serving.batches.work import Shop, Works
from agentrt.serving.error_responses import ApiError
from agentrt.serving.middleware import tenant_of
from agentrt.serving.programs.bodies import Strict

_MOST_LISTED = 100
_LISTED = 20
_MOST_KEPT = 10_000
"""Batches of a tenant that are remembered; those that ended first are forgotten."""
_WINDOW = re.compile(r"([0-9]{1,5})([mhd])")
_UNITS = {"m": 60, "h": 3600, "d": 24 * 3600}
_LONGEST_S = 30 * 24 * 3600

MetadataKey = Annotated[str, StringConstraints(max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]


class Lifetime(Strict):
    """How long the files that a batch writes are kept."""

    anchor: Any = None
    seconds: Any = None


class BatchRequest(Strict):
    """``POST /v1/batches``."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None
    output_expires_after: Lifetime | None = None


def window_s(window: str) -> int:
    """Return the seconds of a completion window. Raises `ApiError`."""
    match = _WINDOW.fullmatch(window)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= _LONGEST_S:
        text = f"completion_window must be a time from 1m to 30d, such as 24h, got {window!r}"
        raise ApiError(400, text, param="completion_window", code="invalid_value")
    return seconds


def add_batches(router: APIRouter, shop: Shop, works: Works) -> None:
    """Add the routes."""
    records = shop.records

    @router.post("/batches", response_model=None)
    async def create_batch(request: Request, body: BatchRequest) -> Response:
        """Begin a batch with an uploaded file."""
        tenant = tenant_of(request)
        record = _new(shop, tenant, body)
        await records.put(record)
        works.begin(record)
        ended = [each for each in records.of(tenant) if not each.is_live]
        for old in ended[: max(0, len(records.of(tenant)) - _MOST_KEPT)]:
            await records.remove(old)
        return JSONResponse(record.to_json())

    @router.get("/batches", response_model=None)
    async def list_batches(
        request: Request,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = _LISTED,
    ) -> Response:
        """The tenant's batches, the newest first."""
        return JSONResponse(records.page(tenant_of(request), after=after, limit=limit))

    @router.get("/batches/{batch_id}", response_model=None)
    async def retrieve_batch(request: Request, batch_id: str) -> Response:
        """How a batch stands."""
        return JSONResponse(records.get(tenant_of(request), batch_id).to_json())

    @router.post("/batches/{batch_id}/cancel", response_model=None)
    async def cancel_batch(request: Request, batch_id: str) -> Response:
        """Cancel a batch. Requests under way are aborted, and what has been answered stays."""
        record = records.get(tenant_of(request), batch_id)
        if record.status in ("validating", "in_progress"):
            record.come_to("cancelling", shop.clock.now())
            await records.put(record)
            works.stop(record)
        elif record.status != "cancelling":
            text = f"batch {batch_id!r} has status {record.status!r} and cannot be cancelled"
            raise ApiError(400, text, code="batch_not_cancellable")
        return JSONResponse(record.to_json())


def _new(shop: Shop, tenant: str, body: BatchRequest) -> StoredBatch:
    """Make a batch of a request. Raises `ApiError`."""
    seconds = window_s(body.completion_window)
    try:
        shop.targets.find(body.endpoint)
    except NotServedError as error:
        raise ApiError(400, f"endpoint: {error}", param="endpoint", code="invalid_value") from None
    file = shop.files.records.find(tenant, body.input_file_id)
    if file is None or file.purpose != UPLOADED:
        text = f"input_file_id: no such file with purpose {UPLOADED!r}: {body.input_file_id!r}"
        raise ApiError(400, text, param="input_file_id", code="not_found")
    kept_s = None
    if (lifetime := body.output_expires_after) is not None:
        kept_s = read_lifetime(lifetime.anchor, lifetime.seconds, "output_expires_after")
    most = shop.server.tenants.limits(tenant).batches
    if sum(record.is_live for record in shop.records.of(tenant)) >= most:
        text = f"tenant {tenant!r} has {most} batches that have not ended, as many as its limit"
        text += " batches allows; wait for the end of a batch, or cancel one"
        raise ApiError(429, text, code="batch_limit_exceeded")
    now = shop.clock.now()
    return StoredBatch(
        shop.records.new_id(),
        tenant,
        shop.records.next_number(tenant),
        body.endpoint,
        file.id,
        body.completion_window,
        int(now),
        int(now) + seconds,
        shop.files.records.new_id(),
        shop.files.records.new_id(),
        body.metadata,
        kept_s,
    )
