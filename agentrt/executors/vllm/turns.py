"""Queues in which tenants take turns, and a thread that works through one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from agentrt.executors.vllm.processes import leave_processor

T = TypeVar("T")


class InTurn(Generic[T]):
    """A queue whose owners take turns, in the order of the dict."""

    def __init__(self, is_over: Callable[[T], bool]) -> None:
        self._is_over = is_over
        self._waiting: dict[str, deque[T]] = {}

    def add(self, owner: str, one: T) -> None:
        """Let ``one`` wait behind what its owner has here already."""
        self._waiting.setdefault(owner, deque()).append(one)

    def next(self, without: Collection[str] = ()) -> T | None:
        """Take an item of the owner whose last turn is longest ago, except those in ``without``.

        Items that are over are dropped, and do not count as a turn.
        """
        for owner in [one for one in self._waiting if one not in without]:
            queue = self._waiting.pop(owner)
            while queue:
                one = queue.popleft()
                if not self._is_over(one):
                    if queue:
                        self._waiting[owner] = queue
                    return one
        return None

    def clear(self) -> None:
        """Forget what waits."""
        self._waiting.clear()


class Turns:
    """Limits the work under way to ``most``; owners take turns.

    Work of any size starts while some of ``most`` is free.
    """

    def __init__(self, most: int) -> None:
        self._waiting = InTurn[tuple[asyncio.Future[None], int]](lambda one: one[0].done())
        self._free = most

    async def take(self, who: str, size: int = 1) -> None:
        """Wait for the turn of work of ``size``, until `over`."""
        if self._free > 0:
            self._free -= size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(who, (turn, size))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.over(size)
            raise

    def over(self, size: int = 1) -> None:
        """Give the turn to the next who wait."""
        self._free += size
        while self._free > 0 and (first := self._waiting.next()) is not None:
            turn, size = first
            self._free -= size
            turn.set_result(None)


class SharedThread:
    """One thread beside the event loop; owners take turns.

    It has a lower priority than the event loop, unless it is an ``equal``: for work that holds the
    interpreter's lock most of the time. From such a thread with a lower priority a busy machine
    takes the processor while it has the lock, and the event loop waits for both.
    """

    def __init__(self, name: str, *, equal: bool = False) -> None:
        self._turns = Turns(1)
        self._pool = ThreadPoolExecutor(1, name, None if equal else leave_processor)

    async def run(self, work: Callable[[], T], who: str) -> T:
        """The result of ``work``, in the turn of its owner ``who``."""
        await self._turns.take(who)
        try:
            # The thread cannot be stopped: whoever comes next waits for it.
            working = asyncio.get_running_loop().run_in_executor(self._pool, work)
            try:
                return await asyncio.shield(working)
            except asyncio.CancelledError:
                await asyncio.wait([working])
                raise
        finally:
            self._turns.over()
