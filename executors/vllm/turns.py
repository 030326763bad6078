"""Work that takes turns by whom it is for, and a thread for it beside the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from agentrt.executors.frontend import WORKS_FOR

T = TypeVar("T")


class Turns:
    """So many at a time; those who wait take turns by whom they are for."""

    def __init__(self, most: int) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._free = most

    async def take(self, who: str) -> None:
        """Wait for the turn, until `over`."""
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.over()
            raise

    def over(self) -> None:
        """Give the turn to the one who had it the longest ago: dicts keep their order."""
        for who in tuple(self._waiting):
            queue = self._waiting.pop(who)
            while queue:
                turn = queue.popleft()
                if not turn.done():
                    if queue:
                        self._waiting[who] = queue
                    turn.set_result(None)
                    return
        self._free += 1


class SharedThread:
    """One thread for the work of all, one piece at a time."""

    def __init__(self, name: str) -> None:
        self._turns = Turns(1)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, work: Callable[[], T]) -> T:
        """What ``work`` comes to, in the turn of whom it is for."""
        await self._turns.take(WORKS_FOR.get())
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
