"""Callers that make the model calls of an HTTP request as calls of the request's program."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrt import tracking
from agentrt.errors import AgentrtError, CallTimeoutError, InvariantError, ToolFailedError
from agentrt.executors.base import Chunk
from agentrt.executors.chat_api import Caller
from agentrt.interrupts import Tool
from agentrt.request import CallSpec
from agentrt.runtime import Runtime
from agentrt.runtime.emitter import RunCaller
from agentrt.runtime.run import Run
from agentrt.runtime.services import ClientCall
from agentrt.serving.error_responses import CalledOffError, StoppingError, SupersededError
from agentrt.serving.programs.client_programs import RequestEntry
from agentrt.tracking.scope import Scope

ENDS = (CallTimeoutError, CalledOffError, StoppingError, SupersededError)
"""The errors with which a request ends while its calls and tools run."""
_LATER_S = 0.1
_LOG = logging.getLogger(__name__)


class RequestCaller(Caller):
    """A caller for one HTTP request, after the request has joined its client's program.

    Calls that run at the same time are siblings in the program's graph. A call that begins after
    other calls have ended depends on them. ``is_gone`` is True after the client has disconnected.
    ``error`` is the error of the last call that failed, or None. ``max_tokens`` is the limit of
    the answer (tokens) if it is lower than the limit that the client asked for, else None.
    ``parts_left_out`` are the parts of the request that cannot be used.
    """

    def __init__(self, runtime: Runtime, entry: RequestEntry) -> None:
        self._entry = entry
        self._emitter = runtime.emitter(entry.program.run)
        # The open calls with their chunks, and the open calls of tools, which have no chunks.
        self._open: dict[ClientCall, AsyncGenerator[Chunk, None] | None] = {}
        self._over = asyncio.Event()
        self._off: AgentrtError | None = None
        self._called_off: set[ClientCall] = set()
        self._deadline: asyncio.TimerHandle | None = None
        self.is_gone = False
        self.error: AgentrtError | None = None
        self.max_tokens: int | None = None
        self.parts_left_out: list[str] = []
        if (deadline_at := entry.program.deadline_at) is not None:
            loop, left = asyncio.get_running_loop(), deadline_at - runtime.now()
            self._deadline = loop.call_later(max(0.0, left), self._too_late)

    @contextlib.contextmanager
    def siblings(self, count: int) -> Iterator[Sequence[Sibling]]:
        """Yield a caller for each of ``count`` sibling calls.

        Each sibling has a scope of its own, because the last sibling may begin after the first has
        ended.
        """
        yield [Sibling(self, self._entry.scope()) for _ in range(count)]

    def chunks(
        self, spec: CallSpec, *, stream: bool, scope: Scope | None = None
    ) -> AsyncGenerator[Chunk, None]:
        """Make a call, in ``scope`` or in a new scope, and return its chunks. The call begins when
        the first chunk is read.

        Raises the error with which the request was cancelled, `CalledOffError` if the program has
        ended, or `StoppingError` if the server has ended the program because the server is shutting
        down.
        """
        run = self._check_open()
        scope = scope or self._entry.scope()

        def ended() -> None:
            self._entry.ended(scope)
            self._close(call)

        call = ClientCall(run.id, ended)
        made = RunCaller(self._emitter, scope).chunks(spec, stream=stream, reader=call)
        self._open[call] = made
        return made

    async def tool(self, tool: Tool, arguments: Mapping[str, Any]) -> Any:
        """Run a tool as a node of the program; later calls of the request depend on the node.

        Raises the same errors as `Attempts.run`. If the request or its program ends while the tool
        runs, the tool is cancelled, and this raises one of `ENDS`. An error of these classes that
        the tool itself raises becomes a `ToolFailedError`.
        """
        run, scope, task = self._check_open(), self._entry.scope(), asyncio.current_task()
        assert task is not None
        call, calls = ClientCall(run.id, task=task), self._emitter.services.client_calls
        self._open[call] = None
        calls.add(call)
        try:
            with tracking.within(scope):
                return await self._emitter.tool(tool, (), arguments, ())
        except asyncio.CancelledError as error:
            if not task.cancelling():
                text = f"tool {tool.name} was cancelled by its own code"
                raise ToolFailedError(text, name=tool.name) from error
            if (reason := self.failed(error)) is None:
                raise
            raise reason from error
        except ENDS as error:
            raise ToolFailedError(str(error), name=tool.name) from error
        finally:
            calls.discard(call)
            self._entry.ended(scope)
            self._close(call)

    def _check_open(self) -> Run:
        """Return the program's run. Raises the error with which the request was cancelled,
        `CalledOffError` if the program has ended, or `StoppingError` if the server has ended the
        program because the server is shutting down.
        """
        run = self._entry.program.run
        if run.ended_at is not None:
            raise self._ended()
        if self._off is not None:
            raise self._off
        return run

    def _close(self, call: ClientCall) -> None:
        """Remove a call that has ended."""
        self._open.pop(call, None)
        if not self._open:
            self._over.set()

    def failed(self, error: BaseException) -> AgentrtError | None:
        """Return the error that the client gets for ``error``. Return None if the client
        has disconnected, or if the request was cancelled although it was not called off and its
        program has not ended (a server that closes cancels its requests).

        If the request was called off, the error is that of `call_off`, such as a `CallTimeoutError`
        after the program's deadline. If the program has ended, the error is a `StoppingError` if a
        server that closes ended the program, and otherwise a `CalledOffError`.
        """
        run = self._entry.program.run
        if isinstance(error, asyncio.CancelledError):
            if self.is_gone or (self._off is None and run.ended_at is None):
                return None
            _uncancel()  # `call_off` or the end of the run cancelled the task; nothing else did
            self.error = self._off or self._ended()
        elif isinstance(error, AgentrtError):
            self.error = error
        else:  # vLLM would send the text of an unexpected error to the client
            _LOG.error("a call failed with an unexpected error", exc_info=error)
            self.error = InvariantError("the server failed")
        return self.error

    def _ended(self) -> AgentrtError:
        """Return the error of a call whose program was ended."""
        program = self._entry.program
        return StoppingError() if program.is_stopped else CalledOffError(program.run.id)

    @property
    def failed_or_left(self) -> bool:
        """Whether a call failed, or the client disconnected before the answer was complete."""
        return self.is_gone or self.error is not None

    def limited(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens

    def left_out(self, part: str) -> None:
        self.parts_left_out.append(part)

    def _too_late(self) -> None:
        run = self._entry.program.run
        text = f"run {run.id} has passed its deadline; its calls were aborted"
        self.call_off(CallTimeoutError(text))

    def call_off(self, error: AgentrtError) -> None:
        """Cancel all calls and tools of the request; readers of the calls' chunks get ``error``.

        The method schedules itself again, because a call whose chunks are read only later cannot be
        cancelled yet.
        """
        self._off = self._off or error
        if self._deadline is not None:
            self._deadline.cancel()
        for call in self._open.keys() - self._called_off:
            if call.task is not None:
                self._called_off.add(call)
                call.task.cancel()
        self._deadline = asyncio.get_running_loop().call_later(_LATER_S, self.call_off, error)

    def end_deadline(self) -> None:
        """Stop the timer of the deadline and of `call_off`, because the request makes no further
        calls.
        """
        if self._deadline is not None:
            self._deadline.cancel()

    async def close(self) -> None:
        """Abort the calls that were not read to their end, and wait until they have ended."""
        self.end_deadline()
        for call, made in tuple(self._open.items()):
            if call.task is not None:
                call.task.cancel()
            elif made is not None:
                await made.aclose()
                self._open.pop(call, None)
        while self._open:
            self._over.clear()
            await self._over.wait()
        self.end_deadline()  # `call_off` may have been called meanwhile


@dataclass(frozen=True, slots=True)
class Sibling(Caller):
    """A caller for one of several calls that run at the same time."""

    caller: RequestCaller
    scope: Scope

    def chunks(self, spec: CallSpec, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        return self.caller.chunks(spec, stream=stream, scope=self.scope)

    def siblings(self, count: int) -> contextlib.AbstractContextManager[Sequence[Sibling]]:
        return self.caller.siblings(count)

    def failed(self, error: BaseException) -> AgentrtError | None:
        return self.caller.failed(error)


def _uncancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
