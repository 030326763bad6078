"""Reading, replacing and locking files that users name. Reading takes bounded memory, and bounded
time except at a terminal, whatever the files are.

`read_bytes`, `read_text` and `read_json` raise `OSError` for a file that cannot be read.
`read_text` and `read_json` raise `ValueError` for a file with the wrong content.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import math
import os
import select
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, NoReturn
from weakref import WeakKeyDictionary

from agentrt.errors import ConfigError

MOST = 64 * 1024 * 1024
"""Default for the maximum size of a file, in bytes. The files are settings, keys or inputs."""
WAIT_S = 10.0
"""Seconds to wait for data from a pipe."""
_CHUNK = 1024 * 1024
_DATABASE = b"SQLite format 3\0"


def expanded(name: str) -> Path:
    """Return a path with ``~`` replaced by the home folder. If the home folder is unknown, return
    the path unchanged.
    """
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def file_named(name: str, where: str) -> Path:
    """Return ``name`` as the path of a database's file, which need not exist yet.

    Raises `ConfigError` if the path is a folder, or if its folder does not exist. The error's
    message begins with ``where``, the option and its value.
    """
    path = Path(name)
    if not path.absolute().parent.is_dir():
        raise ConfigError(
            f"{where}: the folder {str(path.parent)!r} does not exist; create it first"
        )
    if path.is_dir():
        raise ConfigError(f"{where} is a folder; name a file")
    return path


def check_plain(path: Path, most: float = math.inf) -> None:
    """Raise `OSError` if a path exists and is not a regular file, or is larger than ``most`` bytes.

    Use it before a library opens a file, because the library would block on a pipe or a device.
    """
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if status.st_size > most:
            raise _too_large(most)


def is_database(path: Path) -> bool:
    """Return whether a path is an existing SQLite database, such as a journal."""
    try:
        if not path.is_file():  # opening a pipe would wait for its writer
            return False
        with path.open("rb") as file:
            return file.read(len(_DATABASE)) == _DATABASE
    except (OSError, ValueError):
        return False


_LOCKED: WeakKeyDictionary[IO[str], os.stat_result] = WeakKeyDictionary()
"""The lock files that this process has locked."""
_locking = threading.Lock()


def _after_fork() -> None:
    """Forget the locks of the parent process, which this process does not have."""
    _LOCKED.clear()
    _locking.release()


os.register_at_fork(
    before=_locking.acquire, after_in_parent=_locking.release, after_in_child=_after_fork
)


def lock_beside(path: Path, *, again: bool = False) -> IO[str]:
    """Lock ``path`` with a lock file next to it, and return the lock file.

    The lock ends when the lock file is closed or the process ends; a process that is forked
    meanwhile does not have the lock. Raises `BlockingIOError` if another process has the lock, or,
    without ``again``, if another part of this process has it. With ``again``, the lock ends when
    either of the two lock files is closed.
    """
    check_plain(path)
    name = path.with_name(path.name + ".lock")
    with _locking:
        while True:
            # The system would give this process the same lock twice, and end it as soon as one of
            # the two files is closed.
            if not again and _is_locked_here(name):
                raise BlockingIOError(errno.EAGAIN, "this process has the lock")
            file = name.open("w")
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                status = os.fstat(file.fileno())
                # Between opening and locking, `unlock` may have removed the file. Then another
                # process may have the lock of a new file with this name.
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(status, name.stat()):
                        _LOCKED[file] = status
                        return file
            except BaseException:
                file.close()
                raise
            file.close()


def _is_locked_here(name: Path) -> bool:
    try:
        status = name.stat()
    except FileNotFoundError:
        return False
    locked = [*_LOCKED.items()]
    return any(not file.closed and os.path.samestat(status, other) for file, other in locked)


def unlock(file: IO[str]) -> None:
    """End a lock of `lock_beside`, and remove its lock file. Idempotent."""
    if not file.closed:
        with contextlib.suppress(OSError):
            Path(file.name).unlink()
        file.close()


@contextlib.contextmanager
def replacing(path: Path, mode: int | None = None, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Replace a file's content atomically: the caller writes the new content to the yielded file.

    Until the ``with`` block ends, ``path`` has its old content, or does not exist. This is also the
    result if the block raises an error or the process dies. If ``path`` is a symbolic link, the
    file that it names is replaced. ``mode`` is the permissions of the new file, by default those of
    the old file. Without an old file, only the owner may read and write the new file. With
    ``durable``, the new content is on the disk after the block, which can take milliseconds.
    Otherwise, the new content may be lost in a power failure. Raises `OSError` if the file cannot
    be written.
    """
    path = Path(os.path.realpath(path))
    folder = path.parent
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{path.name}.", delete=False) as draft:
        try:
            yield draft  # type: ignore[misc]  # a wrapper with the methods of a binary file
            draft.flush()
            if durable:
                os.fsync(draft.fileno())
            if mode is None and path.exists():
                mode = stat.S_IMODE(path.stat().st_mode)
            if mode is not None:
                os.fchmod(draft.fileno(), mode)
            os.replace(draft.name, path)
        except BaseException:
            Path(draft.name).unlink(missing_ok=True)
            raise
    if durable:
        sync(folder)


def sync(path: Path) -> None:
    """Wait until the content of a file, or the list of names of a folder, is on the disk. Raises
    `OSError` if it cannot be written.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _too_large(most: float) -> OSError:
    return OSError(errno.EFBIG, f"larger than the limit of {most / 1024**2:.0f} MiB")


def read_bytes(path: Path, most: int = MOST) -> bytes:
    """Read a file or a pipe. Raises `OSError` if it cannot be read, if it is larger than ``most``
    bytes, or if it is a pipe that stays silent for `WAIT_S` seconds.
    """
    # Open without blocking, because opening a pipe without a writer would wait for ever.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(number)
        # A human who types at a terminal may take any time.
        wait_s = math.inf if os.isatty(number) else WAIT_S
        is_stream = not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode)
        read = bytearray()
        while len(read) <= most and status.st_size <= most:
            if is_stream:
                _wait(number, wait_s)
            chunk = os.read(number, min(_CHUNK, most + 1 - len(read)))
            if not chunk:
                return bytes(read)
            read += chunk
    finally:
        os.close(number)
    raise _too_large(most)


def _wait(number: int, seconds: float) -> None:
    poll = select.poll()
    poll.register(number, select.POLLIN)
    if not poll.poll(None if seconds == math.inf else seconds * 1000):
        raise OSError(errno.ETIMEDOUT, f"no data for {seconds:g} s")


def read_text(path: Path, most: int = MOST) -> str:
    """Read a file's UTF-8 text, with or without a byte order mark. Raises `ValueError` if the file
    is not UTF-8.
    """
    raw = read_bytes(path, most)
    try:
        return io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8-sig").read()
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error


def read_json(path: Path, most: int = MOST) -> Any:
    """Read a file's JSON. Raises `ValueError` if it is invalid."""
    return parse_json(read_text(path, most))


def parse_json(text: str) -> Any:
    """Parse standard JSON. Raises `ValueError` also for NaN, for infinity, for JSON that is nested
    too deeply, for whole numbers of more than 4,300 digits, and for other numbers that are too
    large for a float.
    """
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    except ValueError as error:
        if str(error).startswith("Exceeds the limit"):  # of Python, for the digits of a number
            raise ValueError("a whole number has more than 4,300 digits") from error
        raise


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value
