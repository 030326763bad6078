"""Run untrusted programs in processes of Monty, an interpreter for a subset of Python that has no
files, no network and no imports from the host. ADR 17 has the reasons for Monty.

The asyncio interface of Monty's pool of processes is not used, because its threads outlive the pool
and sometimes abort a process that exits. Instead, for each turn of a program, a thread of this
module waits for the Monty process that computes the turn. A turn is the computation of a program
until it waits or is paused, and has a time limit.

`submissions` adds the HTTP route by which clients send programs as source.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, Self, TypeVar

from fastapi import APIRouter
from pydantic import Field
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
from starlette.requests import Request
from starlette.responses import Response

from agentrt.errors import AgentrtError, UsageError
from agentrt.executors.vllm.turns import to_its_end
from agentrt.program import Context, Program
from agentrt.serving.error_responses import ApiError
from agentrt.serving.middleware import tenant_of
from agentrt.serving.programs.bodies import Label, RunRequest
from agentrt.serving.programs.runs import ProgramRuns, RunAnswer
from agentrt.serving.server import Server
from agentrt.serving.submit.host import HostCalls
from agentrt.serving.submit.limits import SubmittedProgramError, TokenBudget
from agentrt.serving.tenants import BusyError, Limits
from agentrt.serving.tenants.limits import Bucket

TURN_S = 0.5
"""Maximum number of seconds that a program may compute without making a call."""
_MIB = 1 << 20
_MOST_ASKED, _LONGEST_S = 32, 0.05
"""A turn is paused after this many calls or seconds, so that other programs of the tenant get a
turn.
"""


class Steps:
    """The turns of one program in the processes of its tenant.

    The program's calls are asyncio tasks that the program's own task starts, so that the calls
    appear in the program's graph like the calls of a served program.
    """

    def __init__(self, workers: Workers, host: HostCalls, limits: Limits) -> None:
        self._workers = workers
        self._host = host
        self._limits = limits
        self._session: MontySession | None = None
        self._requests: list[tuple[int, Any]] = []
        self._calls: dict[int, asyncio.Task[Any]] = {}

    async def run(self, prelude: str, code: str, inputs: Mapping[str, Any]) -> Any:
        """Run ``prelude`` and then ``code``, and return the value of the last expression of
        ``code``.
        """
        try:
            at = await self._turn(lambda: self._begin(prelude, code, inputs))
            while not isinstance(at, MontyComplete):
                at = await self._turn(await self._next(at))
            return at.output
        finally:
            left = list(self._calls.values())
            for task in left:
                task.cancel()
            try:
                if left:
                    await asyncio.wait(left)
            finally:  # also if the run is cancelled again
                if (session := self._session) is not None:
                    await self._workers.in_thread(lambda: self._workers.leave_here(session))

    async def _turn(self, go_on: Callable[[], Any]) -> Any:
        """Run a turn of the program, start the calls that the program requested, and return where
        the program has stopped.
        """
        at = await self._workers.turn(lambda: self._computed(go_on()))
        for call_id, args in self._requests:
            self._calls[call_id] = asyncio.create_task(self._host.ask(*args))
        self._requests.clear()
        return at

    async def _next(self, at: Any) -> Callable[[], Any]:
        """Wait for the answers that the program needs next, and return a function that continues
        the program. ``at`` is where the program has stopped.
        """
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
        """Run the program until it ends, waits for calls, is paused, or needs the event loop's
        thread. ``at`` is where the program stopped before; return where the program stops.
        """
        began = time.monotonic()
        while not isinstance(at, MontyComplete | FutureSnapshot):
            if _wants(at, "_do") or self._paused(began):
                return at
            at = self._answered(at)
        return at

    def _paused(self, began: float) -> bool:
        """Return whether other programs should get a turn before this turn continues."""
        return len(self._requests) >= _MOST_ASKED or time.monotonic() - began > _LONGEST_S

    def _answered(self, at: Any) -> Any:
        if not isinstance(at, FunctionSnapshot):
            return at.resume_auto()
        if at.is_os_function:
            return at.resume_not_handled()
        if at.function_name != "_ask":
            return at.resume(_unknown(at))
        self._requests.append((at.call_id, at.args))
        return at.resume({"future": ...})

    def _resources(self) -> ResourceLimits:
        limits = self._limits
        return ResourceLimits(
            max_memory=limits.submitted_memory_mib * _MIB,
            max_turn_duration_secs=TURN_S,
            max_feed_duration_secs=float(limits.submitted_seconds),
            # A call suspends the program at its request, at the wait, and at its answer.
            max_suspensions=3 * limits.submitted_calls,
            max_recursion_depth=200,
        )


def _wants(at: Any, name: str) -> bool:
    return isinstance(at, FunctionSnapshot) and at.function_name == name


async def _settled(calls: dict[int, asyncio.Task[Any]], waited: list[int]) -> dict[int, Any]:
    """Wait until one of the ``waited`` calls has ended. Remove all of these calls that have ended
    from ``calls``, and return their outcomes, by the ids of the calls.
    """
    await asyncio.wait([calls[call_id] for call_id in waited], return_when=asyncio.FIRST_COMPLETED)
    return {
        call_id: _outcome(calls.pop(call_id).result) for call_id in waited if calls[call_id].done()
    }


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
    """Convert the error of a call to an exception that the program can catch.

    Raises ``error`` itself if it is not an `AgentrtError`, `TimeoutError`, `TypeError` or
    `ValueError`.
    """
    if isinstance(error, TimeoutError):
        return {"exc_type": "TimeoutError", "message": str(error)}
    known = isinstance(error, UsageError)
    if not isinstance(error, AgentrtError | TypeError | ValueError):
        raise error
    return {"exc_type": "ValueError" if known else "RuntimeError", "message": str(error)}


def _never(*args: Any) -> Any:
    raise AssertionError("calls are answered by `Steps`, and never by this function")


# -- processes -----------------------------------------------------------------------------


_MOST_PROGRAMS = 1024
_MOST_TURNS = 32
"""Maximum number of tenants that compute at the same time. Each of them needs a thread."""
_PRELUDE = files(__package__).joinpath("prelude.py").read_text("utf-8")
_START = "\nawait main(Context(_run_id), *_arguments)"
_PRELUDE_FILE, _SOURCE_FILE = "<python-input-0>", "<python-input-1>"
"""The interpreter's file names for the prelude and the program's source."""


class Sandbox:
    """The processes that run submitted programs. Use it as an async context manager."""

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
        self, source: str, ctx: Context, arguments: tuple[Any, ...], limits: Limits, tenant: str
    ) -> Any:
        """Run ``async def main(ctx, …)`` of ``source``, and return its result as plain data.

        ``arguments`` are the arguments after ``ctx``. Programs of one ``tenant`` take turns. Raises
        `SubmittedProgramError` if the program fails or exceeds one of its ``limits``.
        """
        host = HostCalls(ctx, TokenBudget(limits.submitted_tokens))
        inputs = {"_arguments": arguments, "_run_id": ctx.run_id}
        try:
            async with self._free:
                with self._of(tenant) as workers:
                    steps = Steps(workers, host, limits)
                    return await steps.run(_PRELUDE, source + _START, inputs)
        except MontyCrashedError as error:
            text = "the program's process crashed, or was killed at a limit of the program"
            raise SubmittedProgramError(text) from error
        except MontyError as error:
            raise _fault(error, limits, source.count("\n") + 1) from error
        finally:
            host.close()

    @contextlib.contextmanager
    def _of(self, tenant: str) -> Iterator[Workers]:
        """Yield the tenant's processes, which stay for `LINGER_S` seconds after the tenant's last
        program has ended.
        """
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
    """Convert an error of the interpreter to an error with the line of the program's source."""
    if not isinstance(error, MontyRuntimeError | MontySyntaxError):
        return SubmittedProgramError(str(error))
    frames = [frame for frame in error.traceback() if frame.filename == _SOURCE_FILE]
    lines = [frame.line for frame in frames if frame.line <= length]  # `_START` follows the source
    message = error.display("type-msg")
    trace = error.display().replace(_SOURCE_FILE, "program.py")
    trace = trace.replace(_PRELUDE_FILE, "context.py")
    of_limits = {
        "RuntimeError: suspension limit": f"made more than {limits.submitted_calls} calls",
        "TimeoutError: turn time limit": f"computed for {TURN_S:g} s without a call",
        "TimeoutError: feed time limit": f"computed for {limits.submitted_seconds} s in all",
    }
    for beginning, excess in of_limits.items():
        if message.startswith(beginning):
            message = f"the program {excess}, its maximum"
    return SubmittedProgramError(message, lines[-1] if lines else None, trace)


