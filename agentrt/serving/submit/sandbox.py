"""Runs programs of strangers in processes of Monty, an interpreter of a part of Python without
files, network or imports of the host's. ADR 17 says why this one.

The pool's own interface for asyncio is not used: its threads outlive the pool, and now and then
abort a process that exits. Here a thread of ours waits for each turn of a program instead, which
ends within the limit of a turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from importlib.resources import files
from typing import Any, Self, TypeVar

from pydantic_monty import (
    CollectString,
    FunctionSnapshot,
    FutureSnapshot,
    Monty,
    MontyComplete,
    MontyCrashedError,
    MontyError,
    MontyRuntimeError,
    MontySession,
    MontySyntaxError,
    ResourceLimits,
)

from agentrt.errors import AgentrtError, UsageError
from agentrt.program import Context
from agentrt.serving.submit.host import HostCalls
from agentrt.serving.submit.limits import SubmittedProgramError, TokenBudget
from agentrt.serving.tenants import Limits
from agentrt.serving.tenants.limits import Bucket

TURN_S = 0.5
"""For so long a program may compute without a call."""
_MIB = 1 << 20
_MOST_ASKED, _LONGEST_S = 32, 0.05
"""The most calls that a program asks for in one turn, and the most seconds of the turn."""


class Steps:
    """One program's turns in the processes of its tenant.

    Its calls are tasks of the task that runs the program, so that its graph has them as it has
    those of a program of the server's own.
    """

    def __init__(self, workers: Workers, host: HostCalls, limits: Limits) -> None:
        self._workers = workers
        self._host = host
        self._limits = limits
        self._session: MontySession | None = None
        self._asked: list[tuple[int, Any]] = []
        self._calls: dict[int, asyncio.Task[Any]] = {}

    async def run(self, prelude: str, code: str, inputs: Mapping[str, Any]) -> Any:
        """Run ``code`` after ``prelude``, and give the value of its last expression."""
        try:
            at = await self._turn(lambda: self._begin(prelude, code, inputs))
            while not isinstance(at, MontyComplete):
                at = await self._turn(await self._next(at))
            return at.output
        finally:
            left = list(self._calls.values())
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)
            if (session := self._session) is not None:
                await self._workers.in_thread(lambda: self._workers.leave_here(session))

    async def _turn(self, go_on: Callable[[], Any]) -> Any:
        """Let it compute, and start the calls that it has asked for."""
        at = await self._workers.turn(lambda: self._computed(go_on()))
        for call_id, args in self._asked:
            self._calls[call_id] = asyncio.create_task(self._host.ask(*args))
        self._asked.clear()
        return at

    async def _next(self, at: Any) -> Callable[[], Any]:
        """What continues the program from where it stopped."""
        if isinstance(at, FutureSnapshot):
            answers = await _settled(self._calls, at.pending_call_ids)
            return lambda: at.resume(answers)
        if at.function_name == "_do":
            done = _outcome(lambda: self._host.do(*at.args))
            return lambda: at.resume(done)
        return lambda: at

    # -- in a thread -------------------------------------------------------------------

    def _begin(self, prelude: str, code: str, inputs: Mapping[str, Any]) -> Any:
        self._session = session = self._workers.enter_here(self._resources())
        session.feed_run(prelude)
        names = {"_ask": _never, "_do": _never}
        return session.feed_start(
            code, inputs=dict(inputs), external_lookup=names, print_callback=CollectString()
        )

    def _computed(self, at: Any) -> Any:
        """Run until it waits, or needs an answer from the event loop's thread."""
        began = time.monotonic()
        while not isinstance(at, MontyComplete | FutureSnapshot):
            if _wants(at, "_do") or self._paused(began):
                return at
            at = self._answered(at)
        return at

    def _paused(self, began: float) -> bool:
        """Whether others should have their turn first."""
        return len(self._asked) >= _MOST_ASKED or time.monotonic() - began > _LONGEST_S

    def _answered(self, at: Any) -> Any:
        if not isinstance(at, FunctionSnapshot):
            return at.resume_auto()
        if at.is_os_function:
            return at.resume_not_handled()
        if at.function_name != "_ask":
            return at.resume(_unknown(at))
        self._asked.append((at.call_id, at.args))
        return at.resume({"future": ...})

    def _resources(self) -> ResourceLimits:
        limits = self._limits
        return ResourceLimits(
            max_memory=limits.submitted_memory_mib * _MIB,
            max_turn_duration_secs=TURN_S,
            max_feed_duration_secs=float(limits.submitted_seconds),
            max_suspensions=3
            * limits.submitted_calls,  # each is asked for, waited for, and answered
            max_recursion_depth=200,
        )


def _wants(at: Any, name: str) -> bool:
    return isinstance(at, FunctionSnapshot) and at.function_name == name


async def _settled(calls: dict[int, asyncio.Task[Any]], waited: list[int]) -> dict[int, Any]:
    """The answers of those calls that ended first."""
    await asyncio.wait([calls[one] for one in waited], return_when=asyncio.FIRST_COMPLETED)
    return {one: _outcome(calls.pop(one).result) for one in waited if calls[one].done()}


