"""Runs programs of strangers in processes of Monty, an interpreter of a part of Python without
files, network or imports of the host's. ADR 17 says why this one.

The pool's own interface for asyncio is not used: its threads outlive the pool, and now and then
abort a process that exits. Here a thread of ours waits for each turn of a program instead, which
ends within the limit of a turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any, Self

from pydantic_monty import MontyCrashedError, MontyError, MontyRuntimeError, MontySyntaxError

from agentrt.program import Context
from agentrt.serving.submit.host import HostCalls
from agentrt.serving.submit.limits import SubmittedProgramError, TokenBudget
from agentrt.serving.submit.steps import TURN_S, Steps
from agentrt.serving.submit.workers import LINGER_S, Workers
from agentrt.serving.tenants import Limits

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
