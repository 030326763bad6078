"""Answers a recorded program's nodes from its journal, and records the others.

This is the one place where programs and journals meet: all that a `Context` does comes through a
`RunEmitter`. Without a record it is no more than that.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar, cast

from agentrt.contexts.saved import SavedContext
from agentrt.executors.base import Chunk
from agentrt.executors.frontend import Answer, Request
from agentrt.interrupts import Tool
from agentrt.interrupts.answers import AnswerForm
from agentrt.interrupts.events import Event, Feed
from agentrt.journal.record import NodeRecord
from agentrt.journal.schema import FAILED, LOST, Rest
from agentrt.request import CallSpec, Reply
from agentrt.runtime.checkpoints import Checkpoint
from agentrt.runtime.emitter import ContextEmitter
from agentrt.runtime.nodes import NodeEmitter, failed_in_turn
from agentrt.runtime.recorded import (
    chunks_of,
    kept_context,
    kept_tool,
    pieces_of,
    read_context,
    read_tool,
)

T = TypeVar("T")


class JournaledEmitter(NodeEmitter):
    """A run's `Emitter`, with its journal before it if it has one."""

    # -- calls -------------------------------------------------------------------------

    async def call(self, request: Request, after: Iterable[Reply]) -> Reply:
        node = self.enter_node("call", "llm", request)
        reply: Reply = await self.through(node, after, partial(super().call, request, after))
        return reply

    def stream(
        self, request: Request, after: Iterable[Reply], put: Callable[[Reply], None]
    ) -> AsyncIterator[Answer]:
        if self._run.record is None:
            return super().stream(request, after, put)
        replies: list[Reply] = []
        made = partial(super().stream, request, after, replies.append)

        async def pieces() -> AsyncGenerator[Answer, None]:
            if (node := self.enter_node("call", "llm", request)) is None:
                whole = made()
            else:
                whole = self.grown(node, after, made, replies, pieces_of)
            async with aclosing(cast("AsyncGenerator[Answer, None]", whole)) as answer:
                async for piece in answer:
                    yield piece
            put(replies[-1])

        return pieces()

    @property
    def contexts(self) -> ContextEmitter:
        inner = super().contexts
        if self._run.record is None:
            return inner
        values = {one.name: getattr(inner, one.name) for one in dataclasses.fields(inner)}
        return JournaledContexts(**values, journaled=self)

    def token_pieces(
        self, spec: CallSpec, name: str, made: Callable[[], AsyncGenerator[Chunk, None]]
    ) -> AsyncGenerator[Chunk, None]:
        """The pieces of a call of token ids, which ``made`` makes."""
        node = self.enter_node("call", name, spec)
        if node is None:
            return made()
        return self.grown(node, (), made, [], chunks_of)

    # -- outside the engine ------------------------------------------------------------

    async def tool(
        self,
        tool: Tool,
        positional: tuple[Any, ...],
        arguments: Mapping[str, Any],
        after: Iterable[Reply],
    ) -> Any:
        asked = {"arguments": arguments, **({"positional": positional} if positional else {})}
        node = self.enter_node("tool", tool.name, asked)
        if node is None:
            return await super().tool(tool, positional, arguments, after)
        run = partial(self.run_tool, tool, positional, arguments, after, node.key, node.begin_now)
        again = tool.options.idempotent
        return await self.through(node, after, run, begins=False, again=again)

    async def find_tool(self, name: str, timeout: float | None = None) -> Tool:
        node = self.enter_node("tools", name, {"find": name})
        find = partial(super().find_tool, timeout=timeout)
        if node is None:
            return await find(name)

        async def found() -> Any:
            return kept_tool(await find(name))

        return read_tool(await self.through(node, (), found), self.services.toolbox)

    async def tools(self, *transports: str) -> list[Tool]:
        node, offered = self.enter_node("tools", "tools", {"of": list(transports)}), super().tools
        if node is None:
            return await offered(*transports)

        async def listed() -> Any:
            return [kept_tool(one) for one in await offered(*transports)]

        kept = await self.through(node, (), listed)
        return [read_tool(one, self.services.toolbox) for one in kept]

    async def human(
        self, text: str, form: AnswerForm, timeout: float | None, after: Iterable[Reply]
    ) -> Any:
        # Its text is content, and no name that a journal without content may have.
        node = self.enter_node("human", "human", {"question": text, "schema": form.schema})

        def ask(left: float | None) -> Awaitable[Any]:
            # Who has seen the question before a restart can answer it after that.
            key = None if node is None else node.key
            return self.ask(self.own_scope(text), text, form, left, after, key)

        if node is not None:
            node.label = text
        return await self._in_time(node, after, ask, timeout)

    async def event(self, feed: Feed, timeout: float | None, after: Iterable[Reply]) -> Event:
        node = self.enter_node("event", feed.topic, {"topic": feed.topic})
        wait = super().event

        def listen(left: float | None) -> Awaitable[Event]:
            if node is not None:
                node.program.listens = True
            return wait(feed, left, after)

        return await self._in_time(node, after, listen, timeout, rests=False)

    async def sleep(self, seconds: float, after: Iterable[Reply]) -> None:
        node, rest = self.enter_node("sleep", "sleep", {"seconds": seconds}), super().sleep
        return await self._in_time(node, after, lambda left: rest(left or 0.0, after), seconds)

    async def _in_time(
        self,
        node: NodeRecord | None,
        after: Iterable[Reply],
        work: Callable[[float | None], Awaitable[T]],
        limit: float | None,
        *,
        rests: bool = True,
    ) -> T:
        """Do ``work`` with the time that is left of ``limit`` (seconds) since its first attempt.
        One that ``rests`` may be parked meanwhile.
        """
        if node is None:
            return await work(limit)
        left = limit
        if limit is not None and node.past is not None:
            left = max(0.0, node.first + limit - node.program.now())
        due = None if limit is None else node.first + limit
        question = node.key if node.start.kind == "human" else None

        async def begun() -> T:
            await node.begin_now()
            task = asyncio.current_task()
            if rests:
                node.program.rests[task] = Rest(node.start, question, due)
            try:
                return await work(left)
            finally:
                node.program.rests.pop(task, None)

        result: T = await self.through(node, after, begun, begins=False)
        return result

    # -- at once -----------------------------------------------------------------------

    def value(self, name: str, make: Callable[[], T]) -> T:
        return self.at_once("value", name, None, make)

    def patched(self, name: str) -> bool:
        record, scope = self._run.record, self.own_scope("patched")
        if record is None or scope.place is None:
            return True
        return record.patched(scope.place, name, scope.path)

    def checkpoint(self) -> Callable[[T], T]:
        return Checkpoint(self._run, self.own_scope("checkpoint").place, self.at_once)

    def at_once(self, kind: str, name: str, asked: Any, make: Callable[[], T]) -> T:
        """A node that takes no time."""
        node = self.enter_node(kind, name, asked)
        if node is None:
            return make()
        past, record = node.past, node.program
        if past is not None and past.end is not None and past.state != LOST:
            found: T = record.value_of(past)
            if past.state == FAILED and isinstance(found, Exception):
                raise found
            return found
        result = make()
        node.put(result)
        return result

    def spawned(self, name: str, given: Sequence[Any], work: Coroutine[Any, Any, T]) -> Any:
        try:
            node = self.enter_node("spawn", name, {"given": list(given)})
        except BaseException:
            work.close()
            raise
        if node is None:
            return work
        # Its code runs in any case: what it had come to is in its own nodes. It ends in its turn.
        if node.past is not None and node.past.end is not None:
            return self.again_in_turn(node, work)
        node.begin()

        async def recorded() -> T:
            try:
                result = await work
                # Nothing is answered by it: its code runs again, and its nodes are recorded.
                await node.done(result, needed=False)
                await node.delivered()
            except BaseException as error:
                await failed_in_turn(node, error)
                raise
            return result

        return recorded()


@dataclasses.dataclass(frozen=True, slots=True)
class JournaledContexts(ContextEmitter):
    """The `TokenEmitter` of a recorded run."""

    journaled: JournaledEmitter = dataclasses.field(kw_only=True)

    def token_call(self, spec: CallSpec, name: str, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        made = partial(ContextEmitter.token_call, self, spec, name, stream=stream)
        return self.journaled.token_pieces(spec, name, made)

    def save(self, name: str, context: SavedContext) -> None:
        save = partial(ContextEmitter.save, self, name, context)
        self.journaled.at_once("save", name, {"tokens": len(context.token_ids)}, save)
        if not self.services.saved.has(self.tenant, name):  # one that others have saved is newer
            save()

    def open(self, name: str) -> SavedContext:
        def opened() -> Any:
            return kept_context(ContextEmitter.open(self, name))

        return read_context(self.journaled.at_once("open", name, None, opened))

    def forget(self, name: str) -> None:
        forget = partial(ContextEmitter.forget, self, name)
        self.journaled.at_once("forget", name, None, forget)
        if self.services.saved.has(self.tenant, name):
            forget()
