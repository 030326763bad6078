"""Does what a run's code asks for: calls, tools, questions and waits, each a node of its DAG.

`LiveEmitter` is what a `Context` calls. A run with a journal has a
`agentrt.runtime.recorded.Recorded` around it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import sys
import uuid
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from hashlib import blake2b
from types import FrameType, TracebackType
from typing import Any, TypeVar

from agentrt import tracking
from agentrt.contexts.saved import SavedContext
from agentrt.errors import AgentrtError, ConfigError, InterruptExpiredError, UsageError
from agentrt.executors.base import Chunk, Notification
from agentrt.executors.chat_api import WORKS_FOR, Answer, Caller, Frontend, Request
from agentrt.executors.replies import StreamedAnswer, reply_of
from agentrt.graph import Interrupt, Node, NodeKind, Progress
from agentrt.interrupts import Tool, ToolRequest
from agentrt.interrupts.answers import AnswerForm, answer_form
from agentrt.interrupts.events import Event, Feed
from agentrt.interrupts.local import ThreadTransport
from agentrt.interrupts.questions import Question
from agentrt.program.results import Takes
from agentrt.request import Call, CallReport, CallSpec, Reply
from agentrt.runtime.registry import RunRegistry, identity_of, registry_of
from agentrt.runtime.run import Run
from agentrt.runtime.services import ClientCall, Services
from agentrt.tracking.scope import Scope

T = TypeVar("T")
_MARK = uuid.uuid4().hex
_KEYS = itertools.count()


class LiveEmitter:
    """The `Emitter` of one run that does the work. The runtime's ``services`` do their part."""

    def __init__(self, run: Run, services: Services) -> None:
        self.run = run
        self.registry = registry_of(run)
        self.services = services

    def own_scope(self, name: str) -> Scope:
        """Return where the run's code is that emits a node ``name`` now. Raises `AgentrtError`
        where that is no task of the run.
        """
        scope = tracking.current_scope()
        if scope is None or scope.owner is not self.run:
            raise AgentrtError(
                f"program {self.run.id} emitted {name!r} outside its own tasks; "
                "a context must not be passed to another program or a bare thread"
            )
        return scope

    # -- chats -------------------------------------------------------------------------

    async def call(self, request: Request, after: Iterable[Reply]) -> Reply:
        caller = RunCaller(self, self.own_scope("llm"), tuple(after))
        answer = await self.chat(request, caller)
        return caller.sign(reply_of(answer, as_json="response_format" in request))

    async def stream(
        self, request: Request, after: Iterable[Reply], put: Callable[[Reply], None]
    ) -> AsyncIterator[Answer]:
        caller = RunCaller(self, self.own_scope("llm"), tuple(after))
        whole = StreamedAnswer()
        async with contextlib.aclosing(self.chat_stream(request, caller)) as pieces:
            async for piece in pieces:
                whole.add(piece)
                yield piece
        put(caller.sign(reply_of(whole.answer(), as_json="response_format" in request)))

    def caller(self, scope: Scope) -> RunCaller:
        """Return the caller for a client program's code in ``scope``."""
        return RunCaller(self, scope, client=True)

    async def chat(self, request: Request, caller: RunCaller) -> Answer:
        """Return the whole answer to a chat request that ``caller`` makes."""
        WORKS_FOR.set(self.run.row.tenant)
        with tracking.outside():
            return await (await self.services.frontend()).chat(request, caller)

    async def chat_stream(
        self, request: Request, caller: RunCaller
    ) -> AsyncGenerator[Answer, None]:
        """Yield the answer in pieces. Closing the generator aborts the calls."""
        WORKS_FOR.set(self.run.row.tenant)
        with tracking.outside():
            pieces = (await self.services.frontend()).chat_stream(request, caller)
        async with contextlib.aclosing(pieces):
            while (piece := await _next_outside(pieces)) is not None:
                yield piece

    async def takes(self, model: str | None) -> Takes:
        """Return what a model takes beside text; None is the first that is served."""
        with tracking.outside():
            profile = (await self.services.frontend()).profile(model)
        known = {"image_url": profile.images, "input_audio": profile.audio}
        return {part: profile.media_in_tools for part, takes in known.items() if takes}

    # -- calls in the engine -----------------------------------------------------------

    @property
    def contexts(self) -> LiveContexts:
        """What carries the calls of contexts."""
        return LiveContexts(self)

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
        """Make a call, and yield its chunks, to be read outside of programs' own code. The reply
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
                            self.registry.end_call(self.run, scope, node, chunk.reply.report)
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
        node = self.registry.begin_call(self.run, scope, name, map(node_of, after))
        if spec.seed is None and spec.temperature > 0:
            spec = dataclasses.replace(spec, seed=self._draw_seed(node, scope))
        return node, Call(identity_of(self.run, scope, node), spec)

    def _draw_seed(self, node: Node, scope: Scope) -> int:
        """Draw a seed that depends on the runtime's seed, the program and the node only; for a fork
        on those of the program that it came from.
        """
        place, where = scope.place, str(node.id)
        if place is not None:  # the same when the call is made again, whatever came between
            where, place.nodes = f"{place.path}#{place.nodes}", place.nodes + 1
        program_id = self.run.draws_as or self.run.id
        key = f"{self.services.seed}/{program_id}/{where}".encode()
        # Seeding a generator of random numbers for one number takes ten times as long.
        return int.from_bytes(blake2b(key, digest_size=4).digest()) >> 1

    def _signed(self, reply: Reply, node: Node, replies: list[Reply] | None) -> Reply:
        """A call's reply, for the run's own code."""
        reply = dataclasses.replace(reply, node=node.id, program_id=self.run.id)
        if replies is not None:
            replies.append(reply)
        return reply

    async def _failed(self, call: Call, scope: Scope, node: Node, error: BaseException) -> None:
        report = CallReport()
        if isinstance(error, Exception):
            self.registry.end_call(self.run, scope, node, report, error=error)
            return
        try:  # a second cancellation must not leave the call open
            report = await self.services.executor.aborted(call.call_id)
        finally:
            self.registry.end_call(self.run, scope, node, report, cancelled=True)

    # -- outside the engine ------------------------------------------------------------

    async def tool(
        self,
        tool: Tool,
        positional: tuple[Any, ...],
        arguments: Mapping[str, Any],
        after: Iterable[Reply],
        *,
        key: str | None = None,
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> Any:
        """Run a tool and return its result. Raises as `Attempts.run` does.

        The tool's transport may know the ``key`` from an earlier run of the same node; None is a
        new key. ``before`` is awaited ahead of each attempt.
        """
        run, services = self.run, self.services
        # Whoever gets the key elsewhere may know those of other runtimes.
        key = f"{_MARK}-{next(_KEYS)}" if key is None else key
        transport, slots = services.toolbox.transport_of(tool), services.toolbox.slots_of(tool)
        known = arguments if tool.spec is not None else None
        interrupt = Interrupt(transport.name, known, key=key, attempt=1)
        request = ToolRequest(
            tool,
            arguments,
            positional,
            key=key,
            program_id=run.id,
            tenant=run.row.tenant,
            timeout=tool.options.timeout,
            before=before,
        )
        scope = self.own_scope(tool.name)
        with self._interrupted(NodeKind.TOOL, tool.name, scope, after, interrupt) as node:
            observer = _Observer(self, node, scope, tool.options.timeout)
            # A function of this process may emit nodes of its own; nothing else belongs to the run.
            inside = isinstance(transport, ThreadTransport)
            if inside:
                return await services.attempts.run(request, transport, observer, slots)
            with tracking.outside():
                return await services.attempts.run(request, transport, observer, slots)

    async def find_tool(self, name: str, timeout: float | None = None) -> Tool:
        """Return the tool of this name that some transport offers. Raises `UnknownToolError`, and
        `InterruptExpiredError` where that is not known after ``timeout`` (seconds).
        """
        bound = asyncio.timeout(timeout)
        try:
            with tracking.outside():
                async with bound:
                    return await self.services.toolbox.find(name, self.run.row.tenant)
        except TimeoutError as error:
            if not bound.expired():
                raise
            message = f"tool {name} was not found within {timeout:g} s: a server does not answer"
            raise InterruptExpiredError(message, name=name) from error

    async def tools(self, *transports: str) -> list[Tool]:
        """Return what ``transports`` offer, or all of them. Raises as `Toolbox.tools` does."""
        with tracking.outside():
            tenant = self.run.row.tenant
            return await self.services.toolbox.tools(*transports, tenant=tenant)

    async def human(
        self,
        text: str,
        form: AnswerForm,
        timeout: float | None,
        after: Iterable[Reply],
        *,
        key: str | None = None,
    ) -> Any:
        """Ask a human. People who have seen the question before a restart know it by its ``key``;
        None is a new one. Raises as `Questions.ask` does.
        """
        return await self.ask(self.own_scope(text), text, form, timeout, after, key)

    async def ask(
        self,
        scope: Scope,
        text: str,
        form: AnswerForm,
        timeout: float | None = None,
        after: Iterable[Reply] = (),
        key: str | None = None,
    ) -> Any:
        """Ask in ``scope``; ``key`` is the question's id. Raises as `Questions.ask` does."""
        run = self.run
        question = Question(text, run.id, run.type, run.row.tenant, form)
        question.id = key or question.id
        deadline = None if timeout is None else self.registry.clock() + timeout
        interrupt = Interrupt("human", deadline=deadline, key=question.id, attempt=1)
        with self._interrupted(NodeKind.HUMAN, text, scope, after, interrupt), tracking.outside():
            return await self.services.questions.ask(question, timeout=timeout)

    async def event(self, feed: Feed, timeout: float | None, after: Iterable[Reply]) -> Event:
        """Wait for the next event. Raises as `Feed.next` does."""
        run, services = self.run, self.services
        services.feeds.setdefault(run.id, set()).add(feed)
        deadline = None if timeout is None else self.registry.clock() + timeout
        interrupt = Interrupt(services.events.name, deadline=deadline, attempt=1)
        scope = self.own_scope(feed.topic)
        with (
            self._interrupted(NodeKind.EVENT, feed.topic, scope, after, interrupt),
            tracking.outside(),
        ):
            return await feed.next(services.events, run.row.tenant, timeout, services.clock)

    async def sleep(self, seconds: float, after: Iterable[Reply]) -> None:
        """Do nothing for so long: to an engine, that is an event too."""
        interrupt = Interrupt("clock", deadline=self.registry.clock() + seconds, attempt=1)
        scope = self.own_scope("sleep")
        with self._interrupted(NodeKind.EVENT, "sleep", scope, after, interrupt):
            await self.services.clock.sleep(seconds)

    def _interrupted(
        self,
        kind: NodeKind,
        name: str,
        scope: Scope,
        after: Iterable[Reply],
        interrupt: Interrupt,
    ) -> _Interrupted:
        """Open a node for as long as the program is outside the engine."""
        before = [node_of(reply) for reply in after]
        node = self.registry.begin_interrupt(self.run, scope, kind, name, before, interrupt)
        return _Interrupted(self.registry, self.run, scope, node)

    # -- nodes that only a journal needs -----------------------------------------------

    def value(self, name: str, make: Callable[[], T]) -> T:
        return make()

    def patched(self, name: str) -> bool:
        self.own_scope("patched")
        return True

    def checkpoint(self) -> Callable[[T], T]:
        self.own_scope("checkpoint")
        return Checkpoint(self.run)

    def spawned(self, name: str, inputs: Sequence[Any], work: Coroutine[Any, Any, T]) -> Any:
        return work


