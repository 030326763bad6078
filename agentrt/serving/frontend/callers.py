"""Makes the calls of an HTTP request as calls of its program."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass

from agentrt.errors import AgentrtError, CallTimeoutError, InvariantError
from agentrt.executors.base import Chunk, Reading
from agentrt.request import CallSpec
from agentrt.runtime import Runtime
from agentrt.serving.error_responses import CalledOffError
from agentrt.serving.programs.client_programs import Entry
from agentrt.tracking.scope import Scope

_LOG = logging.getLogger(__name__)


class RequestCaller:
    """Makes the calls of one request of a client's program, which has been entered.

    Calls that run beside each other are siblings; one that begins when others have ended comes
    after these. ``is_gone`` says that nobody waits for the answer any more,
    and ``error`` is what a call of it came to, if any failed.
    """

    def __init__(self, runtime: Runtime, entry: Entry) -> None:
        self._runtime = runtime
        self._entry = entry
        self._emitter = runtime.emitter(entry.program.run)
        self._open: dict[Reading[Chunk], AsyncGenerator[Chunk, None]] = {}
        self._over = asyncio.Event()
        self.is_gone = False
        self.error: AgentrtError | None = None

    @contextlib.contextmanager
    def siblings(self, count: int) -> Iterator[Sequence[Sibling]]:
        """One with a scope of its own for each call: the last begins when the first may be over."""
        yield [Sibling(self, self._entry.scope()) for _ in range(count)]

    async def chunks(
        self, spec: CallSpec, *, stream: bool, scope: Scope | None = None
    ) -> AsyncGenerator[Chunk, None]:
        """Make a call, in ``scope`` or in a new one.

        Raises `CallTimeoutError` at the program's deadline, and `CalledOffError` when the program
        is ended.
        """
        run = self._entry.program.run
        if run.ended_at is not None:
            raise CalledOffError(run.id)
        scope = scope or self._entry.scope()
        made = self._emitter.make(spec, scope, (), stream=stream)
        reading = self._reading(made)
        self._open[reading] = made
        self._emitter.begin_client_call(reading)
        try:
            async with contextlib.aclosing(made):
                async for chunk in reading:
                    reading.task = None
                    yield chunk
        except asyncio.CancelledError:
            if run.ended_at is None or self.is_gone:
                raise
            _uncancel()  # nobody else called it off
            self.error = CalledOffError(run.id)
            raise self.error from None
        except AgentrtError as error:
            self.error = error
            raise
        except Exception as error:  # vLLM would tell the client what it says
            _LOG.error("a call failed", exc_info=error)
            self.error = InvariantError("the server failed")
            raise self.error from error
        finally:
            self._emitter.end_client_call(reading)
            self._entry.ended(scope)
            self._open.pop(reading, None)
            if not self._open:
                self._over.set()

    def _reading(self, made: AsyncGenerator[Chunk, None]) -> Reading[Chunk]:
        program, now = self._entry.program, self._runtime.now
        if program.deadline_at is None:
            return Reading(made.__anext__)
        return _TimedReading(made, program.run.id, program.deadline_at, now)

    async def close(self) -> None:
        """Abort the calls that nobody reads to their end, and wait until they are over."""
        for reading, made in tuple(self._open.items()):
            if reading.task is not None:
                reading.task.cancel()
            else:
                await made.aclose()
                self._open.pop(reading, None)
        while self._open:
            self._over.clear()
            await self._over.wait()


class _TimedReading(Reading[Chunk]):
    """Reads a call of a program that has a deadline, whichever task waits for a chunk."""

    __slots__ = ("_deadline_at", "_now", "_program_id")

    def __init__(
        self,
        chunks: AsyncGenerator[Chunk, None],
        program_id: str,
        deadline_at: float,
        now: Callable[[], float],
    ) -> None:
        super().__init__(chunks.__anext__)
        self._program_id, self._deadline_at, self._now = program_id, deadline_at, now

    async def __anext__(self) -> Chunk:
        try:
            async with asyncio.timeout(self._deadline_at - self._now()):
                return await super().__anext__()
        except TimeoutError as error:
            if isinstance(error, CallTimeoutError):  # an engine's own
                raise
            raise CallTimeoutError(
                f"program {self._program_id} is over its deadline; its calls were aborted"
            ) from error


@dataclass(frozen=True, slots=True)
class Sibling:
    """Makes one of several calls that run beside each other."""

    caller: RequestCaller
    scope: Scope

    def chunks(self, spec: CallSpec, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        return self.caller.chunks(spec, stream=stream, scope=self.scope)

    def siblings(self, count: int) -> contextlib.AbstractContextManager[Sequence[Sibling]]:
        return self.caller.siblings(count)


def _uncancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
