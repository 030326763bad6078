"""Calling a runtime, which lives on one event loop, from any thread and any other event loop.

anyio's `BlockingPortal` is not sufficient: only code on the loop can open and close it, and a
caller that cancels its future continues while the call still runs.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

from agentrt import tracking
from agentrt.errors import CallTimeoutError, ConfigError, EngineDiedError
from agentrt.executors.chat_api import Answer, Frontend, Request
from agentrt.executors.info import ExecutorInfo
from agentrt.integrations.langchain.calls import (
    ACCOUNT,
    CANCELLED,
    Heartbeat,
    LoopJob,
    account_of,
    beating,
    caller_in,
)
from agentrt.request import NO_LIMIT
from agentrt.runtime import Runtime
from agentrt.runtime.emitter import RunCaller
from agentrt.tracking.current import running_loop
from agentrt.tracking.scope import Scope

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Terms:
    """The conditions of a call, apart from its request.

    ``timeout`` is in seconds, counted from when the engine has started. ``heartbeat`` is called
    regularly while the call is in flight. ``scope`` is the position of the calling code in its
    program; None means outside any program.
    """

    timeout: float | None = None
    heartbeat: Heartbeat | None = None
    scope: Scope | None = None


_ANY = Terms()


class RuntimeClient:
    """A client that makes calls on one runtime, from anywhere in the process.

    ``RuntimeClient(make)`` owns its runtime: the first call runs ``make`` and starts the engine, on
    a thread with its own event loop; `close` stops both. `RuntimeClient.borrow` uses a runtime
    that is already open.

    A process that is forked has no threads of its parent, and so no event loop of the parent's
    clients. In such a process, a client that owns its runtime starts an engine again at its next
    call, and a client of a borrowed runtime raises `ConfigError`.
    """

    def __init__(self, make: Callable[[], Runtime]) -> None:
        self._make: Callable[[], Runtime] | None = make
        self._runtime: Runtime | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._opening: asyncio.Task[Runtime] | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()
        self.key = uuid4().hex
        """A name that no other client has."""
        self.closed = False

    @classmethod
    def borrow(
        cls, runtime: Runtime, loop: asyncio.AbstractEventLoop | None = None
    ) -> RuntimeClient:
        """Make a client of a runtime on ``loop``, by default the loop on which the runtime is open,
        or for a runtime that is not open in this process, the running event loop. Raises
        `ConfigError` if there is no loop.
        """
        client = cls(lambda: runtime)
        client._make, client._runtime = None, runtime
        client._loop = loop or runtime.loop or running_loop()
        if client._loop is None:
            raise ConfigError(
                "no event loop is running, so it is unknown which loop the runtime belongs to; "
                "create the chat model inside 'async with Runtime(…) as runtime:', in the process "
                "that opened the runtime, or use RuntimeClient.borrow(runtime, loop)"
            )
        return client

    def open(self) -> None:
        """Start the engine now, and block until it has started. Raises the errors of its start."""
        LoopJob(self._loop_for_threads(), self._opened).wait()

    # -- calls -------------------------------------------------------------------------

    def call(self, request: Request, terms: Terms = _ANY) -> Answer:
        """Make a chat request, block until its answer arrives, and return the answer."""
        loop = self._loop_for_threads()
        return LoopJob(loop, lambda: self._call(request, terms)).wait()

    async def acall(self, request: Request, terms: Terms = _ANY) -> Answer:
        """Make a chat request, and return its answer. Cancelling this coroutine aborts the request
        in the engine.
        """
        loop = self._home()
        if loop is not asyncio.get_running_loop():
            return await LoopJob(loop, lambda: self._call(request, terms)).wait_async()
        with tracking.outside():  # a task of its own, which closing the runtime can cancel
            call = asyncio.create_task(self._call(request, terms))
        try:
            return await call
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise EngineDiedError(CANCELLED) from None

    def stream(self, request: Request, terms: Terms = _ANY) -> Generator[Answer, None, None]:
        """Make a chat request, and yield the pieces of its answer. Closing the iterator aborts the
        request.
        """
        loop = self._loop_for_threads()
        box: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        callers: list[RunCaller] = []
        job = LoopJob(loop, lambda: self._stream(request, terms, box.put, callers))
        # Also if the work never begins, for example because its loop is closed.
        job.outcome.add_done_callback(lambda outcome: box.put(None))
        try:
            job.start()
            while (piece := box.get()) is not None:
                yield piece
            job.wait()
        except GeneratorExit:
            _note_closed(callers)
            raise
        finally:
            job.stop()

    async def astream(self, request: Request, terms: Terms = _ANY) -> AsyncGenerator[Answer, None]:
        """Make a chat request, and yield the pieces of its answer. Closing the iterator aborts the
        request.
        """
        box: asyncio.Queue[Answer | None] = asyncio.Queue()
        here = asyncio.get_running_loop()

        def put(piece: Answer | None) -> None:
            with suppress(RuntimeError):  # the caller's loop is closed, so nobody reads
                here.call_soon_threadsafe(box.put_nowait, piece)

        callers: list[RunCaller] = []
        job = LoopJob(self._home(), lambda: self._stream(request, terms, put, callers))
        job.outcome.add_done_callback(lambda outcome: put(None))
        try:
            job.start()
            while (piece := await box.get()) is not None:
                yield piece
            await job.wait_async()
        except GeneratorExit:
            _note_closed(callers)
            raise
        finally:
            await job.stop_async()

    # -- the runtime -------------------------------------------------------------------

    @property
    def info(self) -> ExecutorInfo:
        """The description of the runtime's executor; an empty description before the runtime is
        open.
        """
        self._forget_parent()
        return ExecutorInfo() if self._runtime is None else self._runtime.executor.info

    @property
    def front(self) -> Frontend | None:
        """The runtime's front end; None if no call has opened it yet."""
        self._forget_parent()
        return None if self._runtime is None else self._runtime.opened_frontend

    def ask(self, question: Callable[[Frontend], Coroutine[Any, Any, T]]) -> T:
        """Run a request other than a call on the front end, block until the request has ended, and
        return its result.

        If this method is called on the runtime's own loop, another loop runs the request, because a
        loop cannot wait for itself. Then the front end must be open; otherwise `ConfigError` is
        raised.
        """
        front, loop = self.front, self._home()
        if running_loop() is not loop:
            return LoopJob(self._loop_for_threads(), lambda: self._run_on_front(question)).wait()
        if front is None:
            raise ConfigError(
                "tokens cannot be counted on the event loop before the engine has started; await a "
                "call of the model first, or count tokens in another thread"
            )
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, question(front)).result()

    async def _run_on_front(self, question: Callable[[Frontend], Coroutine[Any, Any, T]]) -> T:
        runtime = await self._opened()
        return await question(await runtime.frontend())

    def close(self) -> None:
        """Make no more calls. If the client owns its runtime, also cancel the calls in flight, and
        stop the engine and the thread. Idempotent.

        Raises `ConfigError` on the client's own event loop, which would wait for itself.
        """
        self._forget_parent()
        with self._lock:
            self.closed = True
            if self._thread is threading.current_thread():
                raise ConfigError(
                    "close() was called on the client's own event loop, which it would wait for; "
                    "call it in another thread"
                )
            thread, self._thread = self._thread, None
        if thread is None or self._loop is None:
            return
        LoopJob(self._loop, self._close_runtime).wait()
        self._loop.call_soon_threadsafe(self._loop.stop)
        thread.join()

    # -- on the runtime's loop ---------------------------------------------------------

    async def _call(self, request: Request, terms: Terms) -> Answer:
        async with self._under(terms) as (front, caller):
            answer = await front.chat(request, caller)
            return {**answer, ACCOUNT: account_of(caller.replies)}

    async def _stream(
        self,
        request: Request,
        terms: Terms,
        put: Callable[[Answer], None],
        callers: list[RunCaller],
    ) -> None:
        """Call ``put`` with each piece of the answer. The caller is added to ``callers``."""
        async with self._under(terms) as (front, caller):
            callers.append(caller)
            async with aclosing(front.chat_stream(request, caller)) as pieces:
                async for piece in pieces:
                    put(piece)
            put({"choices": [], ACCOUNT: account_of(caller.replies)})

    @asynccontextmanager
    async def _under(self, terms: Terms) -> AsyncIterator[tuple[Frontend, RunCaller]]:
        """Yield the front end and the caller of a call under these ``terms``."""
        with beating(terms.heartbeat):
            runtime = await self._opened()
            front = await runtime.frontend()
            try:
                async with asyncio.timeout(terms.timeout) as limit:
                    with caller_in(runtime, terms.scope) as caller:
                        yield front, caller
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise CallTimeoutError(
                    f"the call took longer than its timeout of {terms.timeout:g} s and was "
                    "aborted; set a longer timeout, or a smaller max_tokens"
                ) from error

    async def _opened(self) -> Runtime:
        """Return the runtime with a started engine. Concurrent callers wait for the same start."""
        if self._make is None:
            assert self._runtime is not None
            return self._runtime
        if self._opening is None:
            with tracking.outside():
                self._opening = asyncio.create_task(self._open(self._make()))
        opening = self._opening
        try:
            # A caller that stops waiting must not stop the start for the other callers.
            return await asyncio.shield(opening)
        except Exception:
            if self._opening is opening:  # unless a later call has already started a new attempt
                self._opening = None
            raise

    async def _open(self, runtime: Runtime) -> Runtime:
        await runtime.open(_tell)
        self._runtime = runtime
        return runtime

    async def _close_runtime(self) -> None:
        opening = self._opening
        if opening is not None:
            opening.cancel()  # has no effect if the runtime is open
            await asyncio.wait([opening])
            if not opening.cancelled() and opening.exception() is None:
                await opening.result().close()

    # -- the runtime's loop ------------------------------------------------------------

    def _forget_parent(self) -> None:
        """If this process was forked after the client was made, forget the runtime, the thread and
        the event loop, which run only in the parent process. Does nothing for a borrowed runtime.
        """
        if self._make is None or self._process == os.getpid():
            return
        with _forgetting:
            if self._process != os.getpid():  # unless another thread was faster
                self._runtime = self._loop = self._thread = self._opening = None
                self._lock = threading.Lock()  # a thread of the parent may have locked the old one
                self._process = os.getpid()

    def _home(self) -> asyncio.AbstractEventLoop:
        self._forget_parent()
        if self._process != os.getpid():
            raise ConfigError(
                "the borrowed runtime runs in the process from which this process was forked; open "
                "a Runtime in this process, or set base_url to a server"
            )
        with self._lock:
            if self.closed:
                raise ConfigError("this RuntimeClient is closed; create a new one")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_loop, args=[self._loop], name="agentrt", daemon=True
                )
                self._thread.start()
            return self._loop

    def _loop_for_threads(self) -> asyncio.AbstractEventLoop:
        loop = self._home()
        if running_loop() is loop:
            raise ConfigError(
                "a blocking call (invoke, stream, batch) on the event loop that runs the "
                "engine would wait for itself; use ainvoke, astream or abatch"
            )
        if self._make is None and not loop.is_running():
            raise ConfigError(
                "the event loop of the borrowed runtime is not running; keep it running while "
                "other threads make calls"
            )
        return loop


_forgetting = threading.Lock()
"""Held while a client forgets the runtime of the parent process."""
os.register_at_fork(
    before=_forgetting.acquire,
    after_in_parent=_forgetting.release,
    after_in_child=_forgetting.release,
)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run ``loop`` until it is stopped, then end its tasks and close it."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()


def _tell(message: str) -> None:
    """Print a message about the engine's start, if stderr is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"agentrt: {message}\n")


def _note_closed(callers: list[RunCaller]) -> None:
    """Note that the reader of a stream has closed it. All pieces that have arrived count as read,
    because it is not known how many tokens a piece of a chat has.
    """
    for caller in callers:
        caller.closed(NO_LIMIT)
