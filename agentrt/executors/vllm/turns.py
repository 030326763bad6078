"""Lets tenants take turns: in a queue, within a limit on the work in progress, and in a thread.

The owner of an item in a queue, or of some work, is a tenant.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from agentrt.executors.vllm.processes import leave_processor

T = TypeVar("T")


class InTurn(Generic[T]):
    """A queue of items whose owners take turns.

    ``is_over(item)`` says whether an item is not needed any more. The keys of ``_waiting`` are the
    owners, in the order of their turns.
    """

    def __init__(self, is_over: Callable[[T], bool]) -> None:
        self._is_over = is_over
        self._waiting: dict[str, deque[T]] = {}

    def add(self, owner: str, item: T) -> None:
        """Add an item behind the other items of its owner."""
        self._waiting.setdefault(owner, deque()).append(item)

    def next(self, without: Collection[str] = ()) -> T | None:
        """Remove and return the next item of the owner whose last turn is longest ago. Return None
        if there is no such item.

        Owners in ``without`` are skipped. Items that are over are dropped, and do not count as a
        turn.
        """
        for owner in [owner for owner in self._waiting if owner not in without]:
            queue = self._waiting.pop(owner)
            while queue:
                item = queue.popleft()
                if not self._is_over(item):
                    if queue:
                        self._waiting[owner] = queue
                    return item
        return None

    def clear(self) -> None:
        """Remove all items."""
        self._waiting.clear()


class Turns:
    """Limits the total size of work in progress to ``most``. The owners of waiting work take turns.

    Work starts while any part of the limit is free, even if its size exceeds this part.
    """

    def __init__(self, most: int) -> None:
        self._waiting = InTurn[tuple[asyncio.Future[None], int]](lambda item: item[0].done())
        self._free = most

    async def take(self, owner: str, size: int = 1) -> None:
        """Wait until work of ``owner`` may start. The work takes ``size`` of the limit until
        `over`.
        """
        if self._free > 0:
            self._free -= size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(owner, (turn, size))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.over(size)
            raise

    def over(self, size: int = 1) -> None:
        """End work of ``size``, and start waiting work that the limit now allows."""
        self._free += size
        while self._free > 0 and (first := self._waiting.next()) is not None:
            turn, size = first
            self._free -= size
            turn.set_result(None)


class SharedThread:
    """A single thread besides the thread of the event loop, in which the owners of work take turns.

    The thread has a lower priority than the event loop, unless it is ``equal``. Work that holds the
    interpreter's lock most of the time needs an equal priority: on a busy machine, a thread with a
    lower priority may lose the CPU while it holds the lock, and the event loop would wait, too.
    """

    def __init__(self, name: str, *, equal: bool = False) -> None:
        self._turns = Turns(1)
        self._pool = ThreadPoolExecutor(1, name, None if equal else leave_processor)

    async def run(self, work: Callable[[], T], owner: str) -> T:
        """Run ``work`` in the thread when it is its owner's turn, and return the result."""
        await self._turns.take(owner)
        try:
            # After a cancellation, the next work waits for the thread.
            return await to_its_end(asyncio.get_running_loop().run_in_executor(self._pool, work))
        finally:
            self._turns.over()


async def to_its_end(working: asyncio.Future[T]) -> T:
    """Return the result of work in a thread, which cannot be stopped.

    A caller that is cancelled, once or several times, waits for the end of the work, too. The
    work's result or error is then dropped.
    """
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        working.add_done_callback(_drop_error)
        while not working.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([working])
        raise


def _drop_error(working: asyncio.Future[Any]) -> None:
    """Mark the error of work as retrieved, because asyncio logs errors that nobody retrieves."""
    if not working.cancelled():
        working.exception()