@dataclasses.dataclass(slots=True)
class RunCaller(Caller):
    """A run's code in ``scope``, which makes calls through a front end.

    ``after`` are nodes that had to end before them, beside those that the scope knows. ``replies``
    are those of the calls so far, in the order of their ends. A ``client`` program's tasks are
    not the run's own.
    """

    emitter: LiveEmitter
    scope: Scope
    after: Iterable[Reply] = ()
    client: bool = False
    replies: list[Reply] = dataclasses.field(default_factory=list)

    def chunks(self, spec: CallSpec, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        """Make a call. The last chunk's reply is added to ``replies``."""
        client = ClientCall(self.emitter.run.id) if self.client else None
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
            for sibling in each:
                self.scope.join(sibling.scope)

    def sign(self, reply: Reply) -> Reply:
        """Return an answer's reply with the account of the calls that made it."""
        if not self.replies:
            return reply
        last = self.replies[-1]
        return dataclasses.replace(
            reply, report=last.report, node=last.node, program_id=last.program_id
        )


@dataclasses.dataclass(frozen=True, slots=True)
class LiveContexts:
    """The `TokenEmitter` of one run: what its contexts of tokens need."""

    emitter: LiveEmitter

    async def token_call(
        self, spec: CallSpec, name: str, *, stream: bool
    ) -> AsyncGenerator[Chunk, None]:
        """Make a call of token ids, and yield its output as it grows. Raises `ConfigError` where
        the executor takes none, and what `Executor.generate` raises.
        """
        scope = self.emitter.own_scope(name)
        spec = (await self.frontend()).addressed(spec)
        made = self.emitter.make(spec, scope, (), stream=stream, name=name)
        async with contextlib.aclosing(made) as chunks:
            while (chunk := await _next_outside(chunks)) is not None:
                yield chunk

    async def frontend(self) -> Frontend:
        """Return what turns text into token ids and back."""
        with tracking.outside():
            return await self.emitter.services.frontend()

    def save(self, name: str, context: SavedContext) -> None:
        """Keep a context for the tenant. Raises `ConfigError` past the budget."""
        self.emitter.services.saved.save(self.emitter.run.row.tenant, name, context)

    def is_saved(self, name: str) -> bool:
        """Whether the tenant has a context of that name."""
        return self.emitter.services.saved.has(self.emitter.run.row.tenant, name)

    def open(self, name: str) -> SavedContext:
        """Return a context that the tenant has saved. Raises `UnknownContextError`."""
        return self.emitter.services.saved.open(self.emitter.run.row.tenant, name)

    def forget(self, name: str) -> None:
        """Keep a saved context no longer. Raises `UnknownContextError`."""
        self.emitter.services.saved.forget(self.emitter.run.row.tenant, name)

    def dropped(self, call: str, shared: int) -> None:
        """Tell the engine that a context is given up of which ``call`` was the last; others have
        its first ``shared`` tokens.
        """
        program_id = call.rpartition("/")[0]
        self.emitter.services.executor.notify(Notification(program_id, "dropped", call, shared))


class Checkpoint:
    """What `Context.checkpoint` returns: the top of one loop calls it with the loop's state.

    It checks that it is called from one place, while no other task of the program is open, and
    returns what ``keep`` makes of the state: without a journal, the state itself.
    """

    def __init__(self, run: Run, keep: Callable[[Any], Any] | None = None) -> None:
        self._run, self._keep = run, keep
        self._top: tuple[FrameType, int] | None = None

    def __call__(self, state: T) -> T:
        frame = sys._getframe(1)
        at = frame, frame.f_lineno  # of one line, there may be two copies in the code
        self._top = self._top or at
        if self._top != at:
            raise UsageError(
                f"program {self._run.id}: a checkpoint is for the top of one loop: make another"
            )
        if not tracking.is_alone(self._run) or asyncio.current_task() is not self._run.task:
            raise UsageError(
                f"program {self._run.id}: a checkpoint is for the program's own function, while no "
                "other task of it is open: wait for them before"
            )
        if self._keep is None:
            return state
        kept: T = self._keep(state)
        return kept


class _Interrupted:
    """An open interrupt's node, which ends with the block as the block does. A class, and no
    generator: it is entered for each call of a tool.
    """

    __slots__ = ("_node", "_registry", "_run", "_scope")

    def __init__(self, registry: RunRegistry, run: Run, scope: Scope, node: Node) -> None:
        self._registry, self._run, self._scope, self._node = registry, run, scope, node

    def __enter__(self) -> Node:
        return self._node

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._registry.end_interrupt(self._run, self._scope, self._node, error)


class _Observer:
    """Tells the registry what becomes of a tool's call, and asks humans for it."""

    def __init__(
        self, emitter: LiveEmitter, node: Node, scope: Scope, timeout: float | None
    ) -> None:
        self._emitter = emitter
        self._run, self._registry = emitter.run, emitter.registry
        self._node, self._scope, self._timeout = node, scope, timeout

    def waits(self, why: str) -> None:
        self._registry.interrupt_waits(self._run, self._node, why)

    def starts(self, attempt: int) -> None:
        self._registry.interrupt_starts(self._run, self._node, attempt, self._timeout)

    def progress(self, progress: Progress) -> None:
        self._registry.interrupt_progress(self._run, self._node, progress)

    async def ask(self, question: str, schema: Mapping[str, Any] | None = None) -> Any:
        fork = self._scope.fork()
        try:
            return await self._emitter.ask(fork, question, answer_form(schema))
        finally:
            self._scope.join(fork)


def node_of(reply: Reply) -> int:
    """Return the node that a reply came from. Raises `ConfigError` for another program's."""
    if reply.node < 0:
        raise ConfigError("after= takes replies of this program's own calls")
    return reply.node


async def _next_outside(items: AsyncGenerator[T, None]) -> T | None:
    """Return the next of ``items``, None after the last; a task that this starts belongs to no
    program.
    """
    with tracking.outside():
        return await anext(items, None)