# -- one tenant's processes of the interpreter ---------------------------------------------

T = TypeVar("T")
InThread = Callable[[Callable[[], T]], Awaitable[T]]
"""Calls a function in a thread, and returns its result."""

LINGER_S = 30.0
"""Seconds for which processes wait for the tenant's next program. By then the tenant's share of
computing time is full again, so that no debt is forgotten when the processes are closed.
"""
_MOST_PROCESSES = 1024
_PROGRAMS_OF_A_PROCESS = 256
"""Maximum number of programs that a process runs, one after another, each in a new interpreter."""
_STUCK_S = 60.0
_NICE = 19
"""The processes' niceness. It has no effect on some machines, so `_SHARE` limits the processes as
well.
"""
_SHARE = 0.05
"""The share of each core's time for the programs of one tenant."""
_BURST_S = 1.0


class TenantTurns:
    """The turns of one tenant: one at a time, within the tenant's share of computing time.

    A turn may overdraw the share; then the next turn waits.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self.share = Bucket(_BURST_S, _SHARE * (os.cpu_count() or 1), clock())

    async def take(self, in_thread: InThread[T], function: Callable[[], T]) -> T:
        """Call ``function`` by means of ``in_thread`` when the tenant may have a turn, and return
        the result of ``function``.
        """
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
                return await in_thread(timed)  # only the time inside the thread counts
            finally:
                self.share.take(took, self._clock())


class Workers:
    """The processes of one tenant, and the turns of its programs.

    ``programs`` counts the tenant's live programs.

    Tenants never share a process. Methods whose names end in ``_here`` block, so call them in a
    thread. Call `enter_here` only in a turn, because its first call opens the pool of processes.
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
        """Call ``function`` in a thread.

        A cancelled caller still waits for the end of the call, because the call uses a session.
        """
        return await to_its_end(asyncio.get_running_loop().run_in_executor(self._threads, function))

    def enter_here(self, limits: ResourceLimits) -> MontySession:
        """Return a session with a new interpreter in one of the tenant's processes."""
        if not self._open:
            self._pool.__enter__()
            self._open = True
        session = self._pool.checkout(limits=limits)
        session.__enter__()
        if session.worker_pid is not None:
            os.setpriority(os.PRIO_PROCESS, session.worker_pid, _NICE)
        return session

    def leave_here(self, session: MontySession) -> None:
        """End a session, so that its process is free for another program."""
        session.__exit__(None, None, None)

    async def close(self) -> None:
        """End the processes."""
        if self.closing is not None:
            self.closing.cancel()
        if self._open:
            self._open = False
            await self.in_thread(lambda: self._pool.__exit__(None, None, None))


