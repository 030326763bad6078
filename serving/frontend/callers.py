"""Whose calls vLLM's front end makes for a request: each is one of the request's program."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

from agentrt.errors import CallTimeoutError
from agentrt.executors.base import Chunk
from agentrt.request import CallSpec
from agentrt.runtime import Runtime
from agentrt.serving.programs.client_programs import Entry
from agentrt.serving.programs.errors import CalledOffError


class RequestCaller:
    """Makes the calls of one request of a client's program, which has been entered.

    Calls that run beside each other are siblings; one that begins when others have ended comes
    after these. ``is_gone`` says that nobody waits for the answer any more.
    """

    def __init__(self, runtime: Runtime, entry: Entry) -> None:
        self._runtime = runtime
        self._entry = entry
        self._open: set[AsyncGenerator[Chunk, None]] = set()
        self._over = asyncio.Event()
        self.is_gone = False

    @contextlib.contextmanager
    def siblings(self, count: int) -> Iterator[Sequence[RequestCaller]]:
        """The same caller, so often: each call has a scope of its own anyway."""
        yield [self] * count

    async def chunks(self, spec: CallSpec, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        """Make a call.

        Raises `CallTimeoutError` at the program's deadline, and `CalledOffError` when the program
        is ended.
        """
        run = self._entry.program.run
        if run.ended_at is not None:
            raise CalledOffError(run.id)
        scope = self._entry.scope()
        made = self._runtime.emitter(run).chunks(spec, scope, stream=stream)
        self._open.add(made)
        deadline_at = self._entry.program.deadline_at
        steps = made if deadline_at is None else self._each_by(deadline_at, made)
        try:
            async with contextlib.aclosing(made):
                async for chunk in steps:
                    yield chunk
        except asyncio.CancelledError:
            if run.ended_at is None or self.is_gone:
                raise
            _uncancel()  # nobody else called it off
            raise CalledOffError(run.id) from None
        finally:
            self._open.discard(made)
            self._entry.ended(scope)
            if not self._open:
                self._over.set()

    async def close(self) -> None:
        """Abort the calls that nobody reads to their end, and wait until they are over."""
        for made in tuple(self._open):
            try:
                await made.aclose()
                self._open.discard(made)
            except RuntimeError:  # its reader, who was cancelled, is in it
                self._over.clear()
        if self._open:
            await self._over.wait()

    async def _each_by(
        self, deadline_at: float, chunks: AsyncGenerator[Chunk, None]
    ) -> AsyncIterator[Chunk]:
        while True:
            try:
                async with asyncio.timeout(deadline_at - self._runtime.now()):
                    chunk = await anext(chunks, None)
            except TimeoutError as error:
                raise CallTimeoutError(
                    f"program {self._entry.program.run.id} is over its deadline; its calls were "
                    "aborted"
                ) from error
            if chunk is None:
                return
            yield chunk


def _uncancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
