"""Files and their routes: input files that clients upload, and files that batches have written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentrt.serving.batches.repository import Repository
from agentrt.serving.batches.storage import BatchStorage, Content
from agentrt.serving.batches.stored import StoredFile
from agentrt.serving.error_responses import ApiError
from agentrt.serving.middleware import tenant_of
from agentrt.serving.server import Server
from agentrt.steady import SteadyClock

MIN_LIFETIME_S, MAX_LIFETIME_S = 3600, 30 * 24 * 3600
DEFAULT_LIFETIME_S = MAX_LIFETIME_S
"""Seconds until an uploaded file expires if the upload has no ``expires_after``. OpenAI has the
same default.
"""
PURPOSE_INPUT, PURPOSE_OUTPUT = "batch", "batch_output"
"""The purpose of files that clients upload for batches, and the purpose of files that batches
write.
"""
_MAX_PAGE = 10_000
_MAX_FILENAME = 255
_MAX_FORM_FIELDS = 16


class Files:
    """The files of all tenants.

    ``batch_reading`` takes a tenant and the id of a file, and returns the id of the live batch
    that reads the file as its input, or None if there is no such batch. A file that a live batch
    reads is not removed.
    """

    def __init__(
        self,
        server: Server,
        storage: BatchStorage,
        clock: SteadyClock,
        batch_reading: Callable[[str, str], str | None],
    ) -> None:
        self._server = server
        self._storage = storage
        self._clock = clock
        self._batch_reading = batch_reading
        self._uploading: dict[str, tuple[str, int]] = {}
        """The tenant and the size (bytes) of each file that is being stored, by id."""
        self.records = Repository(storage, "file-", "file", StoredFile.from_fields)

    def content(self, tenant: str, file_id: str) -> Content:
        """Return the content of a file, whether or not the file exists."""
        return self._storage.content(tenant, file_id)

    async def publish(
        self, tenant: str, file_id: str, filename: str, purpose: str, lifetime_s: float | None
    ) -> StoredFile:
        """Add the record of a file whose content is already stored, and return the record.

        The file expires after ``lifetime_s`` seconds; with None it does not expire. Idempotent.
        Raises `OSError` if the content is missing or the record cannot be written.
        """
        if (known := self.records.find(tenant, file_id)) is not None:
            return known
        size = await asyncio.to_thread(self.content(tenant, file_id).size)
        now = self._clock.now()
        record = StoredFile(
            file_id,
            tenant,
            self.records.next_number(),
            size,
            int(now),
            filename,
            purpose,
            None if lifetime_s is None else int(now + lifetime_s),
        )
        await self.records.put(record)
        return record

    async def remove(self, record: StoredFile) -> None:
        """Remove a file and its content. Raises `OSError` if the file cannot be removed."""
        await self.records.remove(record)
        await asyncio.to_thread(self.content(record.tenant, record.id).remove)

    async def sweep(self) -> None:
        """Remove all expired files, except files that a live batch reads."""
        now = self._clock.now()
        for record in self.records.all():
            is_expired = record.expires_at is not None and record.expires_at <= now
            if is_expired and self._batch_reading(record.tenant, record.id) is None:
                await self.remove(record)

    def remove_orphans(self, being_written: Collection[tuple[str, str]]) -> None:
        """Remove contents that have no record, except the contents of the files ``being_written``,
        which are pairs of a tenant and a file id.

        A server that was killed leaves such contents. Call this method when the server starts.
        """
        known = {(record.tenant, record.id) for record in self.records.all()}
        self._storage.remove_orphans(known.union(being_written))

    # -- routes ------------------------------------------------------------------------

    def add_to(self, router: APIRouter) -> None:
        """Add the routes of files to a router."""

        @router.post("/files", response_model=None)
        async def create_file(request: Request) -> Response:
            """Upload the input file of a batch, as a form with the fields `file` and `purpose`."""
            async with request.form(max_files=1, max_fields=_MAX_FORM_FIELDS) as form:
                return JSONResponse(await self._create(tenant_of(request), form))

        @router.get("/files", response_model=None)
        async def list_files(
            request: Request,
            after: str | None = None,
            limit: Annotated[int, Query(ge=1, le=_MAX_PAGE)] = _MAX_PAGE,
            order: Literal["asc", "desc"] = "desc",
            purpose: str | None = None,
        ) -> Response:
            """List the files of the tenant, by default the newest file first."""
            page = self.records.page(
                tenant_of(request),
                after=after,
                limit=limit,
                ascending=order == "asc",
                matches=lambda record: purpose in (None, record.purpose),
            )
            return JSONResponse(page)

        @router.get("/files/{file_id}", response_model=None)
        async def retrieve_file(request: Request, file_id: str) -> Response:
            """Return the file object of a file, without the content of the file."""
            return JSONResponse(self.records.get(tenant_of(request), file_id).to_json())

        @router.get("/files/{file_id}/content", response_model=None)
        async def content_of_file(request: Request, file_id: str) -> Response:
            """Return the content of a file."""
            record = self.records.get(tenant_of(request), file_id)
            content = self.content(record.tenant, record.id)
            return await asyncio.to_thread(content.response)

        @router.delete("/files/{file_id}", response_model=None)
        async def delete_file(request: Request, file_id: str) -> Response:
            """Delete a file. The input file of a batch can be deleted when the batch has ended."""
            record = self.records.get(tenant_of(request), file_id)
            if (batch_id := self._batch_reading(record.tenant, record.id)) is not None:
                text = f"{batch_id} reads file {file_id!r}; cancel the batch, or wait for its end"
                raise ApiError(400, text, param="id", code="file_in_use")
            await self.remove(record)
            return JSONResponse({"id": file_id, "object": "file", "deleted": True})

    async def _create(self, tenant: str, form: FormData) -> Any:
        upload, purpose = form.get("file"), form.get("purpose")
        if not isinstance(upload, UploadFile):
            text = "file: send the file as the field 'file' of a form (multipart/form-data)"
            raise ApiError(400, text, param="file", code="invalid_value")
        if purpose != PURPOSE_INPUT:
            text = f"purpose must be {PURPOSE_INPUT!r}, {_got(purpose)}; files are for batches only"
            raise ApiError(400, text, param="purpose", code="invalid_value")
        anchor, seconds = (form.get(f"expires_after[{name}]") for name in ("anchor", "seconds"))
        is_default = anchor is seconds is None
        lifetime_s = DEFAULT_LIFETIME_S if is_default else read_lifetime(anchor, seconds)
        size = upload.size or 0
        self._check_space(tenant, size)
        file_id = self.records.new_id()
        name = (upload.filename or "file")[:_MAX_FILENAME]
        self._uploading[file_id] = tenant, size
        try:
            await asyncio.to_thread(self.content(tenant, file_id).store, upload.file)
            record = await self.publish(tenant, file_id, name, PURPOSE_INPUT, lifetime_s)
        finally:
            del self._uploading[file_id]
        return record.to_json()

    def _check_space(self, tenant: str, size: int) -> None:
        shortage = self._server.checks.get("disk", lambda: None)()
        if shortage is not None:
            raise ApiError(507, f"{shortage}; free some space, and try again", code="disk_full")
        limit_mib = self._server.tenants.limits(tenant).files_mib
        used = sum(record.bytes for record in self.records.of(tenant))
        used += sum(size for owner, size in self._uploading.values() if owner == tenant)
        if limit_mib is not None and used + size > limit_mib * 2**20:
            raise ApiError(
                400,
                f"tenant {tenant!r} has {used / 2**20:.1f} MiB of files, and with this file it "
                f"would exceed its limit files_mib, which is {limit_mib}; delete some files",
                code="storage_limit_exceeded",
            )


def read_lifetime(anchor: object, seconds: object, name: str = "expires_after") -> int:
    """Return the lifetime of a file in seconds, from the values of its field ``expires_after``.

    ``name`` is the name of that field in error messages. Raises `ApiError` for values that OpenAI's
    API does not allow.
    """
    if anchor != "created_at":
        text = f"{name}.anchor must be 'created_at', {_got(anchor)}"
        raise ApiError(400, text, param=f"{name}.anchor", code="invalid_value")
    digits = str(seconds)
    lifetime_s = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0
    if not MIN_LIFETIME_S <= lifetime_s <= MAX_LIFETIME_S:
        text = f"{name}.seconds must be from {MIN_LIFETIME_S} to {MAX_LIFETIME_S}, {_got(seconds)}"
        raise ApiError(400, text, param=f"{name}.seconds", code="invalid_value")
    return lifetime_s


def _got(value: object) -> str:
    return "but it is missing" if value is None else f"got {value!r}"
