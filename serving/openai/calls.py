"""Runs the calls of one request: as many as it has choices, until all end or its client goes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

from agentrt.errors import CallTimeoutError
from agentrt.executors.base import Chunk, last_reply
from agentrt.request import CallSpec, Reply
from agentrt.runtime import Runtime
from agentrt.serving.programs.client_programs import ClientProgram, Entry
from agentrt.serving.programs.tasks import Tasks, called_off, stop
from agentrt.tracking.scope import Scope

_AHEAD = 64
"""Chunks that may wait for a slow reader. Beyond, the engine's own buffer joins pieces."""


class Piece(NamedTuple):
    """A chunk of one of a request's choices."""

    choice: int
    chunk: Chunk


class Answering:
    """The pieces of calls under way, for one reader. `stop` calls off what is left."""

    def __init__(self) -> None:
        self.feeder: asyncio.Task[None] | None = None
        self._pieces: deque[Piece] = deque()
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._over = False
        self._error: BaseException | None = None

    async def get(self) -> Piece | None:
        """The next piece; None after the last. Raises what the calls raised."""
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._over:
                return None
            self._news.clear()
            await self._news.wait()
        if len(self._pieces) <= _AHEAD:
            self._room.set()
        return self._pieces.popleft()

    async def put(self, piece: Piece) -> None:
        """Another piece; waits while the reader is far behind."""
        await self._room.wait()
        self._pieces.append(piece)
        if len(self._pieces) >= _AHEAD:
            self._room.clear()
        self._news.set()

    def end(self, error: BaseException | None) -> None:
        """There are no more pieces."""
        self._over, self._error = True, error
        self._news.set()

    def stop(self) -> None:
        """Nobody reads any more."""
        if self.feeder is not None:
            self.feeder.cancel()


class Calls:
    """Makes calls on a runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.tasks = Tasks()

    async def replies(self, entry: Entry, specs: Sequence[CallSpec]) -> list[Reply]:
        """The replies of all calls; the first that fails calls the others off."""
        scopes = [entry.scope() for _ in specs]
        async with self._in_time(entry.program):
            if len(specs) == 1:
                return [await self._reply(scopes[0], specs[0])]
            tasks = [self.tasks.start(self._reply(*one)) for one in zip(scopes, specs, strict=True)]
            try:
                return list(await asyncio.gather(*tasks))
            finally:
                await stop(tasks)

    def stream(
        self, entry: Entry, specs: Sequence[CallSpec], ended: Callable[[], None]
    ) -> Answering:
        """All calls' pieces as they come. ``ended`` is called when the calls are over.

        The calls are in tasks of their own: whatever way its reader is cancelled, they are
        aborted in order.
        """
        answering = Answering()
        answering.feeder = self.tasks.start(self._feed(entry, specs, answering, ended))
        return answering

    async def _feed(
        self,
        entry: Entry,
        specs: Sequence[CallSpec],
        answering: Answering,
        ended: Callable[[], None],
    ) -> None:
        pumps = [self._pump(i, entry.scope(), spec, answering) for i, spec in enumerate(specs)]
        tasks = [self.tasks.start(pump) for pump in pumps]
        error: BaseException | None = None
        try:
            async with self._in_time(entry.program):
                await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            error = called_off()
        except Exception as raised:
            error = raised
        finally:
            await stop(tasks)
            ended()
            answering.end(error)

    async def _pump(self, index: int, scope: Scope, spec: CallSpec, answering: Answering) -> None:
        async with contextlib.aclosing(self._chunks(scope, spec, stream=True)) as chunks:
            async for chunk in chunks:
                await answering.put(Piece(index, chunk))

    async def _reply(self, scope: Scope, spec: CallSpec) -> Reply:
        return await last_reply(self._chunks(scope, spec, stream=False))

    def _chunks(self, scope: Scope, spec: CallSpec, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        run: Any = scope.owner
        if run.ended_at is not None:
            raise called_off()
        return self._runtime.emitter(run).chunks(spec, scope, stream=stream)

    @contextlib.asynccontextmanager
    async def _in_time(self, program: ClientProgram) -> AsyncIterator[None]:
        """Run the body until the program's deadline. Raises `CallTimeoutError` there."""
        at = program.deadline_at
        try:
            async with asyncio.timeout(None if at is None else at - self._runtime.now()):
                yield
        except TimeoutError as error:
            raise CallTimeoutError(
                f"program {program.run.id} is over its deadline; its calls were aborted"
            ) from error
