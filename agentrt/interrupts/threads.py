"""Threads for tools. asyncio's own are few and waited for at the interpreter's exit: tools that
hang would hold up all others, and then the exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple

_MOST = 1000


class _Job(NamedTuple):
    future: asyncio.Future[Any]
    ends: Ends
    context: contextvars.Context
    function: Callable[[], Any]


class Ends:
    """Results on their way to the event loop, which is woken up once for all that are there."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._found: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._is_told = False

    def put(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        """From any thread. What is put while the loop is told already, it takes as well."""
        self._found.append((future, result, error))
        if self._is_told:
            return
        self._is_told = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(self._hand_on)

    def _hand_on(self) -> None:
        self._is_told = False  # first: what comes from now on tells the loop anew
        while self._found:
            future, result, error = self._found.popleft()
            if future.done():  # cancelled
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


class Threads:
    """As many threads as there is work for at once, up to ``most``; beyond, it waits."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._idle: deque[None] = deque()  # as long as threads are idle: a counter without a lock
        self._count = 0
        self._ends: Ends | None = None

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run the function in a thread. Cancelled, it is left behind there."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self._ends is None or self._ends.loop is not loop:
            self._ends = Ends(loop)
        self._jobs.put(_Job(future, self._ends, contextvars.copy_context(), function))
        try:
            self._idle.pop()
        except IndexError:
            if self._count < self._most:
                self._count += 1
                name = f"agentrt/tool-{self._count}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        return await future

    def close(self) -> None:
        """Let the threads end, as soon as they are idle."""
        for _ in range(self._count):
            self._jobs.put(None)
        self._count = 0

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            _do(job)
            del job  # and what it refers to, while this thread waits for the next one
            self._idle.append(None)


def _do(job: _Job) -> None:
    result, error = None, None
    try:
        result = job.context.run(job.function)
    except BaseException as raised:
        error = raised
    job.ends.put(job.future, result, error)
