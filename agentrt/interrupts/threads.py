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
_AT_ONCE = 32
"""So many threads start without a pause: a thousand short calls need no thousand threads."""
_PAUSE_S = 0.005


class _Job(NamedTuple):
    future: asyncio.Future[Any]
    context: contextvars.Context
    function: Callable[[], Any]


class Threads:
    """As many threads as there is work for at once, up to ``most``; beyond, it waits.

    It belongs to one event loop, which is woken up once for all results that are there.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._results: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._is_told = False
        self._put = 0
        self._taken = 0  # as it was when the queue was last looked at
        self._open = 0  # jobs whose results the loop has not seen yet
        self._count = 0
        self._looking: asyncio.TimerHandle | None = None

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run the function in a thread. Cancelled, it is left behind there."""
        future = asyncio.get_running_loop().create_future()
        self._jobs.put(_Job(future, contextvars.copy_context(), function))
        self._put += 1
        self._open += 1
        if self._open > self._count:
            if self._count < _AT_ONCE:
                self._start(1)
            else:
                self._look_later()
        return await future

    def close(self) -> None:
        """Let the threads end, as soon as they are idle."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        for _ in range(self._count):
            self._jobs.put(None)
        self._count = 0

    def _start(self, threads: int) -> None:
        for _ in range(min(threads, self._most - self._count)):
            self._count += 1
            name = f"agentrt/tool-{self._count}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def _look_later(self) -> None:
        if self._looking is None and self._count < self._most:
            self._taken = self._put - self._jobs.qsize()
            loop = asyncio.get_running_loop()
            self._looking = loop.call_later(_PAUSE_S, self._look)

    def _look(self) -> None:
        """Start more threads where those that there are do not get through what waits."""
        self._looking = None
        left = self._jobs.qsize()
        if left > self._put - left - self._taken:
            self._start(min(left, _AT_ONCE, self._open - self._count))
        if left:
            self._look_later()

    # -- in the threads ------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(job)
            del job  # and what it refers to, while this thread waits for the next one

    def _do(self, job: _Job) -> None:
        result, error = None, None
        try:
            result = job.context.run(job.function)
        except BaseException as raised:
            error = raised
        self._results.append((job.future, result, error))
        if not self._is_told:
            self._is_told = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                job.future.get_loop().call_soon_threadsafe(self._hand_on)

    # -- on the loop ---------------------------------------------------------------------

    def _hand_on(self) -> None:
        self._is_told = False  # first: what comes from now on tells the loop anew
        while self._results:
            future, result, error = self._results.popleft()
            self._open -= 1
            if future.done():  # cancelled
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
