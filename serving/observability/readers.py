"""Readers of the stream of events: each keeps what changed since it last looked.

A reader's buffer is bounded. It holds which programs and nodes changed, not each change, so
that one who comes late finds less to read; one for whom it is still too much is cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agentrt.errors import AgentrtError
from agentrt.graph import Node
from agentrt.runtime.run import Run

Wanted = Callable[[Run], bool]
Changed = list[tuple[Run, Node | None]]


class TooManyReadersError(AgentrtError):
    """As many as are allowed listen already."""


class TooSlowError(AgentrtError):
    """More changed than the reader's buffer holds."""


class Reader:
    """What changed of the programs that are ``wanted``. Read on the loop that made it."""

    def __init__(self, wanted: Wanted, size: int) -> None:
        self.wanted = wanted
        self._size = size
        self._changes: dict[tuple[str, int | None], tuple[Run, Node | None]] = {}
        self._cut = False
        self._loop = asyncio.get_running_loop()
        self._bell = asyncio.Event()
        self._asleep = False

    def note(self, run: Run, node: Node | None) -> None:
        """Something changed. Any thread, under the registry's lock; never waits."""
        if self._cut or not self.wanted(run):
            return
        self._changes[run.id, None if node is None else node.id] = (run, node)
        if len(self._changes) > self._size:
            self._changes.clear()
            self._cut = True
        if self._asleep:
            self._asleep = False
            self._loop.call_soon_threadsafe(self._bell.set)

    def take(self) -> Changed:
        """What changed since the last time; under the registry's lock. Raises `TooSlowError`."""
        if self._cut:
            raise TooSlowError("more happened than this reader's buffer holds")
        changes, self._changes = self._changes, {}
        self._bell.clear()
        self._asleep = True
        return list(changes.values())

    async def wait(self, seconds: float) -> None:
        """Until something changes, but no longer than so."""
        try:
            async with asyncio.timeout(seconds):
                await self._bell.wait()
        except TimeoutError:
            return


class Readers:
    """The open readers, at most ``most``, of which a tenant has at most ``most_of_one``."""

    def __init__(self, most: int = 64, most_of_one: int = 16, buffer: int = 8192) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._buffer = buffer
        self._open: dict[Reader, str | None] = {}

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def opened(self, tenant: str | None, wanted: Wanted) -> Iterator[Reader]:
        """A reader while the body runs; `check` first."""
        reader = Reader(wanted, self._buffer)
        self._open[reader] = tenant
        try:
            yield reader
        finally:
            del self._open[reader]

    def check(self, tenant: str | None) -> None:
        """Raises `TooManyReadersError` where there is no room for one more."""
        of_one = sum(owner == tenant for owner in self._open.values())
        if len(self._open) >= self._most or of_one >= self._most_of_one:
            raise TooManyReadersError(
                f"{of_one} of your readers listen already, {len(self._open)} in all: "
                "close one, or try again later"
            )

    def note(self, run: Run, node: Node | None) -> None:
        """Something changed: tell whom it concerns."""
        for reader in tuple(self._open):
            reader.note(run, node)
