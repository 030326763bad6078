"""Running tools in this process: async functions on the event loop, other functions in threads."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from queue import SimpleQueue
from typing import Any

from agentrt.errors import QuestionClosedError, ToolFailedError, text_of
from agentrt.graph import Progress
from agentrt.interrupts.context import ToolContext, context_parameter
from agentrt.interrupts.tool import ToolRequest, ToolTransport

_MOST_THREADS = 1000
_BY_POSITION = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


_ENDS = SystemExit, KeyboardInterrupt
"""Exceptions that would end the event loop if a task raised them."""
_NOT_IN_FUTURES = StopIteration, GeneratorExit
"""Exceptions that a future cannot pass on: it refuses the first. If it raises the second, Python
closes the coroutines that wait for it, such as the program that called the tool.
"""


class ToolThreads:
    """The threads for tools of one event loop: a thread for each running call, up to ``most``
    threads.

    The threads are daemons. When Python exits, it waits for the threads of a `ThreadPoolExecutor`,
    so a tool that hangs would prevent the exit.
    """

    def __init__(self, most: int = _MOST_THREADS) -> None:
        self._most = most
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._open = 0
        self._count = 0

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run a function in a thread, and return its result.

        If the caller is cancelled, the thread continues, and its result is dropped.
        """
        loop = asyncio.get_running_loop()
        future, context = loop.create_future(), contextvars.copy_context()

        def work() -> None:
            try:
                settle = partial(self._settle, future, context.run(function), None)
            except BaseException as error:
                settle = partial(self._settle, future, None, error)
            with contextlib.suppress(RuntimeError):  # if the loop is closed, no caller waits
                loop.call_soon_threadsafe(settle)

        self._open += 1
        self._jobs.put(work)
        if self._count < min(self._open, self._most):
            self._count += 1
            name = f"agentrt/tool-{self._count}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        return await future

    def close(self) -> None:
        """End each thread as soon as it is idle."""
        for _ in range(self._count):
            self._jobs.put(None)
        self._count = 0

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # otherwise this thread would keep the job's objects alive until the next job

    def _settle(
        self, future: asyncio.Future[Any], result: Any, error: BaseException | None
    ) -> None:
        self._open -= 1
        if future.done():  # cancelled
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):
            # A future refuses this error, as coroutines do, which raise a RuntimeError instead.
            wrapped = RuntimeError("the function raised StopIteration")
            wrapped.__cause__ = error
            future.set_exception(wrapped)
        else:
            future.set_exception(error)


class ThreadTransport(ToolTransport):
    """The transport that awaits async functions, and runs all other functions in a thread. If such
    a function returns a coroutine, the coroutine is awaited, too.

    A thread cannot be stopped. After the tool's timeout the thread continues, but its result is
    dropped, and its questions are withdrawn.
    """

    name = "thread"

    def __init__(self) -> None:
        self._threads = ToolThreads()

    async def close(self) -> None:
        self._threads.close()

    async def call(self, request: ToolRequest, context: ToolContext) -> Any:
        function, schema = request.tool.function, request.tool.schema
        assert function is not None
        name = context_parameter(function) if schema is None else schema.context
        if name is None:
            return await self._call(request, request.positional, request.arguments)
        own = _LocalContext(context, request.tool.name)
        positional, arguments = request.positional, request.arguments
        # Arguments by position, which only plain functions get, do not include the context.
        place = _place_of(name, function) if positional else None
        if place is not None and place < len(positional):
            positional = (*positional[:place], own, *positional[place:])
        else:
            arguments = {**arguments, name: own}
        try:
            return await self._call(request, positional, arguments)
        finally:
            await own.close()

    async def _call(
        self, request: ToolRequest, positional: tuple[Any, ...], arguments: Mapping[str, Any]
    ) -> Any:
        function = request.tool.function
        assert function is not None
        if request.tool.is_async:
            return await _awaited(function(*positional, **arguments))
        result = await self._threads.run(partial(_run, function, positional, arguments))
        # A lambda, an object with an async ``__call__``, and the wrapper of a decorator that is not
        # async itself may return a coroutine.
        return await _awaited(result) if inspect.iscoroutine(result) else result


def _place_of(name: str, function: Callable[..., Any]) -> int | None:
    """Return the position of a parameter; None if it is passed by name only."""
    parameters = inspect.signature(function).parameters
    by_position = [p.name for p in parameters.values() if p.kind in _BY_POSITION]
    return by_position.index(name) if name in by_position else None


async def _awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of an async function of a tool."""
    try:
        return await coroutine
    except _ENDS as error:
        raise _failed(error) from error


def _run(
    function: Callable[..., Any], positional: tuple[Any, ...], arguments: Mapping[str, Any]
) -> Any:
    try:
        return function(*positional, **arguments)
    except (*_ENDS, *_NOT_IN_FUTURES) as error:
        raise _failed(error) from error


def _failed(error: BaseException) -> ToolFailedError:
    raised = f"{type(error).__name__}: {text_of(error)}"
    return ToolFailedError(f"the tool raised {raised}", type=type(error).__name__)


class _LocalContext:
    """A context for a function that may run in another thread or on another event loop.

    A thread continues after its call has ended, so the questions of the call are withdrawn at its
    end (`close`), and no further questions are asked.
    """

    def __init__(self, context: ToolContext, tool: str) -> None:
        self._context, self._tool = context, tool
        self._loop = asyncio.get_running_loop()
        self._asking: set[asyncio.Task[Any]] = set()
        """The tasks that ask the open questions of other threads and event loops."""
        self._has_ended = False

    def progress(self, progress: Progress) -> None:
        self._context.progress(progress)

    async def ask(self, question: str, schema: Mapping[str, Any] | None = None) -> Any:
        if asyncio.get_running_loop() is self._loop:
            return await self._context.ask(question, schema)
        asking = self._ask(question, schema)
        answer = asyncio.run_coroutine_threadsafe(asking, self._loop)
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            if not self._has_ended:
                raise
            raise self._closed() from None

    async def _ask(self, question: str, schema: Mapping[str, Any] | None) -> Any:
        if self._has_ended:
            raise self._closed()
        task = asyncio.current_task()
        assert task is not None
        self._asking.add(task)
        try:
            return await self._context.ask(question, schema)
        finally:
            self._asking.discard(task)

    async def close(self) -> None:
        """Withdraw the open questions of other threads and event loops, and refuse new ones."""
        self._has_ended = True
        for task in (asking := [*self._asking]):
            task.cancel()
        if asking:
            await asyncio.wait(asking)

    def _closed(self) -> QuestionClosedError:
        return QuestionClosedError(
            "the tool's call has ended, so its questions cannot be answered any more",
            name=self._tool,
        )
