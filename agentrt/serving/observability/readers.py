"""The readers of the stream of events. Each reader has a buffer of the changes since its last read.

A buffer is bounded. It has the programs and nodes that changed, and not every change, so that
repeated changes need no more space. A reader whose buffer still overflows is disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from agentrt.errors import AgentrtError
from agentrt.graph import Node
from agentrt.runtime.run import Run

RunFilter = Callable[[Run], bool]
Changed = list[tuple[Run, Node | None]]


class ReaderTooSlowError(AgentrtError):
    """More programs and nodes changed than fit into the reader's buffer."""


class ChangeReader:
    """A buffer of the changes of programs for which ``wanted`` returns True.

    Read the buffer on the event loop on which it was created.
    """

    def __init__(self, wanted: RunFilter, size: int) -> None:
        self.wanted = wanted
        self._size = size
        self._changes: dict[tuple[str, int | None], tuple[Run, Node | None]] = {}
        self._overflowed = False
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._asleep = False

    def note(self, run: Run, node: Node | None) -> None:
        """Record a change. Call it from any thread under the registry's lock; it never blocks."""
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
        """Return the changes since the last call. Call it under the registry's lock.

        Raises `ReaderTooSlowError` if the buffer has overflowed.
        """
        if self._overflowed:
            raise ReaderTooSlowError(
                "this client read too slowly, and its buffer of changes overflowed; connect again"
            )
        changes, self._changes = self._changes, {}
        self._wake.clear()
        self._asleep = True
        return list(changes.values())

    async def wait(self, seconds: float) -> None:
        """Wait until something changes, at most this many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()


class ChangeReaders:
    """The open readers, each with a buffer for ``buffer`` changes."""

    def __init__(self, buffer: int = 8192) -> None:
        self._buffer = buffer
        self._open: set[ChangeReader] = set()

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def opened(self, wanted: RunFilter) -> Iterator[ChangeReader]:
        """Yield a reader of the programs for which ``wanted`` returns True."""
        reader = ChangeReader(wanted, self._buffer)
        self._open.add(reader)
        try:
            yield reader
        finally:
            self._open.remove(reader)

    def note(self, run: Run, node: Node | None) -> None:
        """Record a change for all readers that want it."""
        for reader in tuple(self._open):
            reader.note(run, node)
