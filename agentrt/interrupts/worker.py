"""A worker process, which runs one function at a time for the runtime that started it.

The worker imports a function's module when the runtime requests it, and ends when the runtime ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import importlib.util
import inspect
import itertools
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from types import ModuleType, TracebackType
from typing import Any

from agentrt.errors import ToolError, text_of
from agentrt.graph import Progress
from agentrt.interrupts.frames import (
    LENGTH,
    Answered,
    Asked,
    CallFrame,
    Load,
    Loaded,
    Outcome,
    Raised,
    Reference,
    Refused,
    Returned,
    Withdrawn,
    carried,
    error_in,
    frame,
)
from agentrt.interrupts.tool import MAX_BYTES

_PR_SET_PDEATHSIG = 1
_FRAMES = 20
"""Maximum number of frames of a traceback that are sent. They are the innermost frames."""


def main(fd: int, parent: int) -> None:
    """Run the functions that the runtime requests over the socket ``fd``, until the runtime closes
    the socket. ``parent`` is the runtime's process id.
    """
    _die_with(parent)
    os.set_inheritable(fd, False)
    channel = Channel(socket.socket(fileno=fd))
    functions: dict[Reference, Callable[..., Any]] = {}
    while (message := channel.receive()) is not None:
        if isinstance(message, Load):
            channel.send(_load(message, functions))
        elif isinstance(message, CallFrame):
            outcome = _run(functions[message.reference], message, channel)
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            channel.send(outcome)
    os._exit(0)  # do not wait for threads that functions have started


def _die_with(parent: int) -> None:
    """Make the kernel kill this process when its parent ends (on Linux only). If the parent has
    already ended, end this process now.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


class Channel:
    """The worker's end of the socket. Several threads may send."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._sending = threading.Lock()

    def send(self, message: object) -> None:
        """Send a message."""
        with self._sending:
            self.sock.sendall(frame(message))

    def receive(self) -> Any:
        """Return the next message; None if the runtime has closed the socket."""
        if (head := self._read(LENGTH.size)) is None:
            return None
        body = self._read(*LENGTH.unpack(head))
        return None if body is None else pickle.loads(body)

    def _read(self, size: int) -> bytes | None:
        body = bytearray()
        while len(body) < size:
            if not (piece := self.sock.recv(size - len(body))):
                return None
            body += piece
        return bytes(body)


# -- functions ----------------------------------------------------------------------------


def _load(message: Load, functions: dict[Reference, Callable[..., Any]]) -> Loaded:
    sys.path[:] = message.path
    reference = message.reference
    try:
        value: Any = _module(reference)
        for name in reference.qualname.split("."):
            value = getattr(value, name)
    except BaseException as error:
        return Loaded(f"{type(error).__name__}: {error}")
    functions[reference] = getattr(value, "function", value)  # a Tool has this attribute
    return Loaded()


def _module(reference: Reference) -> ModuleType:
    """Import a module under its name in the runtime's process, because pickled values contain this
    name.
    """
    if reference.module not in sys.modules:
        if reference.file is None or _is_importable(reference):
            importlib.import_module(reference.module)
        else:
            _import_file(reference.module, reference.file)
    module = sys.modules[reference.module]
    if reference.main:
        sys.modules["__main__"] = module
    return module


def _is_importable(reference: Reference) -> bool:
    """Return whether importing the module by its name would import the same file."""
    try:
        spec = importlib.util.find_spec(reference.module)
    except (ImportError, ValueError):
        return False
    assert reference.file is not None
    return spec is not None and spec.origin is not None and _same(spec.origin, reference.file)


def _same(path: str, other: str) -> bool:
    return os.path.exists(path) and os.path.samefile(path, other)  # noqa: PTH110, PTH121


def _import_file(name: str, file: str) -> None:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _run(function: Callable[..., Any], call: CallFrame, channel: Channel) -> Outcome:
    try:
        arguments = pickle.loads(call.arguments)
    except Exception as error:
        return Refused(f"{type(error).__name__}: {error}", arguments=True)
    if call.context is not None:
        arguments[call.context] = WorkerContext(channel)
    try:
        result = function(**arguments)
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
    except BaseException as error:
        return _raised(error)
    try:
        pickled = pickle.dumps(result)
    except Exception as error:
        return Refused(f"{type(error).__name__}: {error}", arguments=False)
    if len(pickled) > MAX_BYTES:
        return Refused(f"{len(pickled)} bytes; allowed are {MAX_BYTES}", arguments=False)
    return Returned(pickled)


def _raised(error: BaseException) -> Raised:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return Raised(carried(error), type(error).__name__, text_of(error)[:MAX_BYTES], _text(trace))


def _text(trace: TracebackType | None) -> str:
    return "".join(traceback.format_tb(trace, limit=-_FRAMES))


class WorkerContext:
    """The `ToolContext` of a function that runs in this process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = itertools.count()
        self._open: dict[int, asyncio.Future[Any]] = {}

    def progress(self, progress: Progress) -> None:
        self._channel.send(progress)

    async def ask(self, question: str, schema: Mapping[str, Any] | None = None) -> Any:
        number, loop = next(self._numbers), asyncio.get_running_loop()
        self._open[number] = answered = loop.create_future()
        loop.add_reader(self._channel.sock, self._answered)
        self._channel.send(Asked(number, question, schema))
        try:
            return await answered
        except asyncio.CancelledError:
            self._channel.send(Withdrawn(number))
            raise
        finally:
            del self._open[number]
            if not self._open:
                loop.remove_reader(self._channel.sock)

    def _answered(self) -> None:
        message = self._channel.receive()
        if message is None:
            os._exit(0)
        assert isinstance(message, Answered)
        future = self._open.get(message.number)
        if future is None or future.done():  # the question was withdrawn
            return
        if message.fault:
            future.set_exception(error_in(message.error) or ToolError(message.fault))
        else:
            future.set_result(message.answer)
