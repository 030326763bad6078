"""Carries one run's calls into the registry and the engine, and back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from hashlib import blake2b

from agentrt import tracking
from agentrt.executors.base import Chunk, Reading
from agentrt.executors.frontend import WORKS_FOR, Answer, Request, calling
from agentrt.executors.replies import StreamedAnswer, reply_of
from agentrt.graph import Node
from agentrt.program.results import Takes
from agentrt.request import Call, CallReport, CallSpec, Reply
from agentrt.runtime.contexts import ContextEmitter, next_outside
from agentrt.runtime.interrupts import InterruptEmitter, node_of
from agentrt.runtime.registry import identity_of
from agentrt.tracking.scope import Scope


@dataclasses.dataclass(slots=True)
class RunCaller:
    """A run's code in ``scope``, as who makes calls through a front end.

    ``after`` are nodes that had to end before them, beside what the scope knows. ``replies``
    are those of the calls so far, in the order of their ends. A ``client`` program's tasks are
    not the run's own.
    """

    emitter: RunEmitter
    scope: Scope
    after: Iterable[Reply] = ()
    client: bool = False
    replies: list[Reply] = dataclasses.field(default_factory=list)

    async def chunks(self, spec: CallSpec, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        made = self.emitter.make(spec, self.scope, self.after, stream=stream)
        reading = Reading(made.__anext__)
        if self.client:
            self.emitter.begin_client_call(reading)
        try:
            async with contextlib.aclosing(made):
                async for chunk in reading:
                    reading.task = None
                    if chunk.reply is not None:
                        self.replies.append(chunk.reply)
                    yield chunk
        finally:
            if self.client:
                self.emitter.end_client_call(reading)

    @contextlib.contextmanager
    def siblings(self, count: int) -> Iterator[Sequence[RunCaller]]:
        each = [
            RunCaller(self.emitter, self.scope.fork(), self.after, self.client, self.replies)
            for _ in range(count)
        ]
        try:
            yield each
        finally:
            for one in each:
                self.scope.join(one.scope)

    def sign(self, reply: Reply) -> Reply:
        """An answer's reply with the account of the calls that made it."""
        if not self.replies:
            return reply
        last = self.replies[-1]
        return dataclasses.replace(
            reply, report=last.report, node=last.node, program_id=last.program_id
        )


class RunEmitter(InterruptEmitter):
    """One run's `Emitter`: what the run's own code emits, in its own tasks."""

    async def call(self, request: Request, after: Iterable[Reply]) -> Reply:
        who = RunCaller(self, self.own_scope("llm"), tuple(after))
        answer = await self.chat(request, who)
        return who.sign(reply_of(answer, as_json="response_format" in request))

    async def stream(
        self, request: Request, after: Iterable[Reply], put: Callable[[Reply], None]
    ) -> AsyncIterator[Answer]:
        who = RunCaller(self, self.own_scope("llm"), tuple(after))
        whole = StreamedAnswer()
        async with contextlib.aclosing(self.chat_stream(request, who)) as pieces:
            async for piece in pieces:
                whole.add(piece)
                yield piece
        put(who.sign(reply_of(whole.answer(), as_json="response_format" in request)))

    @property
    def contexts(self) -> ContextEmitter:
        """What carries the calls of contexts."""
        return ContextEmitter(self.own_scope, self.make, self.services, self._run.row.tenant)

    async def takes(self, model: str | None) -> Takes:
        """What a model takes beside text; None is the first that is served."""
        with tracking.outside():
            told = (await self.services.frontend()).profile(model)
        known = {"image_url": told.images, "input_audio": told.audio}
        return {part: told.media_in_tools for part, takes in known.items() if takes}

    # -- calls -------------------------------------------------------------------------

    def begin_client_call(self, reading: Reading[Chunk]) -> None:
        """A client program's call, which `make` made, is read, until `end_client_call`.

        The task that waits for its next chunk is in no run of its own, and may be another each
        time: so a runtime that closes finds it.
        """
        self.services.client_calls[reading] = self._run.id

    def end_client_call(self, reading: Reading[Chunk]) -> None:
        """It is over."""
        del self.services.client_calls[reading]

    def caller(self, scope: Scope) -> RunCaller:
        """A client program's code in ``scope``, as who makes calls through a front end."""
        return RunCaller(self, scope, client=True)

    async def chat(self, request: Request, who: RunCaller) -> Answer:
        """The whole answer to a chat request that ``who`` makes."""
        WORKS_FOR.set(self._run.row.tenant)
        with tracking.outside():
            frontend = await self.services.frontend()
            with calling(who):
                return await frontend.chat(request)

    async def chat_stream(self, request: Request, who: RunCaller) -> AsyncGenerator[Answer, None]:
        """The same in pieces. Closing the generator aborts the calls."""
        WORKS_FOR.set(self._run.row.tenant)
        with tracking.outside():
            frontend = await self.services.frontend()
            with calling(who):
                pieces = frontend.chat_stream(request)
        async with contextlib.aclosing(pieces):
            while (piece := await next_outside(pieces)) is not None:
                yield piece

    async def make(
        self,
        spec: CallSpec,
        scope: Scope,
        after: Iterable[Reply],
        *,
        stream: bool,
        name: str = "llm",
    ) -> AsyncGenerator[Chunk, None]:
        """Make a call, and give its chunks, to be read outside of programs' own code."""
        run, registry, executor = self._run, self._registry, self.services.executor
        executor.info.check_served(spec.model)
        if spec.sampling is not None:
            executor.info.check_logits(spec.sampling.logits)
        node = registry.begin_call(run, scope, name, map(node_of, after))
        call = self._identify(node, scope, spec)
        over = False
        try:
            async with contextlib.aclosing(executor.generate(call, stream=stream)) as chunks:
                async for chunk in chunks:
                    if chunk.reply is not None:
                        over = True
                        registry.end_call(run, scope, node, chunk.reply.report)
                        chunk.reply = dataclasses.replace(
                            chunk.reply, node=node.id, program_id=run.id
                        )
                    yield chunk
        except (asyncio.CancelledError, GeneratorExit):
            if not over:
                report = CallReport()
                try:  # a second cancellation must not leave the call open
                    report = await executor.aborted(call.call_id)
                finally:
                    registry.end_call(run, scope, node, report, cancelled=True)
            raise
        except Exception as error:
            if not over:
                registry.end_call(run, scope, node, CallReport(), error=error)
            raise

    def _identify(self, node: Node, scope: Scope, spec: CallSpec) -> Call:
        run = self._run
        if spec.seed is None and spec.temperature > 0:
            spec = dataclasses.replace(spec, seed=self._draw_seed(node))
        return Call(identity_of(run, scope, node), spec)

    def _draw_seed(self, node: Node) -> int:
        """A seed that depends on the runtime's seed, the program and the node only."""
        of = f"{self.services.seed}/{self._run.id}/{node.id}".encode()
        # To seed a generator of random numbers for one takes ten times as long.
        return int.from_bytes(blake2b(of, digest_size=4).digest()) >> 1
