"""Tools of this process: async functions on its event loop, all others in a thread."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from agentrt.interrupts.tool import ToolContext, ToolRequest, ToolTransport


class ThreadTransport(ToolTransport):
    """Awaits async functions, and runs all others in a thread.

    A thread cannot be stopped: past its time it is left behind, and its result is dropped.
    """

    name = "thread"

    async def call(self, request: ToolRequest, context: ToolContext) -> Any:
        function = request.tool.function
        assert function is not None
        if inspect.iscoroutinefunction(function):
            return await function(*request.positional, **request.arguments)
        return await asyncio.to_thread(function, *request.positional, **request.arguments)
