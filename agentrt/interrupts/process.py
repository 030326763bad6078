"""Running tools in worker processes, which can be killed at a timeout or a cancellation.

`docs/adr/0016-tools-in-worker-processes.md` says why agentrt has its own workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrt.errors import (
    ConfigError,
    ToolArgumentsError,
    ToolError,
    ToolFailedError,
    ToolLostError,
    ToolResultError,
    ToolUnavailableError,
    text_of,
)
from agentrt.graph import Progress
from agentrt.interrupts.attempts import in_time
from agentrt.interrupts.context import ToolContext, context_parameter
from agentrt.interrupts.frames import (
    LENGTH,
    Answered,
    Asked,
    CallFrame,
    FromWorker,
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
from agentrt.interrupts.tool import MAX_BYTES, ToolRequest, ToolTransport

_LOAD_S = 60.0
"""Maximum time to import a function's module, in seconds. After that, the worker is killed."""
_EXIT_S = 1.0
"""Seconds to wait for a worker's exit code after it has closed its socket."""
_ROOT = str(Path(__file__).parents[2])
# A worker starts without the user's folders on its path, because files there may have the same
# names as modules of the standard library.
_START = """import sys
sys.path.insert(0, {root!r})
from agentrt.interrupts.worker import main
main({fd}, {pid})"""


class ProcessTransport(ToolTransport):
    """The transport that runs each attempt in a worker process. A worker runs one attempt at a
    time.

    Workers are started when they are needed, at most ``concurrency`` of them, and are used again.
    The tool's timeout does not include the time to start a worker and to import a function's
    module.
    """

    name = "process"
    keeps_time = True

    def __init__(self, concurrency: int | None = None) -> None:
        self.concurrency = concurrency or min(32, (os.cpu_count() or 1) + 4)
        self.workers: set[WorkerProcess] = set()
        self._idle: list[WorkerProcess] = []

    async def close(self) -> None:
        await asyncio.gather(*(self._end(worker) for worker in tuple(self.workers)))

    async def call(self, request: ToolRequest, context: ToolContext) -> Any:
        call = _call_of(request)
        worker = await self._ready(call.reference, request.tool.name)
        try:
            async with in_time(request):
                outcome = await worker.run(call, context)
        except BaseException as error:  # the attempt timed out or was cancelled, or the worker died
            await self._end(worker)
            if isinstance(error, (EOFError, ConnectionError)):
                message = f"tool {request.tool.name}: its worker process died ({worker.end})"
                raise ToolLostError(message, name=request.tool.name) from None
            raise
        self._idle.append(worker)
        return _result_of(outcome, request.tool.name)

    async def _ready(self, reference: Reference, name: str) -> WorkerProcess:
        """Return a worker that has imported the function. Raises `ToolUnavailableError` if no
        worker can be started, or if the worker cannot import the function.
        """
        where = reference.file or reference.module
        worker = await self._take(reference)
        try:
            if worker is None:
                worker = await WorkerProcess.start()
                self.workers.add(worker)
            if reference not in worker.loaded:
                async with asyncio.timeout(_LOAD_S):
                    await worker.load(reference)
        except BaseException as error:
            if worker is not None:
                await self._end(worker)
            if not isinstance(error, (EOFError, OSError, ImportError)):
                raise
            why = str(error)
            if worker is not None and isinstance(error, (EOFError, ConnectionError)):
                why = f"it died ({worker.end})"
            elif isinstance(error, TimeoutError):
                why = f"it took longer than {_LOAD_S:g} s"
            fault = f"a worker process cannot import {where}"
            if worker is None:
                fault = "no worker process can be started"
            raise ToolUnavailableError(f"tool {name}: {fault}: {why}", name=name) from None
        return worker

    async def _take(self, reference: Reference) -> WorkerProcess | None:
        """Take an idle worker, if possible a worker that has imported the function. Return None if
        no worker is idle.
        """
        for gone in [worker for worker in self._idle if worker.dead]:
            await self._end(gone)
        known = next((worker for worker in self._idle if reference in worker.loaded), None)
        if known is not None:
            self._idle.remove(known)
            return known
        return self._idle.pop() if self._idle else None

    async def _end(self, worker: WorkerProcess) -> None:
        self.workers.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        await worker.kill()


