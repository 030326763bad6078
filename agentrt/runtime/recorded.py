"""The emitter of a recorded program: it answers the nodes of a resumed program from the journal,
and runs and records all other nodes.

The `Context` of a recorded program calls `Recorded`, which calls the `LiveEmitter` to run nodes. A
program without a journal has no `Recorded`.

All nodes are treated alike. `Recorded._enter` makes the record of a node.
`Recorded._recall_or_run` returns the recorded answer if an earlier process has recorded an answer.
Otherwise, it runs the node and records the result. Results are returned in the recorded order.
`Recorded._stream` does the same for streamed calls, and `Recorded.at_once` does the same for nodes
that return at once.

The stored forms in this module, such as `Broken`, are in journals under the name of this module.
Under another module name, journals of earlier versions could not be read.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from array import array
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
from contextlib import aclosing
from typing import Any, TypeVar, cast

from agentrt import tracking
from agentrt.contexts.saved import SavedContext
from agentrt.errors import ToolLostError, UnrecordableError, text_of
from agentrt.executors.base import Chunk
from agentrt.executors.chat_api import Answer, Frontend, Request
from agentrt.graph import NodeKind
from agentrt.interrupts import Tool, ToolOptions
from agentrt.interrupts.answers import AnswerForm
from agentrt.interrupts.events import Event, Feed
from agentrt.interrupts.toolbox import Toolbox
from agentrt.journal.codec import UnkeptError, dumps, loads
from agentrt.journal.record import NodeRecord, ProgramRecord
from agentrt.journal.schema import CANCELLED, FAILED, KINDS, LOST, OPEN, Rest
from agentrt.program.results import Takes
from agentrt.request import CallReport, CallSpec, Reply, ToolSpec
from agentrt.request.tokens import CallTokens
from agentrt.runtime.emitter import LiveContexts, LiveEmitter, LoopCheckpoint
from agentrt.runtime.tokens import WRITING, TokenLog
from agentrt.tracking.place import Place
from agentrt.tracking.scope import Scope

T = TypeVar("T")
_RUN_AGAIN: Any = object()
"""The result of `Recorded._recall` for a node whose answer was not recorded: the node must run
again.
"""
_LATER_S = 1.0
"""Seconds that a resumed program has, in addition to the recorded time, to cancel a node that the
recorded program had cancelled.
"""
_CHECKPOINT, REWARD = "checkpoint", "reward"


def restore_tokens(log: TokenLog, record: ProgramRecord) -> None:
    """Restore the tokens and rewards that earlier processes have recorded of a program.

    All recorded calls are restored, also those that the resumed program does not make again, such
    as calls in tools whose results are in the journal, and calls before the recorded state of a
    loop from which the program continues. If the
    resumed program takes another course, the tokens of the recorded nodes that it no longer reaches
    are dropped.
    """
    for node in record.past.done("call"):
        value = record.value_of(node)
        for call in value.tokens:
            log.restore(call)
        if node.start.name in WRITING and not value.tokens:
            # A stream that was closed before its first token has no tokens.
            log.complete &= isinstance(value, Broken) and not value.pieces
    for node in record.past.done("value"):
        if node.start.name == REWARD:
            log.rewards[node.start.node] = record.value_of(node)
    record.left, record.recorded = log.drop, log.node_recorded


class Recorded:
    """An `Emitter` that answers recorded nodes from ``record``. It lets ``emitter`` run all other
    nodes, and records them.
    """

    def __init__(self, emitter: LiveEmitter, record: ProgramRecord) -> None:
        self._live, self._record = emitter, record
        self._restored: dict[str, SavedContext] = {}

    # -- calls -------------------------------------------------------------------------

    async def call(self, request: Request, after: Iterable[Reply]) -> Reply:
        node = self._enter("call", "llm", request)
        reply: Reply = await self._recall_or_run(
            node, after, lambda: self._live.call(request, after)
        )
        return reply

    async def stream(
        self, request: Request, after: Iterable[Reply], put: Callable[[Reply], None]
    ) -> AsyncIterator[Answer]:
        replies: list[Reply] = []

        def made() -> AsyncIterator[Answer]:
            return self._live.stream(request, after, replies.append)

        if (node := self._enter("call", "llm", request)) is None:
            whole = made()
        else:
            whole = self._stream(node, after, made, replies, pieces_of)
        async with aclosing(cast("AsyncGenerator[Answer, None]", whole)) as answer:
            async for piece in answer:
                yield piece
        put(replies[-1])

    @property
    def contexts(self) -> RecordedContexts:
        return RecordedContexts(self._live.contexts, self, self._restored)

    async def takes(self, model: str | None) -> Takes:
        return await self._live.takes(model)

    def token_pieces(
        self, spec: CallSpec, name: str, made: Callable[[], AsyncGenerator[Chunk, None]]
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the pieces of a call whose prompt is token ids. ``made`` is a function that makes
        the call.
        """
        node = self._enter("call", name, spec)
        if node is None:
            return made()
        return self._stream(node, (), made, [], chunks_of)

    # -- outside the engine ------------------------------------------------------------

    async def tool(
        self,
        tool: Tool,
        positional: tuple[Any, ...],
        arguments: Mapping[str, Any],
        after: Iterable[Reply],
    ) -> Any:
        request = {"arguments": arguments, **({"positional": positional} if positional else {})}
        node = self._enter("tool", tool.name, request)
        if node is None:
            return await self._live.tool(tool, positional, arguments, after)

        def run() -> Awaitable[Any]:
            return self._live.tool(
                tool, positional, arguments, after, key=node.key, before=node.begin_now
            )

        again = tool.options.idempotent
        return await self._recall_or_run(node, after, run, begins=False, again=again)

    async def find_tool(self, name: str, timeout: float | None = None) -> Tool:
        node = self._enter("tools", name, {"find": name})
        if node is None:
            return await self._live.find_tool(name, timeout)

        async def find() -> Any:
            return kept_tool(await self._live.find_tool(name, timeout))

        return read_tool(await self._recall_or_run(node, (), find), self._live.services.toolbox)

    async def tools(self, *transports: str) -> list[Tool]:
        node = self._enter("tools", "tools", {"of": list(transports)})
        if node is None:
            return await self._live.tools(*transports)

        async def listed() -> Any:
            return [kept_tool(tool) for tool in await self._live.tools(*transports)]

        kept = await self._recall_or_run(node, (), listed)
        return [read_tool(tool, self._live.services.toolbox) for tool in kept]

    async def human(
        self, text: str | Reply, form: AnswerForm, timeout: float | None, after: Iterable[Reply]
    ) -> Any:
        # The question's text is content, so it must not become the node's name: names are also
        # recorded in a journal that stores no content.
        node = self._enter("human", "human", {"question": text, "schema": form.schema})
        if node is not None:
            node.label = str(text)
        key = None if node is None else node.key

        def ask(left: float | None) -> Awaitable[Any]:
            return self._live.human(text, form, left, after, key=key)

        answer = await self._in_time(node, after, ask, timeout)
        return form.accept(answer.value) if isinstance(answer, SetAnswer) else answer

    async def event(self, feed: Feed, timeout: float | None, after: Iterable[Reply]) -> Event:
        node = self._enter("event", feed.topic, {"topic": feed.topic})

        def listen(left: float | None) -> Awaitable[Event]:
            if node is not None:
                node.program.listens = True
            return self._live.event(feed, left, after)

        return await self._in_time(node, after, listen, timeout, rests=False)

    async def sleep(self, seconds: float, after: Iterable[Reply]) -> None:
        node = self._enter("sleep", "sleep", {"seconds": seconds})

        def rest(left: float | None) -> Awaitable[None]:
            return self._live.sleep(left or 0.0, after)

        await self._in_time(node, after, rest, seconds)

    async def _in_time(
        self,
        node: NodeRecord | None,
        after: Iterable[Reply],
        work: Callable[[float | None], Awaitable[T]],
        limit: float | None,
        *,
        rests: bool = True,
    ) -> T:
        """Run ``work`` with the time that is left of ``limit`` seconds since the node first began.

        With ``rests``, the program may be parked while the node waits.
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

        result: T = await self._recall_or_run(node, after, begun, begins=False)
        return result

    # -- at once -----------------------------------------------------------------------

    def value(self, name: str, make: Callable[[], T]) -> T:
        return self.at_once("value", name, None, make)

    def reward(self, value: float) -> None:
        place, tokens = self._live.own_scope(REWARD).place, self._live.run.tokens
        key = None if place is None else f"{place.path}#{place.nodes}"

        def make() -> float:
            if tokens is not None and key is not None:
                tokens.rewards[key] = value
            return value

        # Recorded rewards are restored by `restore_tokens` at the start of a resumed program,
        # because the program does not reach the nodes that a loop with a checkpoint skips.
        self.at_once("value", REWARD, {"value": value}, make)

    def patched(self, name: str) -> bool:
        scope = self._live.own_scope("patched")
        if scope.place is None:
            return True
        return self._record.patched(scope.place, name, scope.path)

    def checkpoint(self) -> Callable[[T], T]:
        place = self._live.own_scope("checkpoint").place
        if place is None:
            return self._live.checkpoint()
        return LoopCheckpoint(self._live.run, _LoopStates(self, self._record, place).keep)

    def at_once(self, kind: str, name: str, request: Any, make: Callable[[], T]) -> T:
        """Return the recorded value of a node that returns at once. A recorded error is raised
        again. If nothing was recorded, return and record ``make()``.
        """
        node = self._enter(kind, name, request, at_once=True)
        if node is None:
            return make()
        past, record = node.past, node.program
        if past is not None and past.end is not None and past.state != LOST:
            recorded: T = record.value_of(past)
            if past.state == FAILED and isinstance(recorded, Exception):
                raise recorded
            return recorded
        result = make()
        node.put(result)
        return result

    def spawned(self, name: str, inputs: Sequence[Any], work: Coroutine[Any, Any, T]) -> Any:
        try:
            node = self._enter("spawn", name, {"given": list(inputs)}, at_once=True)
        except BaseException:
            work.close()
            raise
        if node is None:
            return work
        # The code of the task runs again in any case, because only the results of its nodes are
        # recorded. The task must end in the recorded order.
        if node.past is not None and node.past.end is not None:
            return _end_in_turn(node, work)
        node.begin()

        async def recorded() -> T:
            try:
                result = await work
                # The result is never read back: a resumed program runs the code of the task again.
                await node.done(result, needed=False)
                await node.delivered()
            except BaseException as error:
                await _fail_in_turn(node, error)
                raise
            return result

        return recorded()

    # -- recall, run and record a node -------------------------------------------------

    def _enter(
        self, kind: str, name: str, request: Any, *, at_once: bool = False
    ) -> NodeRecord | None:
        """Return the record of the node that the program's code is about to create.

        Return None if the code is at a place that a resumed program could not recognize. Such a
        node is not recorded. Raises `AgentrtError` on another event loop than the program's, unless
        the node returns ``at_once``.
        """
        scope = self._live.own_scope(name) if at_once else self._live.scope_on_loop(name)
        if scope.place is None:
            return None
        return self._record.enter(scope.place, kind, name, scope.path, request)

    async def _recall_or_run(
        self,
        node: NodeRecord | None,
        after: Iterable[Reply],
        work: Callable[[], Awaitable[Any]],
        *,
        begins: bool = True,
        again: bool = True,
    ) -> Any:
        """Return the recorded answer of a node. If there is no recorded answer, run ``work`` and
        record its result.

        With ``begins``, this method records the start of the node; otherwise ``work`` records it.
        With ``again`` False, raise `ToolLostError` if the start of the node was recorded but not
        its result. If ``node`` is None, only run ``work``.
        """
        if node is None:
            return await work()
        if node.past is not None:
            recorded = await self._recall(node, after, again=again)
            if recorded is not _RUN_AGAIN:
                return recorded
        inner = self._live.own_scope(node.start.name).inside(node.place)
        if begins:
            node.begin()
        try:
            with tracking.within(inner):
                result = await work()
            # A tool may return a reply, too, but only the reply of a call has a report to record.
            reply = result if node.start.kind == "call" and isinstance(result, Reply) else None
            report = None if reply is None else reply.report
            await node.done(result, report, self._in_dag(inner, reply))
            await node.delivered()
        except BaseException as error:
            await _fail_in_turn(node, error)
            raise
        return result

    async def _stream(
        self,
        node: NodeRecord,
        after: Iterable[Reply],
        made: Callable[[], Any],
        replies: list[Reply],
        again: Callable[[Any], Iterable[T]],
    ) -> AsyncGenerator[T, None]:
        """Yield the pieces of a streamed call, and add its reply to ``replies``.

        For a recorded call, ``again`` makes the pieces from the recorded reply. Otherwise, ``made``
        makes the call and yields the pieces.
        """
        recorded = _RUN_AGAIN
        if node.past is not None:
            recorded = await self._recall(node, after, in_turn=False)
        if recorded is not _RUN_AGAIN:
            async with aclosing(self._replay_stream(node, again, recorded)) as pieces_again:
                async for known in pieces_again:
                    yield known
            replies.append(recorded)
            return
        node.begin()
        node.program.streams(node.place)
        scope, seen = self._live.own_scope(node.start.name), list[Any]()
        log = self._live.run.tokens
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
                calls = [] if log is None else log.streamed.get(node.place, [])
                broken = Broken(seen, tuple(calls))
                node.program.ended(node.start, broken, None, None, waits=False)
            raise
        except BaseException as error:
            await _fail_in_turn(node, error)
            raise
        finally:
            _mark(scope, before)
            if log is not None:
                log.streamed.pop(node.place, None)

    async def _replay_stream(
        self, node: NodeRecord, again: Callable[[Any], Iterable[T]], recorded: Any
    ) -> AsyncGenerator[T, None]:
        """Yield the pieces of a recorded call at once.

        Before the stream ends, wait until the recorded order allows the end of the call. In the
        recorded run, tools that the program started after the first pieces may have ended before
        the call. Raises `DivergenceError` after the last piece if the recorded run had closed the
        stream there.
        """
        try:
            for known in again(recorded):
                yield known
        except GeneratorExit:
            node.program.order.ended_by_code(node.place)
            raise
        await node.program.order.answer(node.place)
        if isinstance(recorded, Broken):
            # ``--on-divergence rerun`` cannot help, since the code has read a part of the answer.
            raise node.program.divergence(
                node.start,
                "the recorded run had closed the stream at this piece, but the code now reads on",
                "or mark the change with ctx.patched(NAME)",
            )

    async def _recall(
        self, node: NodeRecord, after: Iterable[Reply], *, again: bool = True, in_turn: bool = True
    ) -> Any:
        """Return the recorded answer of a node, or `_RUN_AGAIN`. If the node had failed, raise the
        recorded error.

        With ``in_turn``, wait until the recorded order allows the answer.
        """
        past, record = node.past, node.program
        assert past is not None
        if (given_up := record.given_up_at(past)) is not None:
            # The recorded program had cancelled this node, and the resumed program will probably
            # cancel it, too. Do not run the node before the code has had the time to do so.
            try:
                await asyncio.sleep(max(0.0, given_up - past.start.started) + _LATER_S)
            except asyncio.CancelledError:
                record.order.ended_by_code(node.place)
                raise
            record.order.drop(node.place)
            return _RUN_AGAIN
        if past.state == LOST and again:
            record.order.runs_again(node.place)
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
        """Return `_RUN_AGAIN` for a node whose start was recorded without a result. Raises
        `ToolLostError` if ``again`` is False, because the node must not run a second time.
        """
        if again:
            return _RUN_AGAIN
        was_ended = node.past is not None and node.past.end is not None
        reason = (
            "the tool ran, but its result could not be recorded"
            if was_ended
            else "the program was stopped while the tool ran, and whether it finished is unknown"
        )
        error = ToolLostError(
            f"tool {node.start.name}: {reason}; declare the tool idempotent to run it again",
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
        if kind is NodeKind.HUMAN and node.is_inherited:
            self._live.run.inherited_questions += 1
        report = None
        if kind is NodeKind.CALL:
            # The numbers of steps in the report are numbers of an earlier engine.
            before_report = value.report if isinstance(value, Reply) else CallReport()
            report = dataclasses.replace(before_report, steps=0, arrived_step=0, finished_step=0)
        text = None if error is None else f"{type(error).__name__}: {text_of(error)}"
        scope, before = self._live.own_scope(node.start.name), self._live.parents_of(after)
        made = self._live.registry.recall(
            self._live.run, scope, kind, node.label, before, report, text
        )
        node.program.places[made.id] = node.place
        if kind is NodeKind.CALL and isinstance(value, Reply):
            reply = dataclasses.replace(value, node=made.id, run_id=self._live.run.id)
            node.program.answered_as(reply, value)
            return reply
        return value

    def _in_dag(self, inner: Scope, reply: Reply | None) -> tuple[int, tuple[int, ...]] | None:
        """Return the id, in the DAG, of the node whose work ran in the scope ``inner``, and the ids
        of the node's parents; None if the node is not in the DAG. For a call, its ``reply`` may
        have the id.
        """
        made = None if inner.place is None else inner.place.last
        if reply is not None and reply.node >= 0:
            made = reply.node
        return None if made is None else (made, self._live.run.dag.node(made).parents)


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedContexts:
    """The `TokenEmitter` of a recorded run.

    Saved contexts are lost with their process, so a resumed program saves its contexts again.
    ``_restored`` has these contexts by their names. Only they are replaced or deleted when further
    recorded nodes are read, because another program may have saved a newer context meanwhile.
    """

    _live: LiveContexts
    _recorded: Recorded
    _restored: dict[str, SavedContext]

    def token_call(self, spec: CallSpec, name: str, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        def made() -> AsyncGenerator[Chunk, None]:
            return self._live.token_call(spec, name, stream=stream)

        return self._recorded.token_pieces(spec, name, made)

    async def frontend(self) -> Frontend:
        return await self._live.frontend()

    def save(self, name: str, context: SavedContext) -> None:
        def save() -> None:
            self._live.save(name, context)

        self._recorded.at_once("save", name, {"tokens": len(context.token_ids)}, save)
        if self._live.saved(name) is self._restored.get(name):
            save()
            self._restored[name] = context

    def open(self, name: str) -> SavedContext:
        def opened() -> Any:
            return kept_context(self._live.open(name))

        return read_context(self._recorded.at_once("open", name, None, opened))

    def forget(self, name: str) -> None:
        self._recorded.at_once("forget", name, None, lambda: self._live.forget(name))
        restored = self._restored.pop(name, None)
        if restored is not None and self._live.saved(name) is restored:
            self._live.forget(name)

    def dropped(self, call: str, shared: int) -> None:
        self._live.dropped(call, shared)


class _LoopStates:
    """The recorded states of one loop. A resumed program continues from the last state.

    The loop is identified by the number of the node in which the checkpoint was made. Each state is
    recorded as a node, together with the number of tasks that the program had started. Resuming
    from a state sets the number of nodes and the number of tasks, so that the code continues at the
    recorded place.
    """

    def __init__(self, recorded: Recorded, record: ProgramRecord, place: Place) -> None:
        self._recorded, self._record, self._place = recorded, record, place
        recorded.at_once(_CHECKPOINT, "loop", None, lambda: None)
        self._loop = str(place.nodes - 1)
        self._is_first = True

    def keep(self, state: T) -> T:
        """Record a state and return it. The first call in a resumed program returns the last
        recorded state instead.
        """
        if self._is_first:
            self._go_to_last()
        self._is_first = False
        tasks = {"tasks": self._place.forks}
        return self._recorded.at_once(_CHECKPOINT, self._loop, tasks, lambda: self._kept(state))

    def _go_to_last(self) -> None:
        """Skip all nodes that were recorded before the last state of the loop."""
        past, place = self._record.past, self._place
        number, last = past.last_of(place.path, _CHECKPOINT, self._loop)
        if last is not None:
            tasks = last.request["tasks"]
            past.leave_out(place.path, (place.nodes, number), (place.forks, tasks))
            place.nodes, place.forks = number, tasks

    def _kept(self, state: T) -> T:
        """Return the state in the form in which a resumed program would read it from the journal.

        Raises `UnrecordableError` for a state that cannot be recorded, unless the program skips
        such values. Then the state itself is returned.
        """
        try:
            kept: T = loads(dumps(state, label="state"))
        except UnkeptError as error:
            if self._record.skips:
                return state
            text = f"run {self._record.id}: checkpoint: {error}"
            raise UnrecordableError(text) from error
        return kept


async def _end_in_turn(node: NodeRecord, work: Awaitable[T]) -> T:
    """Run the code of a task, ``work``, and return its result when the recorded order allows the
    end of the task.
    """
    order = node.program.order
    try:
        result = await work
    except asyncio.CancelledError:
        order.ended_by_code(node.place)
        raise
    except BaseException:
        await order.answer(node.place)
        raise
    if node.past is not None and node.past.state == CANCELLED:
        order.drop(node.place)
    await order.answer(node.place)
    return result


async def _fail_in_turn(node: NodeRecord, error: BaseException) -> None:
    """Record the error of a node, and wait until the program may get the error."""
    await node.failed(error)
    if isinstance(error, Exception):
        await node.delivered()


def _mark(scope: Scope, during: str) -> None:
    """Record which streamed call the code of ``scope`` is reading; "" if it reads no stream."""
    if scope.place is not None:
        scope.place.during = during


async def _next_within(scope: Scope, items: AsyncGenerator[T, None]) -> T | None:
    """Return the next of ``items``, or None after the last item. The generator's code runs in
    ``scope``.
    """
    with tracking.within(scope):
        return await anext(items, None)


# -- stored forms of values that hold connections, buffers or an engine's objects ----------


@dataclasses.dataclass(frozen=True, slots=True)
class KeptTool:
    """The stored form of a tool that a transport offers."""

    name: str
    remote: str
    transport: str
    spec: ToolSpec | None
    result_schema: Mapping[str, Any] | None
    options: ToolOptions


def kept_tool(tool: Tool) -> KeptTool:
    """Return the stored form of a tool."""
    transport = "" if tool.transport is None else tool.transport.name
    return KeptTool(tool.name, tool.remote, transport, tool.spec, tool.result_schema, tool.options)


def read_tool(kept: KeptTool, toolbox: Toolbox) -> Tool:
    """Return the tool of a stored form. Raises `UnknownToolError` if its transport is missing."""
    return Tool(
        kept.name,
        remote=kept.remote,
        spec=kept.spec,
        result_schema=kept.result_schema,
        options=kept.options,
        transport=toolbox.transport(kept.transport) if kept.transport else None,
    )


def kept_context(context: SavedContext) -> dict[str, Any]:
    """Return the stored form of a saved context."""
    opened = None if context.opened is None else list(context.opened)
    return {"token_ids": list(context.token_ids), "model": context.model, "opened": opened}


def read_context(kept: Mapping[str, Any]) -> SavedContext:
    """Return the context of a stored form. Journals of 0.2 have no ``opened``."""
    opened = kept.get("opened")
    at = None if opened is None else (opened[0], opened[1])
    return SavedContext(array("I", kept["token_ids"]), kept["model"], at)


@dataclasses.dataclass(frozen=True, slots=True)
class SetAnswer:
    """The stored form of an answer of `agentrt journal fork --set`: a JSON ``value`` that fits the
    question's schema. Only the program's code knows the type that the answer must have.
    """

    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Broken:
    """The stored form of a streamed call that the program stopped reading: the pieces that the
    program had read.
    """

    pieces: list[Any]
    tokens: tuple[CallTokens, ...] = ()


def kept_chunk(chunk: Chunk) -> Chunk:
    """Return a piece in its stored form: without the engine's own output object and log
    probabilities.
    """
    return dataclasses.replace(chunk, output=None, logprobs=())


def chunks_of(recorded: Reply | Broken) -> Iterator[Chunk]:
    """Yield the pieces of a recorded call whose prompt was token ids, not a chat. A call that was
    read to its end has one piece.
    """
    if isinstance(recorded, Broken):
        yield from recorded.pieces
    else:
        yield Chunk(recorded.text, recorded, token_ids=recorded.token_ids)


def pieces_of(recorded: Reply | Broken) -> Iterator[Answer]:
    """Yield the pieces of a recorded chat call. A call that was read to its end has one piece for
    each choice.
    """
    if isinstance(recorded, Broken):
        yield from recorded.pieces
        return
    for index, reply in enumerate(recorded.choices or (recorded,)):
        delta: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.reasoning:
            delta["reasoning"] = reply.reasoning
        calls = [
            (call.id, call.name, json.dumps(call.arguments, ensure_ascii=False))
            for call in reply.tool_calls
        ]
        calls += [(call.id, call.name, call.arguments) for call in reply.invalid_tool_calls]
        if calls:
            delta["tool_calls"] = [
                {
                    "index": number,
                    "id": call_id,
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
                for number, (call_id, name, arguments) in enumerate(calls)
            ]
        choice = {"index": index, "delta": delta, "finish_reason": reply.finish_reason}
        yield {"object": "chat.completion.chunk", "choices": [choice]}
