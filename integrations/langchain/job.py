"""What runs on the runtime's event loop for somebody who waits elsewhere: calls, and heartbeats."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from agentrt import tracking
from agentrt.errors import EngineDiedError
from agentrt.tracking.current import running_loop

T = TypeVar("T")

_CANCELLED = "the call was cancelled: its runtime was closed"


class Job(Generic[T]):
    """Runs ``work`` on ``loop``, from any thread, in the context of who asks.

    It starts when it is waited for, or at `start`, where an interrupted wait stops it: a Ctrl-C
    between the start and the wait must not leave work that nobody waits for.
    Whoever gives up waiting has the work cancelled, and goes on when it is over.
    ``outcome`` is never cancelled: where the loop's side gave up, it is an `EngineDiedError`.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]
    ) -> None:
        self.outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._loop = loop
        self._work = work
        self._started = False
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        """Have the work begin. Once is enough; `wait` and `wait_async` do it themselves."""
        if self._started:
            return
        self._started = True
        try:
            self._loop.call_soon_threadsafe(self._begin)
        except RuntimeError:
            self.outcome.set_exception(EngineDiedError("the event loop of the runtime is closed"))

    def wait(self) -> T:
        """The result, for a thread without a loop to serve meanwhile."""
        try:
            self.start()
            return self.outcome.result()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Cancel the work if it is not over, and block until it is.

        On the work's own loop, where a stream may be left to the garbage collector, it
        does not block: the work ends as soon as the loop goes on.
        """
        if self.outcome.done():
            return
        self._loop.call_soon_threadsafe(self._cancel)
        if running_loop() is not self._loop:
            concurrent.futures.wait([self.outcome])

    async def wait_async(self) -> T:
        """The result, on any event loop."""
        self.start()
        waiter = asyncio.wrap_future(self.outcome)
        try:
            return await asyncio.shield(waiter)
        except asyncio.CancelledError:
            await self._stop(waiter)
            raise

    async def stop_async(self) -> None:
        """Cancel the work if it is not over, and wait until it is."""
        if not self.outcome.done():
            await self._stop(asyncio.wrap_future(self.outcome))

    async def _stop(self, waiter: asyncio.Future[T]) -> None:
        # It was given up: nobody else reads how it ended, even if this wait is cancelled, too.
        waiter.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._loop.call_soon_threadsafe(self._cancel)
        await asyncio.wait([waiter])

    def _begin(self) -> None:
        # It belongs to no program, even if one asks: that one may be of another loop.
        with tracking.outside():
            self._task = self._loop.create_task(self._work())
        self._task.add_done_callback(self._settle)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif not self.outcome.done():  # stopped before it could start
            self.outcome.set_exception(EngineDiedError(_CANCELLED))

    def _settle(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.outcome.set_exception(EngineDiedError(_CANCELLED))
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())


# -- heartbeats for LangGraph: a node with an idle timeout must outlive the wait for its call ---


Heartbeat = Callable[[], None]

_PERIOD_S = 0.05
"""Well below any sensible idle timeout. LangGraph does not say how long a node's is."""


class Heartbeats:
    """Sends the heartbeats of all calls under way, from one timer of one event loop."""

    def __init__(self) -> None:
        self._beats: dict[int, Heartbeat] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0

    @property
    def is_running(self) -> bool:
        """Whether a timer runs."""
        return self._timer is not None

    @contextmanager
    def sending(self, beat: Heartbeat | None) -> Iterator[None]:
        """Call ``beat`` regularly while the body runs. With None, do nothing."""
        if beat is None:
            yield
            return
        self._next += 1
        key = self._next
        self._beats[key] = beat
        beat()
        if self._timer is None:
            self._set_timer()
        try:
            yield
        finally:
            del self._beats[key]
            if not self._beats and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_PERIOD_S, self._give)

    def _give(self) -> None:
        for beat in list(self._beats.values()):
            beat()
        self._set_timer()
