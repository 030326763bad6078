"""Tools of this process: async functions on its event loop, all others in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from agentrt.errors import ToolFailedError
from agentrt.graph import Progress
from agentrt.interrupts.context import ToolContext, context_parameter
from agentrt.interrupts.threads import Threads
from agentrt.interrupts.tool import ToolRequest, ToolTransport


class ThreadTransport(ToolTransport):
    """Awaits async functions, and runs all others in a thread.

    A thread cannot be stopped: past its time it is left behind, and its result is dropped.
    """

    name = "thread"

    def __init__(self) -> None:
        self._threads = Threads()

    async def close(self) -> None:
        self._threads.close()

    async def call(self, request: ToolRequest, context: ToolContext) -> Any:
        function, arguments = request.tool.function, request.arguments
        assert function is not None
        schema = request.tool.schema
        name = context_parameter(function) if schema is None else schema.context
        if name is not None:
            arguments = {**arguments, name: _ThreadContext(context)}
        if request.tool.is_async:
            return await function(*request.positional, **arguments)
        run = partial(_run, function, request.positional, arguments)
        return await self._threads.run(run)


def _run(
    function: Callable[..., Any], positional: tuple[Any, ...], arguments: Mapping[str, Any]
) -> Any:
    try:
        return function(*positional, **arguments)
    except (SystemExit, KeyboardInterrupt, StopIteration) as error:
        # As the result of a task, these would end the event loop, or never arrive.
        raised = f"{type(error).__name__}: {error}"
        raise ToolFailedError(f"the tool raised {raised}", type=type(error).__name__) from error


class _ThreadContext:
    """A context for a function that may run in another thread, or on a loop of its own."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()

    def progress(self, progress: Progress) -> None:
        self._context.progress(progress)

    async def ask(self, question: str, schema: Mapping[str, Any] | None = None) -> Any:
        asking = self._context.ask(question, schema)
        if asyncio.get_running_loop() is self._loop:
            return await asking
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asking, self._loop))
