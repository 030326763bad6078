"""All tools that a runtime can reach: its transports, and what they offer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from agentrt.errors import ConfigError, ToolError, UnknownToolError
from agentrt.interrupts.local import ThreadTransport
from agentrt.interrupts.tool import Tool, ToolTransport


class Toolbox:
    """The transports of one runtime, beside those for functions of its own process."""

    def __init__(self, transports: Sequence[ToolTransport] = ()) -> None:
        self._remote = {one.name: one for one in transports}
        if len(self._remote) < len(transports):
            names = ", ".join(one.name for one in transports)
            raise ConfigError(f"each transport of tools needs a name of its own: {names}")
        self._thread = ThreadTransport()
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        """Open all transports."""
        for one in (self._thread, *self._remote.values()):
            self._stack.push_async_callback(one.close)
            await one.open()

    async def close(self) -> None:
        """Close all transports. Idempotent."""
        await self._stack.aclose()

    def transport_of(self, tool: Tool) -> ToolTransport:
        """Who runs this tool."""
        return tool.transport or self._thread

    def slots_of(self, tool: Tool) -> asyncio.Semaphore | None:
        """How many more calls of this tool may run now; None for any number."""
        if (most := tool.options.concurrency) is None:
            return None
        name = f"{self.transport_of(tool).name}/{tool.name}"
        return self._slots.setdefault(name, asyncio.Semaphore(most))

    async def tools(self, transport: str | None = None) -> list[Tool]:
        """What ``transport`` offers, or all of them; those that cannot be reached offer none.

        Raises `ToolUnavailableError` if ``transport`` cannot be reached, and `UnknownToolError`
        if there is none of that name.
        """
        if transport is not None:
            if transport not in self._remote:
                known = ", ".join(self._remote) or "there is none"
                message = f"no transport of tools is named {transport!r} ({known})"
                raise UnknownToolError(message, name=transport)
            return list(await self._remote[transport].tools())
        offers = [one.tools() for one in self._remote.values()]
        found: list[Tool] = []
        for offered in await asyncio.gather(*offers, return_exceptions=True):
            if isinstance(offered, BaseException):
                if not isinstance(offered, ToolError):
                    raise offered
            else:
                found += offered
        return found

    async def find(self, name: str) -> Tool:
        """The tool of this name, such as ``drill`` or ``mqtt/drill`` where two transports have
        it. Raises `UnknownToolError`.
        """
        known = {f"{self.transport_of(one).name}/{one.name}": one for one in await self.tools()}
        if name in known:
            return known[name]
        fitting = [full for full, one in known.items() if one.name == name]
        if len(fitting) == 1:
            return known[fitting[0]]
        if fitting:
            raise UnknownToolError(
                f"several tools are named {name!r}: say which, {' or '.join(sorted(fitting))}",
                name=name,
            )
        offered = ", ".join(sorted(known)) or "none is offered now"
        raise UnknownToolError(f"no tool is named {name!r} ({offered})", name=name)
