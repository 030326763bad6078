"""A file of lines for one writer: each line is on the disk as a whole, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_BLOCK = 64 * 1024


class LineFile:
    """A file of lines, used in one event loop. What a kill has left of a half-written line is
    `incomplete` when the file is opened again. Raises `OSError` if the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="results")
        self._pending: list[tuple[bytes, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        try:
            # The name of a new file has to survive a loss of power, too.
            sync(path.absolute().parent)
        except OSError:
            LineFile.close(self)
            raise

    def incomplete(self) -> bytes:
        """Return the bytes after the last line end: the beginning of a line that was cut off."""
        size = os.fstat(self._number).st_size
        tail, start = b"", size
        while start > 0 and b"\n" not in tail:
            start = max(0, start - _BLOCK)
            tail = os.pread(self._number, size - start, start)
        return tail.rpartition(b"\n")[2]

    def complete(self) -> None:
        """End the incomplete line, of which only the line end was missing."""
        os.pwrite(self._number, b"\n", os.fstat(self._number).st_size)
        os.fsync(self._number)

    def drop(self, count: int) -> None:
        """Remove the last ``count`` bytes."""
        os.ftruncate(self._number, os.fstat(self._number).st_size - count)
        os.fsync(self._number)

    async def put_line(self, line: bytes) -> None:
        """Add a line with its end; it is on the disk when this returns. If the caller is cancelled,
        the line is written nevertheless. Raises `OSError`.
        """
        written = asyncio.get_running_loop().create_future()
        self._pending.append((line, written))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="results")
        await asyncio.shield(written)

    async def _write(self) -> None:
        """Write all pending lines, several with one flush."""
        while self._pending:
            lines, self._pending = self._pending, []
            data, loop = b"".join(line for line, _ in lines), asyncio.get_running_loop()
            error: OSError | None = None
            try:
                await loop.run_in_executor(self._thread, self.append, data)
            except OSError as raised:
                error = raised
            for _, written in lines:
                if not written.done():
                    written.set_result(None) if error is None else written.set_exception(error)

    def append(self, data: bytes) -> None:
        """Write whole lines, and wait until they are on the disk. Raises `OSError`, and then leaves
        the file as it was.
        """
        size = os.fstat(self._number).st_size
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._number, data[done:], size + done)
            os.fsync(self._number)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._number, size)
            error.filename = str(self.path)
            raise

    async def flush(self) -> None:
        """Wait until all lines are written."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._thread.shutdown()
        if self._number >= 0:
            os.close(self._number)
            self._number = -1


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
