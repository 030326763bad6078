"""Carries one run's nodes into the registry and the engine, and back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

from agentrt import tracking
from agentrt.errors import AgentrtError, ConfigError
from agentrt.executors.base import Chunk, Executor, last_reply
from agentrt.graph import Node, NodeKind
from agentrt.request import Call, CallReport, CallSpec, Reply
from agentrt.runtime.registry import identity_of, registry_of
from agentrt.runtime.run import Run
from agentrt.tracking.scope import Scope

T = TypeVar("T")
AskHuman = Callable[[str, str], Awaitable[str]]
"""Called with a program id and a question; the answer resumes the program."""


@dataclasses.dataclass(frozen=True, slots=True)
class Services:
    """What the emitters of all runs share."""

    executor: Executor
    ask_human: AskHuman
    seed: int
    client_calls: dict[asyncio.Task[Any], str] = dataclasses.field(default_factory=dict)
    """Tasks in the middle of a call of a client program, with the program's id."""


async def _outside(chunks: AsyncGenerator[Chunk, None]) -> AsyncGenerator[Chunk, None]:
    """Read an executor's chunks so that a task which it starts belongs to no program."""
    while True:
        with tracking.outside():
            chunk = await anext(chunks, None)
        if chunk is None:
            return
        yield chunk


class RunEmitter:
    """One run's `Emitter`: what the run's own code emits, in its own tasks."""

    def __init__(self, run: Run, services: Services) -> None:
        self._run = run
        self._registry = registry_of(run)
        self._with = services

    async def call(self, spec: CallSpec, after: Iterable[Reply]) -> Reply:
        return await last_reply(self._make(spec, self._own_scope("llm"), after, stream=False))

    async def stream(self, spec: CallSpec, after: Iterable[Reply]) -> AsyncIterator[str]:
        making = self._make(spec, self._own_scope("llm"), after, stream=True)
        async with contextlib.aclosing(making) as chunks:
            async for chunk in chunks:
                if chunk.text:
                    yield chunk.text

    async def tool(self, name: str, work: Callable[[], Awaitable[T]], after: Iterable[Reply]) -> T:
        return await self._interrupt(NodeKind.TOOL, name, work, after)

    async def human(self, question: str, after: Iterable[Reply]) -> str:
        async def work() -> str:
            return await self._with.ask_human(self._run.id, question)

        return await self._interrupt(NodeKind.HUMAN, question, work, after)

    # -- calls -------------------------------------------------------------------------

    async def chunks(
        self, spec: CallSpec, scope: Scope, *, stream: bool
    ) -> AsyncGenerator[Chunk, None]:
        """A call of a client program, which is in ``scope``, as its output grows.

        The last chunk, and only it, has the reply. Closing the generator, or cancelling the
        task that reads it, aborts the call; so does a runtime that closes.
        """
        making = self._make(spec, scope, (), stream=stream)
        async with contextlib.aclosing(making) as chunks:
            with self._registered():
                async for chunk in chunks:
                    yield chunk

    @contextlib.contextmanager
    def _registered(self) -> Iterator[None]:
        """Let a runtime that closes find the task, since no run of its own has it."""
        task = asyncio.current_task()
        assert task is not None
        self._with.client_calls[task] = self._run.id
        try:
            yield
        finally:
            self._with.client_calls.pop(task, None)

    async def _make(
        self, spec: CallSpec, scope: Scope, after: Iterable[Reply], *, stream: bool
    ) -> AsyncGenerator[Chunk, None]:
        run, registry, executor = self._run, self._registry, self._with.executor
        executor.info.check_served(spec.model)
        node = registry.begin_call(run, scope, "llm", map(_node_of, after))
        call = self._identify(node, scope, spec)
        over = False
        try:
            async with contextlib.aclosing(executor.generate(call, stream=stream)) as chunks:
                async for chunk in _outside(chunks):
                    if chunk.reply is not None:
                        over = True
                        registry.end_call(run, scope, node, chunk.reply.report)
                    yield _with_node(chunk, run.id, node)
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
        return random.Random(f"{self._with.seed}/{self._run.id}/{node.id}").getrandbits(31)

    # -- interrupts --------------------------------------------------------------------

    async def _interrupt(
        self,
        kind: NodeKind,
        name: str,
        work: Callable[[], Awaitable[T]],
        after: Iterable[Reply],
    ) -> T:
        run, scope, registry = self._run, self._own_scope(name), self._registry
        node = registry.begin_interrupt(run, scope, kind, name, map(_node_of, after))
        ended: BaseException | None = None
        try:
            return await work()
        except BaseException as error:
            ended = error
            raise
        finally:
            registry.end_interrupt(run, scope, node, ended)

    # -- both --------------------------------------------------------------------------

    def _own_scope(self, name: str) -> Scope:
        scope = tracking.current_scope()
        if scope is None or scope.owner is not self._run:
            raise AgentrtError(
                f"program {self._run.id} emitted {name!r} outside its own tasks; "
                "a context must not be passed to another program or a bare thread"
            )
        return scope


def _with_node(chunk: Chunk, program_id: str, node: Node) -> Chunk:
    if chunk.reply is None:
        return chunk
    reply = dataclasses.replace(chunk.reply, node=node.id, program_id=program_id)
    return dataclasses.replace(chunk, reply=reply)


def _node_of(reply: Reply) -> int:
    if reply.node < 0:
        raise ConfigError("after= takes replies of this program's own calls")
    return reply.node
