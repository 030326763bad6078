"""How a server that is a command is run: its stderr is read, for its last words alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from mcp.client.stdio import StdioServerParameters, stdio_client

from agentrt.integrations.mcp.config import StdioServer

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

_LAST_WORDS = 300
_AT_ONCE = 1 << 16


class Stderr:
    """What a server writes to stderr. Its end is kept, all else is dropped."""

    def __init__(self) -> None:
        self._tail = b""

    @property
    def last_line(self) -> str:
        """The last line that says something; "" if none does."""
        lines = self._tail.decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def read_from(self, descriptor: int) -> None:
        """There is something to read, or the end."""
        try:
            data = os.read(descriptor, _AT_ONCE)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(descriptor)
        self._tail = (self._tail + data)[-_LAST_WORDS:]


@asynccontextmanager
async def opened_stdio(server: StdioServer, stderr: Stderr) -> AsyncIterator[TransportStreams]:
    """Run the server; at the block's end its stdin is closed, and then it is killed."""
    parameters = StdioServerParameters(
        command=server.command, args=list(server.args), env=dict(server.env), cwd=server.cwd or None
    )
    loop = asyncio.get_running_loop()
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    loop.add_reader(ours, stderr.read_from, ours)
    try:
        with os.fdopen(theirs, "w") as errlog:
            async with stdio_client(parameters, errlog) as streams:
                yield streams
    finally:
        loop.remove_reader(ours)
        stderr.read_from(ours)
        os.close(ours)
