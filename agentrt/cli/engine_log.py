"""Starting an engine with its output in a log file, so that the terminal stays clean.

vLLM, torch and their child processes write to the file descriptors 1 and 2 directly, so these
descriptors are redirected during the start. After the start this process has its own streams again,
and the child processes go on writing to the log.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self, TextIO

from agentrt.cli.screen import Screen, open_screen
from agentrt.errors import EngineStartError, ModelLoadError
from agentrt.executors.base import Progress
from agentrt.runtime import Runtime

_ENVIRONMENT = {
    # By default vLLM logs to stdout, where the program's results go.
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    # A forked engine would share the pipe by which signals wake this process, so that this process
    # would handle a SIGTERM for the child. `vllm serve` spawns its engine, too.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}


_MODELS_FAULT = (
    "AttributeError",
    "FileNotFoundError",
    "KeyError",
    "NotImplementedError",
    "OSError",
    "SafetensorError",
    "TypeError",
    "ValueError",
    "ValidationError",
)
"""The errors that show that an engine's model or options are wrong. With other errors, the cause is
the machine.
"""


class EngineLog:
    """The log of an engine's output: a temporary file, or stderr if ``verbose``."""

    def __init__(self, *, verbose: bool) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self.path: Path | None = None
        self._stream: TextIO | None = None
        self._file: IO[bytes] | None = None
        if not verbose:
            # The file has no name, so nothing stays behind if this process is killed.
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  # until `__exit__`
            flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags | os.O_APPEND)

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Redirect the output of this process and its new children to the log, during the ``with``
        block.
        """
        saved = os.dup(1), os.dup(2)
        streams = sys.stdout, sys.stderr
        _flush(*streams)
        target = self._open()
        try:
            os.dup2(target, 1)
            os.dup2(target, 2)
            # A logger that is set up in the block keeps the stream that is sys.stderr now, so this
            # stream must write to the log for ever.
            self._stream = os.fdopen(target, "w", buffering=1, encoding="utf-8")
            sys.stdout = sys.stderr = self._stream
            yield
        finally:
            # Restore the streams first: if the disk of the log is full, flushing the log raises an
            # error, which the user must see.
            written = sys.stdout
            sys.stdout, sys.stderr = streams
            for number, file in enumerate(saved, 1):
                os.dup2(file, number)
                os.close(file)
            _flush(written)

    def _open(self) -> int:
        return os.dup(2 if self._file is None else self._file.fileno())

    def name_it(self) -> str:
        """Return words that say where to read the log. Unless the log is stderr, the first call
        copies the log to a file that outlives the command.
        """
        if self._file is None:
            return "see vLLM's own log above"
        if self.path is None:
            file, name = tempfile.mkstemp(prefix="agentrt-engine-", suffix=".log")
            with os.fdopen(file, "wb") as copy:
                copy.write(self._content())
            self.path = Path(name)
        return f"vLLM's own log: {self.path}"

    def lines(self) -> list[str]:
        """Return the lines of the log so far; no lines if the log is stderr."""
        return self._content().decode("utf-8", errors="replace").splitlines()

    def _content(self) -> bytes:
        if self._file is None:
            return b""
        number = self._file.fileno()
        return os.pread(number, os.fstat(number).st_size, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for file in (self._stream, self._file):
            if file is not None:
                file.close()


def _flush(*streams: TextIO) -> None:
    for stream in streams:
        stream.flush()


@contextmanager
def opened_output(*, verbose: bool) -> Iterator[tuple[EngineLog, Screen, Callable[[str], None]]]:
    """Open a command's log and screen. Also yields a function that prints a last line when a signal
    ends the process at once.
    """
    with EngineLog(verbose=verbose) as log, open_screen(plain=verbose) as screen:
        yield log, screen, screen.last_words


async def start_engine(runtime: Runtime, progress: Progress, log: EngineLog) -> None:
    """Open the runtime, with the engine's output in ``log``. Raises the errors of the engine's
    start.

    Warnings of agentrt itself are for the user, so they go to stderr, after the start.
    """
    with _warnings_after(), log.collect():
        try:
            await runtime.open(progress)
        except EngineStartError as error:
            raise _explained(error, log) from error
        try:
            progress("opening the engine's front end")
            await runtime.frontend()
        except BaseException:
            await runtime.close()
            raise


@contextmanager
def _warnings_after() -> Iterator[None]:
    """Hold back the log records of agentrt's loggers until the ``with`` block has ended."""
    logger, held = logging.getLogger("agentrt"), _HeldLines()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(held)
    try:
        yield
    finally:
        logger.removeHandler(held)
        logger.propagate = propagate
        for record in held.records:
            logger.handle(record)


class _HeldLines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def _explained(error: EngineStartError, log: EngineLog) -> EngineStartError | ModelLoadError:
    """Return the error with its cause from the log, as a `ModelLoadError` if the model or the
    options are wrong.
    """
    cause = root_cause(log.lines())
    if cause is None:
        return EngineStartError(f"{error} ({log.name_it()})")
    text = f"the engine did not start: {cause} ({log.name_it()})"
    kind = cause.split(":")[0].rpartition(".")[2]
    return ModelLoadError(text) if kind in _MODELS_FAULT else EngineStartError(text)


def root_cause(lines: Sequence[str]) -> str | None:
    """Return the error at the end of a log's first traceback, or None. Later tracebacks are
    consequences of the first.

    vLLM writes a prefix, which ends with ``]``, before each line of a traceback.
    """
    inside = False
    for line in lines:
        text = _without_prefix(line)
        if text.startswith("Traceback (most recent call last)"):
            inside = True
        elif inside and text and not text.startswith((" ", "|", "+")):
            return text.strip()
    return None


def _without_prefix(line: str) -> str:
    if not line.startswith("("):
        return line
    head, bracket, tail = line.partition("] ")
    return tail if bracket and ".py:" in head else line
