"""One tenant's processes of the interpreter, which its programs have one after another."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import TypeVar

from pydantic_monty import Monty, MontySession, ResourceLimits

from agentrt.serving.tenants.limits import Bucket

T = TypeVar("T")
InThread = Callable[[Callable[[], T]], Awaitable[T]]
"""Calls something in a thread."""

LINGER_S = 30.0
"""How long processes wait for the tenant's next program: by then its share of computing is full
again, so that nothing is forgotten with it.
"""
_MOST_PROCESSES = 1024
_MOST_PROGRAMS = 256
"""Of one process, one after another; each has an interpreter of its own in it."""
_STUCK_S = 60.0
_NICE = 19
"""Of the processes. It alone does not bound what they take: on some machines it changes nothing."""
_SHARE = 0.05
"""Of each core, for the programs of one tenant."""
_BURST_S = 1.0


class TenantTurns:
    """One tenant's turns: one after the other, within its share, which one may overdraw."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self.share = Bucket(_BURST_S, _SHARE * (os.cpu_count() or 1), clock())

    async def take(self, in_thread: InThread[T], function: Callable[[], T]) -> T:
        """Call ``function`` by ``in_thread`` when it is this tenant's turn."""
        async with self._lock:
            await asyncio.sleep(self.share.wait_s(0.0, self._clock()))
            took = 0.0

            def timed() -> T:
                nonlocal took
                began = self._clock()
                try:
                    return function()
                finally:
                    took = self._clock() - began

            try:
                return await in_thread(timed)  # the time in the loop's queue does not count
            finally:
                self.share.take(took, self._clock())


class Workers:
    """The processes of one tenant's programs, and its turns in them. ``programs`` are live.

    Nothing of one tenant is in a process that another has. Methods that end in ``_here`` block,
    and run in a thread, one at a time.
    """

    def __init__(self, threads: Executor) -> None:
        self.programs = 0
        self.closing: asyncio.TimerHandle | None = None
        self._threads = threads
        self._turns = TenantTurns(asyncio.get_running_loop().time)
        self._open = False
        self._pool = Monty(
            min_processes=0,
            max_processes=_MOST_PROCESSES,
            request_timeout=_STUCK_S,
            max_checkouts_per_worker=_MOST_PROGRAMS,
        )

    async def turn(self, function: Callable[[], T]) -> T:
        """Call ``function`` in a thread when it is the tenant's turn."""
        return await self._turns.take(self.in_thread, function)

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Call it in a thread. Who is cancelled waits for its end: it is in a session."""
        call = asyncio.get_running_loop().run_in_executor(self._threads, function)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            await asyncio.wait([call])
            raise

    def enter_here(self, limits: ResourceLimits) -> MontySession:
        """A session with an interpreter that nobody has used."""
        if not self._open:
            self._pool.__enter__()
            self._open = True
        session = self._pool.checkout(limits=limits)
        session.__enter__()
        if session.worker_pid is not None:
            os.setpriority(os.PRIO_PROCESS, session.worker_pid, _NICE)
        return session

    def leave_here(self, session: MontySession) -> None:
        """The process is free for another program."""
        session.__exit__(None, None, None)

    async def close(self) -> None:
        """End the processes."""
        if self.closing is not None:
            self.closing.cancel()
        if self._open:
            self._open = False
            await self.in_thread(lambda: self._pool.__exit__(None, None, None))