def _outcome(result: Callable[[], Any]) -> Any:
    try:
        return {"return_value": result()}
    except Exception as error:
        return _raised(error)


def _unknown(at: FunctionSnapshot) -> Any:
    if at.function_name == "main":
        return {"exc_type": "NameError", "message": "the source has no 'async def main(ctx)'"}
    return {"exc_type": "NameError", "message": f"name {at.function_name!r} is not defined"}


def _raised(error: Exception) -> Any:
    """What a call raised, as an exception that the program can catch."""
    if isinstance(error, TimeoutError):
        return {"exc_type": "TimeoutError", "message": str(error)}
    known = isinstance(error, UsageError)
    if not isinstance(error, AgentrtError | TypeError | ValueError):
        raise error
    return {"exc_type": "ValueError" if known else "RuntimeError", "message": str(error)}


def _never(*args: Any) -> Any:
    raise AssertionError("calls are answered one by one")


# -- processes -----------------------------------------------------------------------------


_MOST_PROGRAMS = 1024
_MOST_TURNS = 32
"""Tenants that compute at once, which is what takes a thread; other programs wait for a call."""
_PRELUDE = files(__package__).joinpath("prelude.py").read_text("utf-8")
_START = "\nawait main(Context(_program_id), *_given)"
_PRELUDE_FILE, _SOURCE_FILE = "<python-input-0>", "<python-input-1>"
"""What the interpreter calls the two texts that a session reads."""


class Sandbox:
    """The processes that submitted programs run in. An async context manager."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_MOST_TURNS, "agentrt-sandbox")
        self._free = asyncio.Semaphore(_MOST_PROGRAMS)
        self._workers: dict[str, Workers] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        for tenant in list(self._workers):
            self._close(tenant)
        await asyncio.gather(*self._closing)
        self._threads.shutdown(wait=False)

    async def run(
        self, source: str, ctx: Context, given: tuple[Any, ...], limits: Limits, tenant: str
    ) -> Any:
        """Run ``source``: its ``async def main(ctx, …)`` with what is ``given``.

        Its result is plain data. Programs of one ``tenant`` take turns.
        Raises `SubmittedProgramError` for what the program did wrong, and where it went over one
        of its ``limits``.
        """
        host = HostCalls(ctx, TokenBudget(limits.submitted_tokens))
        inputs = {"_given": given, "_program_id": ctx.program_id}
        try:
            async with self._free:
                with self._of(tenant) as workers:
                    steps = Steps(workers, host, limits)
                    return await steps.run(_PRELUDE, source + _START, inputs)
        except MontyCrashedError as error:
            text = "the program's process had to be ended: it did not stop at its limits"
            raise SubmittedProgramError(text) from error
        except MontyError as error:
            raise _fault(error, limits, source.count("\n") + 1) from error
        finally:
            host.close()

    @contextlib.contextmanager
    def _of(self, tenant: str) -> Iterator[Workers]:
        """The tenant's processes, which are there for a while after its last program."""
        workers = self._workers.get(tenant)
        if workers is None:
            workers = self._workers[tenant] = Workers(self._threads)
        workers.programs += 1
        if workers.closing is not None:
            workers.closing.cancel()
        try:
            yield workers
        finally:
            workers.programs -= 1
            if not workers.programs:
                loop = asyncio.get_running_loop()
                workers.closing = loop.call_later(LINGER_S, self._close, tenant)

    def _close(self, tenant: str) -> None:
        closing = asyncio.create_task(self._workers.pop(tenant).close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


def _fault(error: MontyError, limits: Limits, length: int) -> SubmittedProgramError:
    """The program's own error, with the line of its source."""
    if not isinstance(error, MontyRuntimeError | MontySyntaxError):
        return SubmittedProgramError(str(error))
    frames = [frame for frame in error.traceback() if frame.filename == _SOURCE_FILE]
    lines = [frame.line for frame in frames if frame.line <= length]  # what starts it comes after
    message = error.display("type-msg")
    trace = error.display().replace(_SOURCE_FILE, "program.py")
    trace = trace.replace(_PRELUDE_FILE, "context.py")
    if "suspension limit" in message:
        message = f"the program made more than {limits.submitted_calls} calls"
    elif "turn time limit" in message:
        message = f"the program computed for {TURN_S:g} s without a call"
    elif "feed time limit" in message:
        message = f"the program computed for {limits.submitted_seconds} s in all"
    return SubmittedProgramError(message, lines[-1] if lines else None, trace)


# -- one tenant's processes of the interpreter, which its programs have one after another ------

T = TypeVar("T")
InThread = Callable[[Callable[[], T]], Awaitable[T]]
"""Calls something in a thread."""

LINGER_S = 30.0
"""How long processes wait for the tenant's next program: by then its share of computing is full
again, so that nothing is forgotten with it.
"""
_MOST_PROCESSES = 1024
_PROGRAMS_OF_A_PROCESS = 256
"""One after another; each has an interpreter of its own in the process."""
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
            max_checkouts_per_worker=_PROGRAMS_OF_A_PROCESS,
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
