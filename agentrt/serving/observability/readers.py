"""Readers of the stream of events: each buffers what changed since it last read.

A buffer is bounded. It holds which programs and nodes changed, not each change, so a slow reader
finds less to read; one whose buffer still overflows is disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from agentrt.errors import AgentrtError
from agentrt.graph import Node
from agentrt.runtime.run import Run

Wanted = Callable[[Run], bool]
Changed = list[tuple[Run, Node | None]]


class TooSlowError(AgentrtError):
    """More changed than the reader's buffer holds."""


class Reader:
    """What changed of the programs that are ``wanted``. Read on the loop that made it."""

    def __init__(self, wanted: Wanted, size: int) -> None:
        self.wanted = wanted
        self._size = size
        self._changes: dict[tuple[str, int | None], tuple[Run, Node | None]] = {}
        self._overflowed = False
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._asleep = False

    def note(self, run: Run, node: Node | None) -> None:
        """Something changed. Called from any thread under the registry's lock; never blocks."""
        if self._overflowed or not self.wanted(run):
            return
        self._changes[run.id, None if node is None else node.id] = (run, node)
        if len(self._changes) > self._size:
            self._changes.clear()
            self._overflowed = True
        if self._asleep:
            self._asleep = False
            self._loop.call_soon_threadsafe(self._wake.set)

    def take(self) -> Changed:
        """What changed since the last time; under the registry's lock. Raises `TooSlowError`."""
        if self._overflowed:
            raise TooSlowError("more happened than this reader's buffer holds")
        changes, self._changes = self._changes, {}
        self._wake.clear()
        self._asleep = True
        return list(changes.values())

    async def wait(self, seconds: float) -> None:
        """Wait until something changes, or this long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()


class Readers:
    """The open readers, each with a buffer for so many changes."""

    def __init__(self, buffer: int = 8192) -> None:
        self._buffer = buffer
        self._open: set[Reader] = set()

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def opened(self, wanted: Wanted) -> Iterator[Reader]:
        """A reader while the body runs."""
        reader = Reader(wanted, self._buffer)
        self._open.add(reader)
        try:
            yield reader
        finally:
            self._open.remove(reader)

    def note(self, run: Run, node: Node | None) -> None:
        """Something changed: note it for the readers that want it."""
        for reader in tuple(self._open):
            reader.note(run, node)
