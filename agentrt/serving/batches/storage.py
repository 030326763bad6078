"""The storage for the records and the contents of files and batches: its interface, and a folder
beside the SQLite database, with a folder for each tenant. `postgres` has the storage in PostgreSQL.

No part of a path comes from a client: the name of a tenant's folder is a digest, and an id is
looked up in memory before it becomes the name of a file.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, BinaryIO, Protocol

from starlette.responses import FileResponse, Response

from agentrt import files
from agentrt.batch.lines import LineFile
from agentrt.errors import ConfigError


class AnswerLines(Protocol):
    """An output or error file that is being written, in one event loop. Methods raise `OSError`."""

    async def put_line(self, line: bytes) -> None:
        """Add a line, and return when it is stored."""

    def append(self, data: bytes) -> None:
        """Add complete lines, and return when they are stored. This method blocks."""

    async def flush(self) -> None:
        """Wait until all lines of `put_line` have been written."""

    def close(self) -> None:
        """Close the file. Idempotent."""


class Content(Protocol):
    """The content of a file, whether or not it exists. All methods block, and raise `OSError`."""

    def size(self) -> int:
        """Return the number of bytes. Raises `FileNotFoundError` if there is no content."""

    def lines(self) -> Iterator[bytes]:
        """Yield each line with its line end. Yield nothing if there is no content."""

    def store(self, source: BinaryIO) -> None:
        """Store all bytes of ``source`` as the content, or nothing if this method raises."""

    def open_answers(self) -> AnswerLines:
        """Open the content to add lines. If a server was killed while it wrote a line, the
        incomplete line is removed.
        """

    def remove(self) -> None:
        """Remove the content if it exists."""

    def response(self) -> Response:
        """Return the content as a response to a client."""


class BatchStorage(Protocol):
    """A place for records and contents, which only one server at a time uses.

    Methods block, and raise `OSError` if the place cannot be reached or is full.
    """

    def records(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yield a pair for each record whose id begins with ``prefix``: a name of the record for
        log messages, and the record's text.
        """

    def put_record(self, tenant: str, record_id: str, text: str) -> None:
        """Add or replace the record of a tenant."""

    def remove_record(self, tenant: str, record_id: str) -> None:
        """Remove a record if it exists."""

    def content(self, tenant: str, file_id: str) -> Content:
        """Return the content of a tenant's file."""

    def remove_orphans(self, needed: Collection[tuple[str, str]]) -> None:
        """Remove all contents except those of the files ``needed``, which are pairs of a tenant and
        a file id. A server that was killed leaves contents that nothing needs.
        """

    def close(self) -> None:
        """Let another server use the place. Idempotent."""


# -- a folder ----------------------------------------------------------------------------


_log = logging.getLogger(__name__)


class _FolderContent:
    """The content of a file at ``path``. ``folder`` creates the folder of the file's tenant."""

    def __init__(self, path: Path, folder: FolderStorage, tenant: str) -> None:
        self._path, self._folder, self._tenant = path, folder, tenant

    def size(self) -> int:
        return self._path.stat().st_size

    def lines(self) -> Iterator[bytes]:
        if self._path.exists():
            with self._path.open("rb") as file:
                yield from file

    def store(self, source: BinaryIO) -> None:
        self._folder.create(self._tenant)
        # The path exists only once the whole content is on the disk.
        with files.replacing(self._path) as file:
            shutil.copyfileobj(source, file)

    def open_answers(self) -> LineFile:
        file = LineFile(self._path)
        if tail := file.incomplete():
            file.drop(len(tail))
        return file

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def response(self) -> Response:
        return FileResponse(self._path, media_type="application/octet-stream")


class FolderStorage:
    """A folder with one folder for the records and contents of each tenant.

    The folder is created and locked for this process by the first write, so that a server without
    files and batches writes nothing to the disk. A folder that exists is locked at once.

    Raises `ConfigError` if another process has locked the folder, or if the folder cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None
        self._opening = threading.Lock()
        """Held while the folder is created and locked, since several threads may write first."""
        if path.exists():
            try:
                self._open()
            except BlockingIOError as error:
                raise ConfigError(
                    f"{path}: another server uses this folder for its files and batches; stop "
                    "that server, or name another database"
                ) from error
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise ConfigError(
                    f"{path}: this folder cannot store files and batches: {reason}; correct this, "
                    "or name another database"
                ) from error

    def _of(self, tenant: str) -> Path:
        """Return the path of a tenant's folder, whether or not it exists."""
        return self.path / hashlib.sha256(tenant.encode()).hexdigest()[:32]

    def create(self, tenant: str) -> Path:
        """Create the folder of a tenant if it does not exist, and return the folder's path. Raises
        `BlockingIOError` if another process has locked the storage, and another `OSError` if the
        folder cannot be created.
        """
        with self._opening:
            if self._lock is None:
                self._open()
        folder = self._of(tenant)
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)
            files.sync(self.path)
        return folder

    def _open(self) -> None:
        if not self.path.is_dir():
            self.path.mkdir(mode=0o700)
            files.sync(self.path.absolute().parent)
        self._lock = files.lock_beside(self.path / "files")

    def _folders(self) -> Iterator[Path]:
        """Yield the existing folders of all tenants."""
        if self.path.is_dir():
            yield from (path for path in sorted(self.path.iterdir()) if path.is_dir())

    def records(self, prefix: str) -> Iterator[tuple[str, str]]:
        for folder in self._folders():
            for path in folder.glob(f"{prefix}*.json"):
                try:
                    yield str(path), path.read_text("utf-8", "replace")
                except OSError as error:
                    _log.warning("%s is ignored because it cannot be read: %s", path, error)

    def put_record(self, tenant: str, record_id: str, text: str) -> None:
        with files.replacing(self.create(tenant) / f"{record_id}.json") as file:
            file.write(text.encode())

    def remove_record(self, tenant: str, record_id: str) -> None:
        (self._of(tenant) / f"{record_id}.json").unlink(missing_ok=True)

    def content(self, tenant: str, file_id: str) -> _FolderContent:
        return _FolderContent(self._of(tenant) / f"{file_id}.jsonl", self, tenant)

    def remove_orphans(self, needed: Collection[tuple[str, str]]) -> None:
        paths = {self._of(tenant) / f"{file_id}.jsonl" for tenant, file_id in needed}
        for folder in self._folders():
            for pattern in ("*.jsonl", ".*"):  # contents, and files that were half written
                for path in folder.glob(pattern):
                    if path not in paths:
                        path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
