"""How a node of a recorded program comes to its answer: out of the journal, or by its work."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any, TypeVar

from agentrt import tracking
from agentrt.errors import DivergenceError, ToolLostError, text_of
from agentrt.executors.base import Chunk
from agentrt.graph import NodeKind
from agentrt.journal.record import NodeRecord
from agentrt.journal.schema import CANCELLED, FAILED, KINDS, LOST, OPEN
from agentrt.request import CallReport, Reply
from agentrt.runtime.emitter import RunEmitter
from agentrt.runtime.interrupts import node_of
from agentrt.runtime.recorded import Broken, kept_chunk
from agentrt.tracking.scope import Scope

T = TypeVar("T")
_AGAIN: Any = object()
"""The node is recorded, but has no answer: it is to be asked again."""
_LATER_S = 1.0


class NodeEmitter(RunEmitter):
    """A run's emitter that knows of records; what is emitted is for a class below."""

    def enter_node(self, kind: str, name: str, asked: Any) -> NodeRecord | None:
        """The record of a node that the code comes to; None where nothing is recorded."""
        record = self._run.record
        if record is None:
            return None
        scope = self.own_scope(name)
        if scope.place is None:
            return None
        return record.enter(scope.place, kind, name, scope.path, asked)

    async def through(
        self,
        node: NodeRecord | None,
        after: Iterable[Reply],
        work: Callable[[], Awaitable[Any]],
        *,
        begins: bool = True,
        again: bool = True,
    ) -> Any:
        """The recorded answer of a node, or that of ``work``, recorded; it ``begins`` here, or by
        itself. Where it was under way, and must not be done ``again``, raises `ToolLostError`.
        Without a node it is the work alone.
        """
        if node is None:
            return await work()
        if node.past is not None:
            found = await self._recalled(node, after, again=again)
            if found is not _AGAIN:
                return found
        inner = self.own_scope(node.start.name).inside(node.place)
        if begins:
            node.begin()
        try:
            with tracking.within(inner):
                result = await work()
            # A tool may return the reply of another call: that is a value like any other.
            reply = result if node.start.kind == "call" and isinstance(result, Reply) else None
            report = None if reply is None else reply.report
            await node.done(result, report, self._in_dag(inner, reply))
            await node.delivered()
        except BaseException as error:
            await failed_in_turn(node, error)
            raise
        return result

    async def grown(
        self,
        node: NodeRecord,
        after: Iterable[Reply],
        made: Callable[[], Any],
        replies: list[Reply],
        again: Callable[[Any], Iterable[T]],
    ) -> AsyncGenerator[T, None]:
        """The pieces of a call that ``made`` makes, or ``again`` those of a recorded one. Its reply
        is added to ``replies``.
        """
        found = _AGAIN if node.past is None else await self._recalled(node, after, in_turn=False)
        if found is not _AGAIN:
            async with aclosing(self._grown_again(node, again, found)) as pieces_again:
                async for known in pieces_again:
                    yield known
            replies.append(found)
            return
        node.begin()
        node.program.streams(node.place)
        scope, seen = self.own_scope(node.start.name), list[Any]()
        inner, before = scope.inside(node.place), "" if scope.place is None else scope.place.during
        _mark(scope, node.place)
        try:
            async with aclosing(made()) as pieces:
                while (piece := await _next_within(inner, pieces)) is not None:
                    if isinstance(piece, Chunk):
                        seen.append(kept_chunk(piece))
                        if piece.reply is not None:
                            replies.append(piece.reply)
                    else:
                        seen.append(piece)
                    yield piece
            reply = replies[-1]
            await node.done(reply, reply.report, self._in_dag(inner, reply))
            await node.delivered()
        except GeneratorExit:
            if node.kept and not node.program.stopping():
                node.program.ended(node.start, Broken(seen), None, None, waits=False)
            raise
        except BaseException as error:
            await failed_in_turn(node, error)
            raise
        finally:
            _mark(scope, before)

    async def _grown_again(
        self, node: NodeRecord, again: Callable[[Any], Iterable[T]], found: Any
    ) -> AsyncGenerator[T, None]:
        """The pieces of a call that was read in an earlier life: at once, but its end in its turn:
        tools that started on its first pieces may have ended before it.
        """
        try:
            for known in again(found):
                yield known
        except GeneratorExit:
            node.program.order.caused(node.place)
            raise
        await node.program.order.answer(node.place)
        if isinstance(found, Broken):
            raise DivergenceError(
                f"program {self._run.id} had closed the stream of node {node.place} here, and "
                "its code now reads on"
            )

    async def again_in_turn(self, node: NodeRecord, work: Awaitable[T]) -> T:
        """What ``work`` comes to, when it was its turn in an earlier life."""
        order = node.program.order
        try:
            result = await work
        except asyncio.CancelledError:
            order.caused(node.place)
            raise
        except BaseException:
            await order.answer(node.place)
            raise
        if node.past is not None and node.past.state == CANCELLED:
            order.drop(node.place)
        await order.answer(node.place)
        return result

    async def _recalled(
        self, node: NodeRecord, after: Iterable[Reply], *, again: bool = True, in_turn: bool = True
    ) -> Any:
        """The recorded answer, when it is its turn if it is to come ``in_turn``; or `_AGAIN`.
        Raises a recorded error.
        """
        past, record = node.past, node.program
        assert past is not None
        if (given_up := record.given_up_at(past)) is not None:
            # The program went on without this answer, and will again: nothing is paid for until
            # its code has had the time for that.
            try:
                await asyncio.sleep(max(0.0, given_up - past.start.started) + _LATER_S)
            except asyncio.CancelledError:
                record.order.caused(node.place)
                raise
            record.order.drop(node.place)
            return _AGAIN
        if past.state == LOST and again:
            record.order.runs(node.place)
            node.again = True
        elif in_turn or past.state == LOST:
            await record.order.answer(node.place)
        if past.state in (OPEN, LOST):
            return self._asked_again(node, again=again)
        value = record.value_of(past)
        node.answered(value)
        error = value if past.state == FAILED and isinstance(value, Exception) else None
        value = self._add_to_dag(node, after, value, error)
        if error is not None:
            raise error
        return value

    def _asked_again(self, node: NodeRecord, *, again: bool) -> Any:
        """It was begun, and nothing is known of its end."""
        if again:
            return _AGAIN
        what = "its result could not be kept" if node.past and node.past.end else "was under way"
        error = ToolLostError(
            f"tool {node.start.name} {what} when its program was stopped: whether it ran is "
            "unknown. A tool that is idempotent is run again",
            name=node.start.name,
        )
        node.program.failed(node.start, error)
        raise error

    def _add_to_dag(
        self, node: NodeRecord, after: Iterable[Reply], value: Any, error: Exception | None
    ) -> Any:
        kind = KINDS.get(node.start.kind)
        if kind is None:
            return value
        report = None
        if kind is NodeKind.CALL:
            # The steps were another engine's.
            given = value.report if isinstance(value, Reply) else CallReport()
            report = dataclasses.replace(given, steps=0, arrived_step=0, finished_step=0)
        text = None if error is None else f"{type(error).__name__}: {text_of(error)}"
        scope, before = self.own_scope(node.start.name), [node_of(reply) for reply in after]
        made = self._registry.recall(self._run, scope, kind, node.label, before, report, text)
        node.program.places[made.id] = node.place
        if kind is NodeKind.CALL and isinstance(value, Reply):
            return dataclasses.replace(value, node=made.id, program_id=self._run.id)
        return value

    def _in_dag(self, inner: Scope, reply: Reply | None) -> tuple[int, tuple[int, ...]] | None:
        """A node's id in the DAG, and its parents."""
        made = None if inner.place is None else inner.place.last
        if reply is not None and reply.node >= 0:
            made = reply.node
        return None if made is None else (made, self._run.dag.node(made).parents)


async def failed_in_turn(node: NodeRecord, error: BaseException) -> None:
    """A node has failed: the code has the error when it is its turn."""
    await node.failed(error)
    if isinstance(error, Exception):
        await node.delivered()


def _mark(scope: Scope, during: str) -> None:
    """The call that the code of ``scope`` reads while it grows; "" for none."""
    if scope.place is not None:
        scope.place.during = during


async def _next_within(scope: Scope, items: AsyncGenerator[T, None]) -> T | None:
    """The next of ``items``, of code in ``scope``; None after the last."""
    with tracking.within(scope):
        return await anext(items, None)
