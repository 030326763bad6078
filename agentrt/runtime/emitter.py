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
from typing import TypeVar

from agentrt import tracking
from agentrt.contexts.saved import SavedContext
from agentrt.executors.base import Chunk, Notification
from agentrt.executors.frontend import WORKS_FOR, Answer, Caller, Frontend, Request, calling
from agentrt.executors.replies import StreamedAnswer, reply_of
from agentrt.graph import Node
from agentrt.program.results import Takes
from agentrt.request import Call, CallReport, CallSpec, Reply
from agentrt.runtime.interrupts import InterruptEmitter, node_of
from agentrt.runtime.registry import identity_of
from agentrt.runtime.services import ClientCall, Services
from agentrt.tracking.scope import Scope

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class ContextEmitter:
    """One run's `TokenEmitter`. ``scope`` says where the run's code is, and ``make`` makes a call
    there, with its node's name; the runtime's ``services`` have the tokenizer.
    """

    scope: Callable[[str], Scope]
    make: Callable[..., AsyncGenerator[Chunk, None]]
    services: Services
    tenant: str

    async def token_call(
        self, spec: CallSpec, name: str, *, stream: bool
    ) -> AsyncGenerator[Chunk, None]:
        """A call of token ids as its output grows. Raises `ConfigError` where the executor takes
        none, and what `Executor.generate` raises.
        """
        scope = self.scope(name)
        spec = (await self.frontend()).addressed(spec)
        made = self.make(spec, scope, (), stream=stream, name=name)
        async with contextlib.aclosing(made) as chunks:
            while (chunk := await _next_outside(chunks)) is not None:
                yield chunk

    async def frontend(self) -> Frontend:
        """What turns text into token ids and back."""
        with tracking.outside():
            return await self.services.frontend()

    def save(self, name: str, context: SavedContext) -> None:
        """Keep a context for the tenant. Raises `ConfigError` past the budget."""
        self.services.saved.save(self.tenant, name, context)

    def open(self, name: str) -> SavedContext:
        """One that the tenant has saved. Raises `UnknownContextError`."""
        return self.services.saved.open(self.tenant, name)

    def dropped(self, call: str, shared: int) -> None:
        """A context is given up of which ``call`` was the last; others have its first tokens."""
        program_id = call.rpartition("/")[0]
        self.services.executor.notify(Notification(program_id, "dropped", call, shared))

    def forget(self, name: str) -> None:
        """Keep it no longer. Raises `UnknownContextError`."""
        self.services.saved.forget(self.tenant, name)


@dataclasses.dataclass(slots=True)
class RunCaller(Caller):
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

    def chunks(self, spec: CallSpec, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        """Make a call. The last chunk's reply is added to ``replies``."""
        client = ClientCall(self.emitter.program_id) if self.client else None
        return self.emitter.make(
            spec, self.scope, self.after, stream=stream, replies=self.replies, client=client
        )

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
            profile = (await self.services.frontend()).profile(model)
        known = {"image_url": profile.images, "input_audio": profile.audio}
        return {part: profile.media_in_tools for part, takes in known.items() if takes}

    # -- calls -------------------------------------------------------------------------

    @property
    def program_id(self) -> str:
        """The id of its run."""
        return self._run.id

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
            while (piece := await _next_outside(pieces)) is not None:
                yield piece

    async def make(
        self,
        spec: CallSpec,
        scope: Scope,
        after: Iterable[Reply],
        *,
        stream: bool,
        name: str = "llm",
        replies: list[Reply] | None = None,
        client: ClientCall | None = None,
    ) -> AsyncGenerator[Chunk, None]:
        """Make a call, and give its chunks, to be read outside of programs' own code. The reply
        is added to ``replies``. A client program's call is ``client``.
        """
        over, loop = False, asyncio.get_running_loop()
        try:
            node, call = self._begin(spec, scope, name, after)
            made = self.services.executor.generate(call, stream=stream)
            try:
                async with contextlib.aclosing(made) as chunks:
                    if client is not None:
                        self.services.client_calls.add(client)
                        client.task = asyncio.current_task(loop)
                    async for chunk in chunks:
                        if client is not None:
                            client.task = None
                        if chunk.reply is not None:
                            over = True
                            self._registry.end_call(self._run, scope, node, chunk.reply.report)
                            if client is None or replies is not None:
                                chunk.reply = self._signed(chunk.reply, node, replies)
                        yield chunk
                        if client is not None:
                            client.task = asyncio.current_task(loop)
            except BaseException as error:
                if not over:
                    await self._failed(call, scope, node, error)
                raise
        finally:
            if client is not None:
                self.services.client_calls.discard(client)
                client.ended()

    def _begin(
        self, spec: CallSpec, scope: Scope, name: str, after: Iterable[Reply]
    ) -> tuple[Node, Call]:
        info = self.services.executor.info
        info.check_served(spec.model)
        if spec.sampling is not None:
            info.check_logits(spec.sampling.logits)
        node = self._registry.begin_call(self._run, scope, name, map(node_of, after))
        return node, self._identify(node, scope, spec)

    def _signed(self, reply: Reply, node: Node, replies: list[Reply] | None) -> Reply:
        """A call's reply, for the run's own code."""
        reply = dataclasses.replace(reply, node=node.id, program_id=self._run.id)
        if replies is not None:
            replies.append(reply)
        return reply

    async def _failed(self, call: Call, scope: Scope, node: Node, error: BaseException) -> None:
        run, registry, report = self._run, self._registry, CallReport()
        if isinstance(error, Exception):
            registry.end_call(run, scope, node, report, error=error)
            return
        try:  # a second cancellation must not leave the call open
            report = await self.services.executor.aborted(call.call_id)
        finally:
            registry.end_call(run, scope, node, report, cancelled=True)

    def _identify(self, node: Node, scope: Scope, spec: CallSpec) -> Call:
        run = self._run
        if spec.seed is None and spec.temperature > 0:
            spec = dataclasses.replace(spec, seed=self._draw_seed(node, scope))
        return Call(identity_of(run, scope, node), spec)

    def _draw_seed(self, node: Node, scope: Scope) -> int:
        """A seed that depends on the runtime's seed, the program and the node only; of a fork
        on those of the program that it came from.
        """
        place, where = scope.place, str(node.id)
        if place is not None:  # the same when the call is made again, whatever came between
            where, place.nodes = f"{place.path}#{place.nodes}", place.nodes + 1
        who = self._run.draws_as or self._run.id
        of = f"{self.services.seed}/{who}/{where}".encode()
        # To seed a generator of random numbers for one takes ten times as long.
        return int.from_bytes(blake2b(of, digest_size=4).digest()) >> 1


async def _next_outside(items: AsyncGenerator[T, None]) -> T | None:
    """The next of ``items``, None after the last; a task that this starts belongs to no program."""
    with tracking.outside():
        return await anext(items, None)
