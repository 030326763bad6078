"""One tenant's processes of the interpreter, which its programs have one after another."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

from pydantic_monty import FutureSnapshot, Monty, MontySession, ResourceLimits

from agentrt.serving.submit.turns import TenantTurns

T = TypeVar("T")

LINGER_S = 30.0
"""How long processes wait for the tenant's next program: by then its share of computing is full
again, so that nothing is forgotten with it.
"""
_MOST_PROCESSES = 1024
_MOST_PROGRAMS = 256
"""Of one process, one after another; each has an interpreter of its own in it."""
_RESIDENT = 16
"""Programs that keep their processes while they wait. Where there are more, the others wait as
bytes, and the processes go to those that compute.
"""
_MOST_BYTES = 256 * 1024
_STUCK_S = 60.0
_NICE = 19


@dataclass(frozen=True, slots=True)
class ParkedProgram:
    """A program that waits for calls, without a process."""

    state: bytes
    pending_call_ids: list[int]


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
        self._held: set[MontySession] = set()
        self._open = False
        self._pool = Monty(
            min_processes=0,
            max_processes=_MOST_PROCESSES,
            request_timeout=_STUCK_S,
            max_checkouts_per_worker=_MOST_PROGRAMS,
        )

    async def turn(self, function: Callable[[], T]) -> T:
        """Call ``function`` in a thread when it is the tenant's turn."""
        return await self._turns.take(self.apart, function)

    async def apart(self, function: Callable[[], T]) -> T:
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
        self._held.add(session)
        if session.worker_pid is not None:
            os.setpriority(os.PRIO_PROCESS, session.worker_pid, _NICE)
        return session

    def leave_here(self, session: MontySession) -> None:
        """The process is free for another program."""
        self._held.discard(session)
        session.__exit__(None, None, None)

    def parked_here(self, session: MontySession, at: FutureSnapshot) -> ParkedProgram | None:
        """The waiting program as bytes, its process given up; None where it keeps it."""
        if len(self._held) <= _RESIDENT:
            return None
        state = at.dump()
        if len(state) > _MOST_BYTES:
            return None
        parked = ParkedProgram(state, at.pending_call_ids)
        self.leave_here(session)
        return parked

    async def close(self) -> None:
        """End the processes."""
        if self.closing is not None:
            self.closing.cancel()
        if self._open:
            self._open = False
            await self.apart(lambda: self._pool.__exit__(None, None, None))
