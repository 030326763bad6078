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
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
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
from agentrt.serving.submit.limits import ProgramLimits, SubmittedProgramError, TokenBudget
from agentrt.serving.submit.turns import Apart, Turns

T = TypeVar("T")

_MIB = 1 << 20
_MOST_PROCESSES = 1024
_MOST_TURNS = 32
"""Tenants that compute at once, which is what takes a thread; other programs wait for a call."""
_STUCK_S = 60.0
_NICE = 19
_PRELUDE = files(__package__).joinpath("prelude.py").read_text("utf-8")
_START = "\nawait main(Context(_program_id), *_given)"
_PRELUDE_FILE, _SOURCE_FILE = "<python-input-0>", "<python-input-1>"
"""What the interpreter calls the two texts that a session reads."""


class Sandbox:
    """The processes that submitted programs run in. An async context manager."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_MOST_TURNS, "agentrt-sandbox")
        self._free = asyncio.Semaphore(_MOST_PROCESSES)
        self._turns = Turns()
        self._pool = Monty(
            min_processes=2,
            max_processes=_MOST_PROCESSES,
            request_timeout=_STUCK_S,
            max_checkouts_per_worker=1,  # nothing of one program is there for the next
        )

    async def __aenter__(self) -> Self:
        await self._apart(self._pool.__enter__)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._apart(lambda: self._pool.__exit__(None, None, None))
        self._threads.shutdown(wait=False)

    async def run(
        self, source: str, ctx: Context, given: tuple[Any, ...], limits: ProgramLimits, tenant: str
    ) -> Any:
        """Run ``source``: its ``async def main(ctx, …)`` with what is ``given``.

        Its result is plain data. Programs of one ``tenant`` take turns.
        Raises `SubmittedProgramError` for what the program did wrong, and where it went over one
        of its ``limits``.
        """
        turns = self._turns.of(tenant)

        async def apart(function: Callable[[], T]) -> T:
            return await turns.take(self._apart, function)

        host = HostCalls(ctx, TokenBudget(limits.tokens))
        inputs = {"_given": given, "_program_id": ctx.program_id}
        try:
            async with self._free, self._session(limits, apart) as session:
                return await _Steps(host, apart).feed(session, source + _START, inputs)
        except MontyCrashedError as error:
            text = "the program's process had to be ended: it did not stop at its limits"
            raise SubmittedProgramError(text) from error
        except MontyError as error:
            raise _fault(error, limits, source.count("\n") + 1) from error
        finally:
            host.close()

    @contextlib.asynccontextmanager
    async def _session(
        self, limits: ProgramLimits, apart: Apart[Any]
    ) -> AsyncIterator[MontySession]:
        session = self._pool.checkout(limits=_resources(limits))

        def enter() -> None:
            session.__enter__()
            if session.worker_pid is not None:
                os.setpriority(os.PRIO_PROCESS, session.worker_pid, _NICE)
            session.feed_run(_PRELUDE)

        try:
            await apart(enter)
            yield session
        finally:
            await self._apart(lambda: session.__exit__(None, None, None))

    async def _apart(self, function: Callable[[], T]) -> T:
        """Call it in a thread. Who is cancelled waits for its end: it is in the session."""
        turn = asyncio.get_running_loop().run_in_executor(self._threads, function)
        try:
            return await asyncio.shield(turn)
        except asyncio.CancelledError:
            await asyncio.wait([turn])
            raise


def _resources(limits: ProgramLimits) -> ResourceLimits:
    return ResourceLimits(
        max_memory=limits.memory_mib * _MIB,
        max_turn_duration_secs=limits.turn_s,
        max_feed_duration_secs=float(limits.seconds),
        max_suspensions=3 * limits.calls,  # a call is asked for, waited for, and answered
        max_recursion_depth=200,
    )


class _Steps:
    """A program's turns: it computes until it calls something, or waits for what it called.

    The calls are tasks of the task that runs the program, so that its graph has them as it has
    those of a program of the server's own.
    """

    def __init__(self, host: HostCalls, apart: Apart[Any]) -> None:
        self._host = host
        self._apart = apart
        self._calls: dict[int, asyncio.Task[Any]] = {}

    async def feed(self, session: MontySession, code: str, inputs: Mapping[str, Any]) -> Any:
        """Run ``code`` to its end, and give the value of its last expression."""
        names = {"_ask": _never, "_do": _never}

        def start() -> Any:
            return session.feed_start(
                code, inputs=dict(inputs), external_lookup=names, print_callback=CollectString()
            )

        try:
            at = await self._apart(start)
            while not isinstance(at, MontyComplete):
                at = await self._apart(await self._next(at))
        finally:
            left = list(self._calls.values())
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)
        return at.output

    async def _next(self, at: Any) -> Callable[[], Any]:
        """How the program goes on from where it stopped."""
        if isinstance(at, FutureSnapshot):
            answers = await _settled(self._calls, at.pending_call_ids)
            return lambda: at.resume(answers)
        if not isinstance(at, FunctionSnapshot):
            return lambda: at.resume_auto()
        if at.is_os_function:
            return at.resume_not_handled
        if at.function_name == "_ask":
            self._calls[at.call_id] = asyncio.create_task(self._host.ask(*at.args))
            return lambda: at.resume({"future": ...})
        done = _done(self._host, at.args) if at.function_name == "_do" else _unknown(at)
        return lambda: at.resume(done)


async def _settled(calls: dict[int, asyncio.Task[Any]], waited: list[int]) -> dict[int, Any]:
    """The answers of those calls that ended first."""
    await asyncio.wait([calls[one] for one in waited], return_when=asyncio.FIRST_COMPLETED)
    return {one: _answer(calls.pop(one)) for one in waited if calls[one].done()}


def _answer(task: asyncio.Task[Any]) -> Any:
    try:
        return {"return_value": task.result()}
    except Exception as error:
        return _raised(error)


def _done(host: HostCalls, args: Any) -> Any:
    try:
        return {"return_value": host.do(*args)}
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


def _fault(error: MontyError, limits: ProgramLimits, length: int) -> SubmittedProgramError:
    """The program's own error, with the line of its source."""
    if not isinstance(error, MontyRuntimeError | MontySyntaxError):
        return SubmittedProgramError(str(error))
    frames = [frame for frame in error.traceback() if frame.filename == _SOURCE_FILE]
    lines = [frame.line for frame in frames if frame.line <= length]  # what starts it comes after
    message = error.display("type-msg")
    trace = error.display().replace(_SOURCE_FILE, "program.py")
    trace = trace.replace(_PRELUDE_FILE, "context.py")
    if "suspension limit" in message:
        message = f"the program made more than {limits.calls} calls"
    elif "turn time limit" in message:
        message = f"the program computed for {limits.turn_s:g} s without a call"
    elif "feed time limit" in message:
        message = f"the program computed for {limits.seconds} s in all"
    return SubmittedProgramError(message, lines[-1] if lines else None, trace)
