"""A file of lines with a single writer. Adding a line returns when the line is on the disk."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Self

from agentrt import files
from agentrt.errors import UsageError

_BLOCK = 64 * 1024
_LONGEST_NAME = 200
"""Maximum number of bytes of a file's name, so that files beside it, such as its journal and the
drafts of `files.replacing`, can have longer names. File systems allow 255.
"""


class LineWriter(ABC):
    """A writer of lines, used in one event loop. A subclass implements `append`, which stores the
    lines.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="results")
        self._pending: list[tuple[bytes, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    @abstractmethod
    def append(self, data: bytes) -> None:
        """Add complete lines, and wait until they are stored.

        This method blocks, so call it in a thread, or where no event loop runs. If it raises
        `OSError`, the lines may have been added; the caller must read all lines again to find out.
        """

    async def put_line(self, line: bytes) -> None:
        """Add a line, which must end with a line end, and return when the line is on the disk.

        If the caller is cancelled, the line is written nevertheless. Raises `OSError` if the line
        cannot be written.
        """
        written = asyncio.get_running_loop().create_future()
        self._pending.append((line, written))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="results")
        await asyncio.shield(written)

    async def _write(self) -> None:
        """Write the pending lines. Lines that are pending together are stored in one step."""
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

    async def flush(self) -> None:
        """Wait until all lines of `put_line` have been written."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def close(self) -> None:
        """Wait for a write that is in progress, and end the writer's thread. Idempotent."""
        self._thread.shutdown()


class LineFile(LineWriter):
    """A file of lines with a single writer, used in one event loop.

    The file is created if it does not exist. A process that is killed while it writes can leave an
    incomplete last line. After opening the file again, `incomplete` returns that line; end it with
    `complete`, or remove it with `drop`, before you add lines. Raises `OSError` if the file cannot
    be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        super().__init__()
        try:
            # Without this, a loss of power could remove the name of a new file from its folder.
            files.sync(path.absolute().parent)
        except OSError:
            LineFile.close(self)
            raise

    def incomplete(self) -> bytes:
        """Return the bytes after the last line end: an incomplete last line, or no bytes."""
        pieces: list[bytes] = []
        start, line_end = os.fstat(self._descriptor).st_size, b""
        while start > 0 and not line_end:
            size = min(_BLOCK, start)
            start -= size
            _, line_end, piece = os.pread(self._descriptor, size, start).rpartition(b"\n")
            pieces.append(piece)
        return b"".join(reversed(pieces))

    def complete(self) -> None:
        """Add the line end that the last line of the file lacks."""
        os.pwrite(self._descriptor, b"\n", os.fstat(self._descriptor).st_size)
        os.fsync(self._descriptor)

    def drop(self, count: int) -> None:
        """Remove the last ``count`` bytes of the file."""
        os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - count)
        os.fsync(self._descriptor)

    def append(self, data: bytes) -> None:
        """Add complete lines, and wait until they are on the disk.

        This method blocks, so call it in a thread, or where no event loop runs. If it raises
        `OSError`, the file has its earlier content again, unless the disk refuses this, too.
        """
        size = os.fstat(self._descriptor).st_size
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._descriptor, data[done:], size + done)
            os.fsync(self._descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, size)
            error.filename = str(self.path)
            raise

    def replace(self, lines: Iterable[bytes]) -> None:
        """Replace all lines of the file in one step. After an `OSError`, no line is replaced."""
        with files.replacing(self.path) as copy:
            copy.writelines(lines)
        os.close(self._descriptor)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the file. Idempotent."""
        super().close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class OutputFile(LineFile):
    """A file of lines that an option of the command line names. While it is open, no other process
    can write it. ``option`` is the option's name, for messages. At the end of a ``with`` block, the
    file is closed. If the block raises `UsageError`, the batch has usually not begun, so the file
    is abandoned (`abandon`).

    Raises `UsageError` for a path to which lines cannot be written.
    """

    def __init__(self, path: Path, option: str) -> None:
        self.path, self._option = path, option
        try:
            self._lock = self._locked()
        except OSError as error:
            raise self._unwritable(error) from error
        self._is_new = not path.exists()
        try:
            super().__init__(path)
        except OSError as error:
            files.unlock(self._lock)
            raise self._unwritable(error) from error

    @property
    def _named(self) -> str:
        return f"{self._option} {str(self.path)!r}"

    def _locked(self) -> IO[str]:
        where = self._named
        length = len(os.fsencode(self.path.name))
        if length > _LONGEST_NAME:
            raise UsageError(
                f"{where}: the name has {length} bytes; give a name of at most {_LONGEST_NAME} "
                "bytes, since the files beside this file have longer names"
            )
        if self.path.is_dir():
            raise UsageError(f"{where} is a folder; name a file")
        if not self.path.absolute().parent.is_dir():
            raise UsageError(
                f"{where}: the folder {str(self.path.parent)!r} does not exist; create it first"
            )
        if self.path.exists() and not stat.S_ISREG(self.path.stat().st_mode):
            raise UsageError(
                f"{where} is not a regular file; name a regular file, from which a batch can resume"
            )
        if files.is_database(self.path):
            raise UsageError(f"{where} is a database, such as a journal; name another file")
        try:
            return files.lock_beside(self.path)
        except BlockingIOError as error:
            raise UsageError(
                f"{where} is being written by another process, or is already open in this process; "
                "wait until it is closed there, or name another file"
            ) from error

    def _unwritable(self, error: OSError) -> UsageError:
        reason = (error.strerror or str(error)).lower()
        return UsageError(f"{self._named} cannot be written: {reason}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, UsageError):
            self.abandon()
        else:
            self.close()

    def abandon(self) -> None:
        """Close the file; remove it if it was created for this batch and nothing was written."""
        self._thread.shutdown()  # it may be writing a result
        if self._is_new and self._descriptor >= 0 and not os.fstat(self._descriptor).st_size:
            self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Close the file and release its lock. Idempotent."""
        super().close()
        files.unlock(self._lock)
