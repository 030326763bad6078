"""Carries one run's nodes into its DAG, the process table and the engine, and back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

from agentrt import tracking
from agentrt.errors import AgentrtError, ConfigError
from agentrt.events import Event, NodeEnded, NodeStarted
from agentrt.executors.base import Chunk, Executor
from agentrt.graph import Node, NodeKind
from agentrt.request import Call, CallReport, CallSpec, Reply
from agentrt.run import Run
from agentrt.scheduler.table import ProcessTable
from agentrt.scope import Scope

T = TypeVar("T")
AskHuman = Callable[[str, str], Awaitable[str]]
"""Called with a program id and a question; the answer resumes the program."""


@dataclasses.dataclass(frozen=True, slots=True)
class Services:
    """What the emitters of all runs share."""

    executor: Executor
    table: ProcessTable
    clock: Callable[[], float]
    tell: Callable[[Event], None]
    ask_human: AskHuman
    seed: int


async def _outside(chunks: AsyncGenerator[Chunk, None]) -> AsyncGenerator[Chunk, None]:
    """Read an executor's chunks so that a task which it starts belongs to no program."""
    while True:
        with tracking.outside():
            chunk = await anext(chunks, None)
        if chunk is None:
            return
        yield chunk


class RunEmitter:
    """One run's `Emitter`."""

    def __init__(self, run: Run, services: Services) -> None:
        self._run = run
        self._with = services

    async def call(self, spec: CallSpec, after: Iterable[Reply]) -> Reply:
        async with contextlib.aclosing(self._emit_call(spec, after, stream=False)) as chunks:
            replies = [reply async for _, reply in chunks if reply is not None]
        return replies[-1]

    async def stream(self, spec: CallSpec, after: Iterable[Reply]) -> AsyncIterator[str]:
        async with contextlib.aclosing(self._emit_call(spec, after, stream=True)) as chunks:
            async for text, _ in chunks:
                if text:
                    yield text

    async def tool(self, name: str, work: Callable[[], Awaitable[T]], after: Iterable[Reply]) -> T:
        return await self._interrupt(NodeKind.TOOL, name, work, after)

    async def human(self, question: str, after: Iterable[Reply]) -> str:
        async def work() -> str:
            return await self._with.ask_human(self._run.id, question)

        return await self._interrupt(NodeKind.HUMAN, question, work, after)

    # -- calls -------------------------------------------------------------------------

    async def _emit_call(
        self, spec: CallSpec, after: Iterable[Reply], *, stream: bool
    ) -> AsyncGenerator[tuple[str, Reply | None], None]:
        node, scope = self._begin(NodeKind.CALL, "llm", after)
        call = self._identify(node, scope, spec)
        self._with.table.call_arrived(self._run.row, call.call_id, node.created_at)
        try:
            chunks = self._with.executor.generate(call, stream=stream)
            async with contextlib.aclosing(chunks):
                async for chunk in _outside(chunks):
                    reply = chunk.reply
                    if reply is not None:
                        reply = dataclasses.replace(reply, node=node.id)
                        self._end_call(scope, node, call, reply.report)
                    yield chunk.text, reply
        except (asyncio.CancelledError, GeneratorExit):
            if not node.state.ended:
                report = await self._with.executor.aborted(call.call_id)
                self._end_call(scope, node, call, report, cancelled=True)
            raise
        except Exception as error:
            if not node.state.ended:
                self._end_call(scope, node, call, CallReport(), error=error)
            raise

    def _identify(self, node: Node, scope: Scope, spec: CallSpec) -> Call:
        run = self._run
        if spec.seed is None and spec.temperature > 0:
            spec = dataclasses.replace(spec, seed=self._draw_seed(node))
        return Call(
            call_id=f"{run.id}/{node.id}",
            program_id=run.id,
            program_type=run.program.name,
            spec=spec,
            tenant=run.row.tenant,
            session=run.row.session,
            path_s=node.path_s,
            program_service_s=run.row.service_s,
            program_path_s=run.row.path_s,
            program_waiting_s=run.row.waiting_s,
            node=_node_name(scope.path),
            size_hint=run.row.size_hint,
        )

    def _draw_seed(self, node: Node) -> int:
        """A seed that depends on the runtime's seed, the program and the node only."""
        return random.Random(f"{self._with.seed}/{self._run.id}/{node.id}").getrandbits(31)

    def _end_call(
        self,
        scope: Scope,
        node: Node,
        call: Call,
        report: CallReport,
        *,
        cancelled: bool = False,
        error: Exception | None = None,
    ) -> None:
        now, dag = self._with.clock(), self._run.dag
        if report.steps:
            dag.start(node.id, min(now, node.created_at + report.waiting_s))
        if cancelled:
            dag.cancel(node.id, now, report)
        elif error is not None:
            dag.fail(node.id, now, f"{type(error).__name__}: {error}", report)
        else:
            dag.finish(node.id, now, report)
        self._with.table.call_ended(self._run.row, call.call_id, now, node.path_s, report)
        self._run.saw_steps(report)
        self._leave(scope, node, now)

    # -- interrupts --------------------------------------------------------------------

    async def _interrupt(
        self,
        kind: NodeKind,
        name: str,
        work: Callable[[], Awaitable[T]],
        after: Iterable[Reply],
    ) -> T:
        node, scope = self._begin(kind, name, after)
        run, human = self._run, kind is NodeKind.HUMAN
        run.dag.start(node.id, node.created_at)
        self._with.table.interrupt_started(run.row, node.created_at, human=human)
        ended: BaseException | None = None
        try:
            return await work()
        except BaseException as error:
            ended = error
            raise
        finally:
            now = self._with.clock()
            if ended is None:
                run.dag.finish(node.id, now)
            elif isinstance(ended, Exception):
                run.dag.fail(node.id, now, f"{type(ended).__name__}: {ended}")
            else:
                run.dag.cancel(node.id, now)
            seconds = now - node.created_at
            self._with.table.interrupt_ended(run.row, now, human=human, seconds=seconds)
            self._leave(scope, node, now)

    # -- both --------------------------------------------------------------------------

    def _begin(self, kind: NodeKind, name: str, after: Iterable[Reply]) -> tuple[Node, Scope]:
        scope = tracking.current_scope()
        if scope is None or scope.owner is not self._run:
            raise AgentrtError(
                f"program {self._run.id} emitted {name!r} outside its own tasks; "
                "a context must not be passed to another program or a bare thread"
            )
        by_hand = [self._node_of(reply) for reply in after]
        parents = tracking.emission_parents(scope, self._run.dag, by_hand)
        now = self._with.clock()
        node = self._run.dag.add(kind, name, scope.path, parents, now)
        self._with.tell(NodeStarted(self._run.id, node, now))
        return node, scope

    def _node_of(self, reply: Reply) -> int:
        if reply.node < 0:
            raise ConfigError("after= takes replies of this program's own calls")
        return reply.node

    def _leave(self, scope: Scope, node: Node, now: float) -> None:
        scope.frontier.advance(node.id, node.parents)
        self._with.tell(NodeEnded(self._run.id, node, now))


def _node_name(path: str) -> str:
    """The innermost node function of a scope; "" in the program's own function."""
    return path.rpartition("/")[2] if "/" in path else ""
