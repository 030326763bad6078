"""The routes of files: what clients upload for batches, and what batches have written."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from fastapi import APIRouter, Query
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from agentrt.batch.lines import sync
from agentrt.serving.batches.records import Folder, Records
from agentrt.serving.batches.stored import StoredFile, content_of
from agentrt.serving.error_responses import ApiError
from agentrt.serving.middleware import tenant_of
from agentrt.serving.server import Server
from agentrt.steady import SteadyClock

KEPT_S = 30 * 24 * 3600
"""How long an uploaded file is kept unless its client says otherwise, as at OpenAI."""
LEAST_KEPT_S, MOST_KEPT_S = 3600, KEPT_S
UPLOADED, WRITTEN = "batch", "batch_output"
"""The purposes of files: uploaded for batches, and written by batches."""
_MOST_LISTED = 10_000
_LONGEST_NAME = 255
_FIELDS = 16


class Files:
    """The files of all tenants. ``reader_of`` names the live batch that reads a file, if there is
    one: such a file stays.
    """

    def __init__(
        self,
        server: Server,
        folder: Folder,
        clock: SteadyClock,
        reader_of: Callable[[str, str], str | None],
    ) -> None:
        self._server = server
        self._folder = folder
        self._clock = clock
        self._reader_of = reader_of
        self.records = Records(folder, "file-", "file", StoredFile.read)

    def content(self, tenant: str, file_id: str) -> Path:
        """Return the path of a file's content."""
        return content_of(self._folder.of(tenant), file_id)

    async def publish(
        self, tenant: str, file_id: str, filename: str, purpose: str, seconds: float | None
    ) -> StoredFile:
        """Make a file out of content that is on the disk already. It is kept for so many seconds.
        Idempotent. Raises `OSError`.
        """
        if (known := self.records.find(tenant, file_id)) is not None:
            return known
        now = self._clock.now()
        record = StoredFile(
            file_id,
            tenant,
            self.records.next_number(tenant),
            self.content(tenant, file_id).stat().st_size,
            int(now),
            filename,
            purpose,
            None if seconds is None else int(now + seconds),
        )
        await self.records.put(record)
        return record

    async def remove(self, record: StoredFile) -> None:
        """Remove a file. Raises `OSError`."""
        await self.records.remove(record)
        content = self.content(record.tenant, record.id)
        await asyncio.to_thread(content.unlink, missing_ok=True)

    async def sweep(self) -> None:
        """Remove the files that have expired and that no batch reads."""
        now = self._clock.now()
        for record in self.records.all():
            is_over = record.expires_at is not None and record.expires_at <= now
            if is_over and self._reader_of(record.tenant, record.id) is None:
                await self.remove(record)

    def forget_rest(self, keeps: Callable[[Path], bool]) -> None:
        """Remove contents without a record, as a kill leaves them, except those that it ``keeps``.
        Called when the server starts.
        """
        known = {self.content(record.tenant, record.id) for record in self.records.all()}
        for path in self._left():
            if path not in known and not keeps(path):
                path.unlink(missing_ok=True)

    def _left(self) -> Iterator[Path]:
        for tenant in self._folder.tenants():
            for pattern in ("*.jsonl", "*.part", "*.new"):
                yield from tenant.glob(pattern)

    # -- routes ------------------------------------------------------------------------

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""

        @router.post("/files", response_model=None)
        async def create_file(request: Request) -> Response:
            """Upload the input of a batch, as a form with ``file`` and ``purpose``."""
            async with request.form(max_files=1, max_fields=_FIELDS) as form:
                return JSONResponse(await self._create(tenant_of(request), form))

        @router.get("/files", response_model=None)
        async def list_files(
            request: Request,
            after: str | None = None,
            limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = _MOST_LISTED,
            order: Literal["asc", "desc"] = "desc",
            purpose: str | None = None,
        ) -> Response:
            """The tenant's files, the newest first."""
            page = self.records.page(
                tenant_of(request),
                after=after,
                limit=limit,
                ascending=order == "asc",
                keeps=lambda record: purpose in (None, record.purpose),
            )
            return JSONResponse(page)

        @router.get("/files/{file_id}", response_model=None)
        async def retrieve_file(request: Request, file_id: str) -> Response:
            """A file, without its content."""
            return JSONResponse(self.records.get(tenant_of(request), file_id).to_json())

        @router.get("/files/{file_id}/content", response_model=None)
        async def content_of_file(request: Request, file_id: str) -> Response:
            """The content of a file."""
            record = self.records.get(tenant_of(request), file_id)
            path = self.content(record.tenant, record.id)
            return FileResponse(path, media_type="application/octet-stream")

        @router.delete("/files/{file_id}", response_model=None)
        async def delete_file(request: Request, file_id: str) -> Response:
            """Delete a file. One that a live batch reads stays until that batch has ended."""
            record = self.records.get(tenant_of(request), file_id)
            if (reader := self._reader_of(record.tenant, record.id)) is not None:
                text = f"{reader} reads file {file_id!r}; cancel the batch, or wait for its end"
                raise ApiError(400, text, param="id", code="file_in_use")
            await self.remove(record)
            return JSONResponse({"id": file_id, "object": "file", "deleted": True})

    async def _create(self, tenant: str, form: FormData) -> Any:
        upload, purpose = form.get("file"), form.get("purpose")
        if not isinstance(upload, UploadFile):
            text = "file: send the file as the field 'file' of a form (multipart/form-data)"
            raise ApiError(400, text, param="file", code="invalid_value")
        if purpose != UPLOADED:
            text = f"purpose: this server keeps files for batches; pass {UPLOADED!r}"
            raise ApiError(400, text, param="purpose", code="invalid_value")
        anchor, seconds = (form.get(f"expires_after[{name}]") for name in ("anchor", "seconds"))
        kept_s = KEPT_S if anchor is seconds is None else read_lifetime(anchor, seconds)
        self._check_room(tenant, upload.size or 0)
        file_id = self.records.new_id()
        path = content_of(self._folder.made_for(tenant), file_id)
        await asyncio.to_thread(_copy, upload.file, path)
        name = (upload.filename or "file")[:_LONGEST_NAME]
        return (await self.publish(tenant, file_id, name, UPLOADED, kept_s)).to_json()

    def _check_room(self, tenant: str, size: int) -> None:
        shortage = self._server.checks.get("disk", lambda: None)()
        if shortage is not None:
            raise ApiError(507, f"{shortage}; free some space, and try again", code="disk_full")
        most = self._server.tenants.limits(tenant).files_mib
        used = sum(record.bytes for record in self.records.of(tenant))
        if most is not None and used + size > most * 2**20:
            raise ApiError(
                400,
                f"tenant {tenant!r} has {used / 2**20:.1f} MiB of files, and this file would take "
                f"it over its limit files_mib, which is {most}; delete some files",
                code="storage_limit_exceeded",
            )


def read_lifetime(anchor: object, seconds: object, name: str = "expires_after") -> int:
    """Read for how many seconds a file is to be kept. Raises `ApiError`."""
    if anchor != "created_at":
        text = f"{name}.anchor must be 'created_at', got {anchor!r}"
        raise ApiError(400, text, param=f"{name}.anchor", code="invalid_value")
    text_of = str(seconds)
    kept_s = int(text_of) if text_of.isascii() and text_of.isdigit() and len(text_of) < 10 else 0
    if not LEAST_KEPT_S <= kept_s <= MOST_KEPT_S:
        text = f"{name}.seconds must be from {LEAST_KEPT_S} to {MOST_KEPT_S}, got {seconds!r}"
        raise ApiError(400, text, param=f"{name}.seconds", code="invalid_value")
    return kept_s


def _copy(source: BinaryIO, path: Path) -> None:
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            shutil.copyfileobj(source, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync(path.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