_MOST_SOURCE = 64 * 1024
_DEADLINE_S = 3600.0
_RETRY_S = 1.0


class SubmitRequest(RunRequest):
    """The body of ``POST /v1/programs``: a run of the program in ``source``, called ``name``."""

    source: str = Field(min_length=1, max_length=_MOST_SOURCE)
    name: Label = "submitted"


@asynccontextmanager
async def submissions(
    router: APIRouter, server: Server, runs: ProgramRuns, answer: RunAnswer
) -> AsyncIterator[None]:
    """Add the route to ``router``. At the end of the ``with`` block, end the sandbox's processes;
    the caller has ended the programs before.
    """
    live: Counter[str] = Counter()
    async with Sandbox() as sandbox:

        @router.post("/programs", response_model=None)
        async def submit(request: Request, body: SubmitRequest) -> Response:
            """Run a program that is sent as source, in a sandbox.

            The source defines ``async def main(ctx)``, or ``async def main(ctx, input)`` if the
            request has an input. The answer is the same as for a run of a served program.
            """
            if body.name in server.served:
                text = f"name: this server already serves {body.name!r}; choose another name"
                raise ApiError(409, text, param="name", code="name_taken")
            tenant = tenant_of(request)
            limits = server.tenants.limits(tenant)
            if live[tenant] >= limits.submitted:
                text = f"tenant {tenant!r} has {limits.submitted} live submitted programs"
                raise BusyError(f"{text}, the most that it may have; try again later", _RETRY_S)
            if body.deadline is None:
                body.deadline = _DEADLINE_S
            served_run = runs.start(_program(sandbox, body, limits, tenant), tenant, body)
            live[tenant] += 1
            assert served_run.run.task is not None
            served_run.run.task.add_done_callback(lambda task: _ended(live, tenant))
            return await answer(request, served_run, body)

        yield


def _ended(live: Counter[str], tenant: str) -> None:
    live[tenant] -= 1
    if not live[tenant]:
        del live[tenant]


def _program(sandbox: Sandbox, body: SubmitRequest, limits: Limits, tenant: str) -> Program:
    inputs = () if body.input is None else (body.input,)

    async def submitted(ctx: Context, input: Any = None) -> Any:
        return await sandbox.run(body.source, ctx, inputs, limits, tenant)

    return Program(submitted, body.name)
