"""Whose calls vLLM's front end makes for a request: each is one of the request's program."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass

from agentrt.errors import AgentrtError, CallTimeoutError, InvariantError
from agentrt.executors.base import Chunk
from agentrt.request import CallSpec
from agentrt.runtime import Runtime
from agentrt.serving.programs.client_programs import Entry
from agentrt.serving.programs.errors import CalledOffError
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
        self._open: set[AsyncGenerator[Chunk, None]] = set()
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
        self._open.add(made)
        try:
            async with contextlib.aclosing(made):
                while (chunk := await self._next(made)) is not None:
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
            self._entry.ended(scope)
            self._open.discard(made)
            if not self._open:
                self._over.set()

    async def _next(self, made: AsyncGenerator[Chunk, None]) -> Chunk | None:
        """The next piece of a call, whichever task reads it; None after the last."""
        deadline_at = self._entry.program.deadline_at
        if deadline_at is None:
            return await self._emitter.next_of(made)
        try:
            async with asyncio.timeout(deadline_at - self._runtime.now()):
                return await self._emitter.next_of(made)
        except TimeoutError as error:
            if isinstance(error, CallTimeoutError):  # an engine's own
                raise
            run = self._entry.program.run
            raise CallTimeoutError(
                f"program {run.id} is over its deadline; its calls were aborted"
            ) from error

    async def close(self) -> None:
        """Abort the calls that nobody reads to their end, and wait until they are over."""
        for made in tuple(self._open):
            if not self._emitter.cancel(made):
                await made.aclose()
                self._open.discard(made)
        while self._open:
            self._over.clear()
            await self._over.wait()


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
