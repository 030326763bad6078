"""The storage for the records and the contents of files and batches: a folder, or PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import BinaryIO, Protocol

from starlette.responses import Response


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


class Storage(Protocol):
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
