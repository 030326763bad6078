"""Runs the calls of one request: as many as it has choices, until all end or its client goes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from starlette.requests import Request

from agentrt import tracking
from agentrt.errors import CallTimeoutError
from agentrt.executors.base import Chunk, last_reply
from agentrt.request import CallSpec, Reply
from agentrt.runtime import Runtime
from agentrt.serving.openai.client_programs import ClientProgram, Entry
from agentrt.serving.openai.faults import ApiError
from agentrt.tracking.scope import Scope

T = TypeVar("T")
_AHEAD = 64
"""Chunks that may wait for a slow reader. Beyond, the engine's own buffer joins pieces."""


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


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
    """Makes calls on a runtime. It owns their tasks, and waits for them when it closes."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def close(self) -> None:
        """Call off what is left."""
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` in a task that is no program's."""
        with tracking.outside():
            task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def unless_gone(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` gives. If the client goes, it is called off.

        Raises `ClientGoneError` then, and `ApiError` if somebody else called it off.
        """
        task, gone = self.start(work), self.start(_gone(request))
        try:
            await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            was_done = task.done()
            await _end([task, gone])
        if not was_done:
            raise ClientGoneError
        if task.cancelled():
            raise _ended()
        return task.result()

    async def replies(self, entry: Entry, specs: Sequence[CallSpec]) -> list[Reply]:
        """The replies of all calls; the first that fails calls the others off."""
        scopes = [entry.scope() for _ in specs]
        async with self._in_time(entry.guest):
            if len(specs) == 1:
                return [await self._reply(scopes[0], specs[0])]
            tasks = [self.start(self._reply(*one)) for one in zip(scopes, specs, strict=True)]
            try:
                return list(await asyncio.gather(*tasks))
            finally:
                await _end(tasks)

    def stream(
        self, entry: Entry, specs: Sequence[CallSpec], ended: Callable[[], None]
    ) -> Answering:
        """All calls' pieces as they come. ``ended`` is called when the calls are over.

        The calls are in tasks of their own: whatever way its reader is cancelled, they are
        aborted in order.
        """
        answering = Answering()
        answering.feeder = self.start(self._feed(entry, specs, answering, ended))
        return answering

    async def _feed(
        self,
        entry: Entry,
        specs: Sequence[CallSpec],
        answering: Answering,
        ended: Callable[[], None],
    ) -> None:
        pumps = [self._pump(i, entry.scope(), spec, answering) for i, spec in enumerate(specs)]
        tasks = [self.start(pump) for pump in pumps]
        error: BaseException | None = None
        try:
            async with self._in_time(entry.guest):
                await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            error = _ended()
        except Exception as raised:
            error = raised
        finally:
            await _end(tasks)
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
            raise _ended()
        return self._runtime.emitter(run).chunks(spec, scope, stream=stream)

    @contextlib.asynccontextmanager
    async def _in_time(self, guest: ClientProgram) -> AsyncIterator[None]:
        """Run the body until the program's deadline. Raises `CallTimeoutError` there."""
        at = guest.deadline_at
        try:
            async with asyncio.timeout(None if at is None else at - self._runtime.now()):
                yield
        except TimeoutError as error:
            raise CallTimeoutError(
                f"program {guest.run.id} is over its deadline; its calls were aborted"
            ) from error


def _ended() -> ApiError:
    return ApiError(409, "the call was called off: its program was ended", code="cancelled")


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they are over. What they raised is known elsewhere."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()


async def _gone(request: Request) -> None:
    """Return when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
