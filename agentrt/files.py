"""Reads and locks the files that people name, whatever lies there: in bounded time and memory.

What cannot be read is an `OSError`, what is not what it should be a `ValueError`.
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
from pathlib import Path
from typing import IO, Any, NoReturn

from agentrt.errors import ConfigError

MOST = 64 * 1024 * 1024
"""The bytes of a file (settings, keys, an input)."""
WAIT_S = 10.0
"""How long a pipe may be silent."""
_CHUNK = 1024 * 1024
_DATABASE = b"SQLite format 3\0"


def expanded(name: str) -> Path:
    """Return the path with the home folder for its ``~``, or as it is where there is none."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def file_named(name: str, where: str) -> Path:
    """The file of a database, which may be new. Raises `ConfigError` for what can be none, by
    ``where`` it was named.
    """
    path = Path(name)
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{where}: there is no folder {str(path.parent)!r}; make it")
    if path.is_dir():
        raise ConfigError(f"{where}: that is a folder; name a file")
    return path


def check_plain(path: Path, most: float = math.inf) -> None:
    """Raise `OSError` for what is there and is no plain file, or is larger than ``most`` bytes.

    For files that others open: a pipe or a device would hold them.
    """
    with contextlib.suppress(FileNotFoundError):
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "that is no plain file")
        if found.st_size > most:
            raise _too_large(most)


def is_database(path: Path) -> bool:
    """Whether a file that is there is one of SQLite, as journals are."""
    try:
        if not path.is_file():  # a pipe would wait for its writer
            return False
        with path.open("rb") as file:
            return file.read(len(_DATABASE)) == _DATABASE
    except (OSError, ValueError):
        return False


def lock_beside(path: Path) -> IO[str]:
    """Lock ``path`` for this process, by a file beside it: until that is closed, or the process
    ends. Raises `BlockingIOError` where another process has the lock.
    """
    check_plain(path)
    file = path.with_name(path.name + ".lock").open("w")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        file.close()
        raise
    return file


def _too_large(most: float) -> OSError:
    return OSError(errno.EFBIG, f"more than {most / 1024**2:.0f} MiB")


def read_bytes(path: Path, most: int = MOST) -> bytes:
    """All of a file, or of a pipe, of at most ``most`` bytes."""
    # Not blocking: to open a pipe that nobody writes to would take for ever.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(number)
        # Who types at a terminal takes the time that he takes.
        wait_s = math.inf if os.isatty(number) else WAIT_S
        is_stream = not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode)
        read = bytearray()
        while len(read) <= most and found.st_size <= most:
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
        raise OSError(errno.ETIMEDOUT, f"nothing came from it for {seconds:g} s")


def read_text(path: Path, most: int = MOST) -> str:
    """A file's text: UTF-8, with or without a mark at its beginning."""
    raw = read_bytes(path, most)
    try:
        return io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8-sig").read()
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error


def read_json(path: Path, most: int = MOST) -> Any:
    """A file's JSON."""
    return parse_json(read_text(path, most))


def parse_json(text: str) -> Any:
    """JSON as its standard has it: no NaN, no number that is too large."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value
