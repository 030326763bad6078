"""One chat request of a client program on a runtime; outside any, it is a program of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from agentrt import tracking
from agentrt.errors import EngineDiedError
from agentrt.request import Reply
from agentrt.runtime import Runtime
from agentrt.runtime.emitter import LiveEmitter, RunCaller
from agentrt.runtime.run import Run, RunState
from agentrt.tracking.current import running_loop
from agentrt.tracking.scope import Scope

T = TypeVar("T")
PROGRAM_TYPE = "chat"
"""The type of the programs that single calls are."""
ACCOUNT = "agentrt"
"""The field of an answer, or of a stream's last chunk, that says whose call it was and its cost."""


async def alone(work: Coroutine[Any, Any, T]) -> T:
    """Await ``work`` in a task of its own, which a runtime that closes can cancel."""
    with tracking.outside():
        task = asyncio.create_task(work)
    try:
        return await task
    except asyncio.CancelledError:
        me = asyncio.current_task()
        if me is not None and me.cancelling():
            raise
        raise EngineDiedError("the call was cancelled: its runtime was closed") from None


def account_of(replies: list[Reply]) -> dict[str, Any]:
    """Return whose call an answer was, and its cost. Several choices are calls beside each other,
    of which the last to end counts.
    """
    if not replies:
        return {}
    last = replies[-1]
    return {
        "program_id": last.program_id,
        "node": last.node,
        "service_s": last.report.service_s,
        "waiting_s": last.report.waiting_s,
        "preemptions": last.report.preemptions,
    }


@contextmanager
def caller_in(runtime: Runtime, scope: Scope | None) -> Iterator[tuple[LiveEmitter, RunCaller]]:
    """Give what makes the calls of the code in ``scope``; None is outside any program."""
    with _scope_for(runtime, scope) as inside:
        assert isinstance(inside.owner, Run)
        emitter = runtime.emitter(inside.owner)
        yield emitter, emitter.caller(inside)


@contextmanager
def _scope_for(runtime: Runtime, scope: Scope | None) -> Iterator[Scope]:
    if scope is not None:
        yield scope
        return
    run, state = runtime.registry.open(PROGRAM_TYPE), RunState.CANCELLED
    try:
        yield Scope(run, PROGRAM_TYPE)
        state = RunState.DONE
    except Exception:
        state = RunState.FAILED
        raise
    finally:
        runtime.registry.close(run, state)


# -- jobs on the runtime's event loop, for somebody who waits elsewhere --------------------


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


@contextmanager
def beating(beat: Heartbeat | None) -> Iterator[None]:
    """Call ``beat`` regularly while the body runs. With None, do nothing."""
    if beat is None:
        yield
        return
    loop = asyncio.get_running_loop()
    timer: asyncio.Handle

    def give() -> None:
        nonlocal timer
        beat()
        timer = loop.call_later(_PERIOD_S, give)

    timer = loop.call_soon(give)
    try:
        yield
    finally:
        timer.cancel()