class WorkerProcess:
    """A worker process, as the runtime sees it. ``loaded`` are the functions that the worker has
    imported.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.pid = process.pid
        self._process = process
        self._reader = reader
        self._writer = writer
        self.loaded: set[Reference] = set()

    @classmethod
    async def start(cls) -> WorkerProcess:
        """Start a worker process in a process session of its own. Raises `OSError` if the process
        cannot be started.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            fd = theirs.fileno()
            code = _START.format(root=_ROOT, fd=fd, pid=os.getpid())
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-c", code),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(fd,),
                    start_new_session=True,
                )
            except BaseException:
                writer.close()
                raise
        return cls(process, reader, writer)

    @property
    def dead(self) -> bool:
        """Whether the process has ended or closed its socket."""
        return self._reader.at_eof()

    @property
    def end(self) -> str:
        """How the process ended: the signal or the exit code, as text."""
        code = self._process.returncode
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"

    async def load(self, reference: Reference) -> None:
        """Make the worker import a function. Raises `ImportError` if the worker cannot import it,
        and `EOFError` or `ConnectionError` if the worker dies.
        """
        self._writer.write(frame(Load(reference, sys.path)))
        message = await self._receive()
        assert isinstance(message, Loaded)
        if message.error is not None:
            raise ImportError(message.error)
        self.loaded.add(reference)

    async def run(self, call: CallFrame, context: ToolContext) -> Outcome:
        """Run a function in the worker, and return its outcome. The progress and the questions of
        the function are passed to ``context``.

        Raises `EOFError` or `ConnectionError` if the worker dies.
        """
        asking: dict[int, asyncio.Task[None]] = {}
        try:
            self._writer.write(frame(call))
            await self._writer.drain()
            while True:
                match await self._receive():
                    case Progress() as progress:
                        context.progress(progress)
                    case Asked() as question:
                        answering = asyncio.create_task(self._answer(question, context))
                        asking[question.number] = answering
                    case Withdrawn(number):
                        asking[number].cancel()
                    case Returned() | Raised() | Refused() as outcome:
                        return outcome
        finally:
            for task in asking.values():
                task.cancel()
            if asking:
                await asyncio.wait(asking.values())

    async def _answer(self, question: Asked, context: ToolContext) -> None:
        try:
            answer = await context.ask(question.question, question.schema)
            message = frame(Answered(question.number, answer))
        except Exception as error:
            fault = f"the question failed with {type(error).__name__}: {text_of(error)}"
            message = frame(Answered(question.number, None, fault[:MAX_BYTES], carried(error)))
        self._writer.write(message)

    async def _receive(self) -> FromWorker:
        head = await self._reader.readexactly(LENGTH.size)
        message: FromWorker = pickle.loads(await self._reader.readexactly(*LENGTH.unpack(head)))
        return message

    async def kill(self) -> None:
        """Kill the worker and all processes in its process group. Idempotent."""
        if self.dead:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _EXIT_S)
        self._writer.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()


def reference_to(function: Callable[..., Any]) -> Reference:
    """Return the place where a worker finds a function.

    Raises `ConfigError` for a function of the main module if this module is not a file, as in an
    interactive session.
    """
    name = function.__module__
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    main = name == "__main__"
    if main:
        if file is None:
            raise ConfigError(
                f"{function.__qualname__} is not in a file, so a process cannot import it; put it "
                "into a module and import the module, or leave out isolation='process'"
            )
        # The values that the worker pickles refer to the main module by multiprocessing's name for
        # it, so this process must know the module by that name, too.
        sys.modules.setdefault("__mp_main__", sys.modules["__main__"])
        spec = getattr(module, "__spec__", None)
        name = "__mp_main__" if spec is None else spec.name
    path = None if file is None else os.path.abspath(file)  # noqa: PTH100 - quick
    return Reference(name, path, function.__qualname__, main)


def _call_of(request: ToolRequest) -> CallFrame:
    tool = request.tool
    assert tool.function is not None
    try:
        arguments = pickle.dumps(dict(request.arguments))
    except Exception as error:
        message = f"tool {tool.name}: the arguments cannot be sent to a process: {error}"
        raise ToolArgumentsError(message, name=tool.name) from error
    if len(arguments) > MAX_BYTES:
        message = (
            f"tool {tool.name}: the arguments have {len(arguments)} bytes; allowed are {MAX_BYTES}"
        )
        raise ToolArgumentsError(message, name=tool.name)
    return CallFrame(reference_to(tool.function), arguments, context_parameter(tool.function))


def _result_of(outcome: Outcome, name: str) -> Any:
    if isinstance(outcome, Returned):
        try:
            return pickle.loads(outcome.result)
        except Exception as error:
            message = f"tool {name}: the result cannot be unpickled: {error}"
            raise ToolResultError(message, name=name) from error
    raise _error_of(outcome, name)


def _error_of(outcome: Raised | Refused, name: str) -> Exception:
    if isinstance(outcome, Refused):
        kind: type[ToolError] = ToolArgumentsError if outcome.arguments else ToolResultError
        value = "arguments" if outcome.arguments else "result"
        return kind(
            f"tool {name}: the {value} cannot be sent between processes: {outcome.why}", name=name
        )
    message = f"tool {name} raised {outcome.type}: {outcome.message}"
    failed = ToolFailedError(message, name=name, type=outcome.type)
    error = error_in(outcome.error) or failed
    error.add_note(f"In its worker process:\n{outcome.traceback}")
    return error
