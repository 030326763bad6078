"""Running a chat request on a runtime, and the jobs that other threads and loops wait for.

A request from outside any program becomes a program of its own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from agentrt import tracking
from agentrt.errors import EngineDiedError
from agentrt.executors.chat_api import WORKS_FOR
from agentrt.request import CallReport, Reply
from agentrt.runtime import Runtime
from agentrt.runtime.emitter import RunCaller
from agentrt.runtime.run import Run, RunState
from agentrt.tracking.current import running_loop
from agentrt.tracking.scope import Scope

T = TypeVar("T")
PROGRAM_TYPE = "chat"
"""The type of a program that consists of a single call."""
ACCOUNT = "agentrt"
"""The field of an answer, or of a stream's last chunk, with the run and the cost of the call."""
CANCELLED = "the call was cancelled: its runtime was closed"
"""The message of the error of a call that was cancelled, but not by its caller."""


def account_of(replies: list[Reply]) -> dict[str, Any]:
    """Return the run, the node and the cost of a call as fields of an answer; no fields if there
    are no ``replies``.

    ``replies`` are in the order in which the calls ended. Each of several choices (``n`` > 1) is a
    call of its own: return the run and the node of the call that ended last, and the cost of all
    calls (`CallReport.of_all`).
    """
    if not replies:
        return {}
    last, report = replies[-1], CallReport.of_all([reply.report for reply in replies])
    return {
        "run_id": last.run_id,
        "program_id": last.run_id,  # its former name, which works until 0.4
        "node": last.node,
        "service_s": report.service_s,
        "waiting_s": report.waiting_s,
        "preemptions": report.preemptions,
    }


@contextmanager
def caller_in(runtime: Runtime, scope: Scope | None) -> Iterator[RunCaller]:
    """Yield the caller with which a front end makes calls for the code that runs in the program's
    ``scope``. The front end works for the program's tenant.

    If ``scope`` is None, the code is outside any program, and its calls get a program of their own.
    The current task must belong to no program (`tracking.outside`).
    """
    with _scope_for(runtime, scope) as inside:
        assert isinstance(inside.owner, Run)
        WORKS_FOR.set(inside.owner.row.tenant)
        yield runtime.emitter(inside.owner).caller(inside)


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


# -- jobs on the runtime's event loop, for callers on other threads and loops --------------


class LoopJob(Generic[T]):
    """A piece of ``work`` that runs on ``loop`` in the caller's context, for a caller on any thread
    or loop.

    The work starts at `start`, or when the caller starts to wait. A caller that stops waiting, for
    example by Ctrl-C, cancels the work and continues when the work has ended; so a Ctrl-C never
    leaves work behind. The future ``outcome`` is never cancelled: if the work was cancelled on its
    loop, the outcome is an `EngineDiedError`.
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
        """Start the work. Idempotent; `wait` and `wait_async` call it."""
        if self._started:
            return
        self._started = True
        try:
            self._loop.call_soon_threadsafe(self._begin)
        except RuntimeError:
            self.outcome.set_exception(EngineDiedError("the event loop of the runtime is closed"))

    def wait(self) -> T:
        """Block until the work has ended, and return its result. Call this in threads without an
        event loop.
        """
        try:
            self.start()
            return self.outcome.result()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Cancel the work if it has not ended, and block until it has.

        If this method is called on the work's own loop, for example when the garbage collector
        closes a stream, it does not block: the work ends when the loop continues.
        """
        if self.outcome.done():
            return
        self._loop.call_soon_threadsafe(self._cancel)
        if running_loop() is not self._loop:
            concurrent.futures.wait([self.outcome])

    async def wait_async(self) -> T:
        """Await the end of the work on any event loop, and return its result."""
        self.start()
        waiter = asyncio.wrap_future(self.outcome)
        try:
            return await asyncio.shield(waiter)
        except asyncio.CancelledError:
            await self._stop(waiter)
            raise

    async def stop_async(self) -> None:
        """Cancel the work if it has not ended, and await its end."""
        if not self.outcome.done():
            await self._stop(asyncio.wrap_future(self.outcome))

    async def _stop(self, waiter: asyncio.Future[T]) -> None:
        # Mark the exception as read, because no other code reads it. The callback does so even if
        # this wait is cancelled.
        waiter.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._loop.call_soon_threadsafe(self._cancel)
        await asyncio.wait([waiter])

    def _begin(self) -> None:
        # The work belongs to no program, because the caller's program may run on another loop.
        with tracking.outside():
            self._task = self._loop.create_task(self._work())
        self._task.add_done_callback(self._settle)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif not self.outcome.done():  # stopped before it could start
            self.outcome.set_exception(EngineDiedError(CANCELLED))

    def _settle(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.outcome.set_exception(EngineDiedError(CANCELLED))
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())


# -- heartbeats for LangGraph: a node's idle timeout must not expire while its call waits --------


Heartbeat = Callable[[], None]

_PERIOD_S = 0.05
"""Seconds between heartbeats: well below any sensible idle timeout, which LangGraph does not
reveal.
"""


@contextmanager
def beating(beat: Heartbeat | None) -> Iterator[None]:
    """Call ``beat`` regularly during the ``with`` block. Does nothing if it is None."""
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
