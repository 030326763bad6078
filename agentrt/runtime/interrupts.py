"""Carries one run's interrupts into the registry, and to whoever does their work."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from agentrt import tracking
from agentrt.errors import AgentrtError, ConfigError, InterruptExpiredError
from agentrt.graph import Interrupt, Node, NodeKind, Progress
from agentrt.interrupts import Tool, ToolRequest
from agentrt.interrupts.answers import AnswerForm, answer_form
from agentrt.interrupts.events import Event, Feed
from agentrt.interrupts.local import ThreadTransport
from agentrt.interrupts.questions import Question
from agentrt.request import Reply
from agentrt.runtime.registry import RunRegistry, registry_of
from agentrt.runtime.run import Run
from agentrt.runtime.services import Services
from agentrt.tracking.scope import Scope

_MARK = uuid.uuid4().hex
_KEYS = itertools.count()


class InterruptEmitter:
    """What a run's own code does outside the engine: each tool and question is a node."""

    def __init__(self, run: Run, services: Services) -> None:
        self._run = run
        self._registry = registry_of(run)
        self.services = services

    async def tool(
        self,
        tool: Tool,
        positional: tuple[Any, ...],
        arguments: Mapping[str, Any],
        after: Iterable[Reply],
    ) -> Any:
        """Run a tool and return its result. Raises as `Attempts.run` does."""
        # Whoever gets the key elsewhere may know those of other runtimes.
        return await self.run_tool(tool, positional, arguments, after, f"{_MARK}-{next(_KEYS)}")

    async def run_tool(
        self,
        tool: Tool,
        positional: tuple[Any, ...],
        arguments: Mapping[str, Any],
        after: Iterable[Reply],
        key: str,
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> Any:
        """The same under this ``key``; ``before`` is awaited ahead of each attempt."""
        run, services = self._run, self.services
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
        """The tool of this name that some transport offers. Raises `UnknownToolError`, and
        `InterruptExpiredError` where that is not known after ``timeout`` (seconds).
        """
        bound = asyncio.timeout(timeout)
        try:
            with tracking.outside():
                async with bound:
                    return await self.services.toolbox.find(name, self._run.row.tenant)
        except TimeoutError as error:
            if not bound.expired():
                raise
            message = f"tool {name} was not found within {timeout:g} s: a server does not answer"
            raise InterruptExpiredError(message, name=name) from error

    async def tools(self, *transports: str) -> list[Tool]:
        """What ``transports`` offer, or all of them. Raises as `Toolbox.tools` does."""
        with tracking.outside():
            tenant = self._run.row.tenant
            return await self.services.toolbox.tools(*transports, tenant=tenant)

    async def event(self, feed: Feed, timeout: float | None, after: Iterable[Reply]) -> Event:
        """The next event. Raises as `Feed.next` does."""
        run, services = self._run, self.services
        services.feeds.setdefault(run.id, set()).add(feed)
        deadline = None if timeout is None else self._registry.clock() + timeout
        interrupt = Interrupt(services.events.name, deadline=deadline, attempt=1)
        scope = self.own_scope(feed.topic)
        with (
            self._interrupted(NodeKind.EVENT, feed.topic, scope, after, interrupt),
            tracking.outside(),
        ):
            return await feed.next(services.events, run.row.tenant, timeout, services.clock)

    async def sleep(self, seconds: float, after: Iterable[Reply]) -> None:
        """Do nothing for so long: to an engine, that is an event too."""
        interrupt = Interrupt("clock", deadline=self._registry.clock() + seconds, attempt=1)
        scope = self.own_scope("sleep")
        with self._interrupted(NodeKind.EVENT, "sleep", scope, after, interrupt):
            await self.services.clock.sleep(seconds)

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
        run = self._run
        question = Question(text, run.id, run.type, run.row.tenant, form)
        question.id = key or question.id
        deadline = None if timeout is None else self._registry.clock() + timeout
        interrupt = Interrupt("human", deadline=deadline, key=question.id, attempt=1)
        with self._interrupted(NodeKind.HUMAN, text, scope, after, interrupt), tracking.outside():
            return await self.services.questions.ask(question, timeout=timeout)

    def _interrupted(
        self,
        kind: NodeKind,
        name: str,
        scope: Scope,
        after: Iterable[Reply],
        interrupt: Interrupt,
    ) -> _Interrupted:
        """Meanwhile the program is outside the engine, by a node of its DAG."""
        run, before = self._run, [node_of(reply) for reply in after]
        node = self._registry.begin_interrupt(run, scope, kind, name, before, interrupt)
        return _Interrupted(self._registry, run, scope, node)

    def own_scope(self, name: str) -> Scope:
        """Where the run's code is that emits a node ``name`` now."""
        scope = tracking.current_scope()
        if scope is None or scope.owner is not self._run:
            raise AgentrtError(
                f"program {self._run.id} emitted {name!r} outside its own tasks; "
                "a context must not be passed to another program or a bare thread"
            )
        return scope


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
        self, emitter: InterruptEmitter, node: Node, scope: Scope, timeout: float | None
    ) -> None:
        self._emitter = emitter
        self._run, self._registry = emitter._run, emitter._registry
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
    """The node that a reply came from. Raises `ConfigError` for another program's."""
    if reply.node < 0:
        raise ConfigError("after= takes replies of this program's own calls")
    return reply.node
