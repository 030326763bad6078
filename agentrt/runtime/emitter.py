"""The emitter that carries out the calls, tools, questions and waits of a run. Each call, tool,
question and wait becomes a node of the run's DAG.

A `Context` calls a `LiveEmitter`. In a run with a journal, the context calls an
`agentrt.runtime.recorded.Recorded`, which calls the `LiveEmitter`.
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
from agentrt.executors.base import Chunk, Executor, Notification
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
from agentrt.request.tokens import CallTokens
from agentrt.runtime.run import Run, RunRegistry, identity_of
from agentrt.runtime.services import ClientCall, Services
from agentrt.runtime.tokens import WRITING, TokenLog, node_of_key
from agentrt.tracking.scope import Scope

T = TypeVar("T")
_IN_A_THREAD = (
    "A thread that asyncio.to_thread() started can pass the coroutine to "
    "asyncio.run_coroutine_threadsafe() with the program's loop, and wait for its result()"
)


class LiveEmitter:
    """The `Emitter` of one run. It makes the run's calls with the runtime's ``services``."""

    def __init__(self, run: Run, services: Services) -> None:
        self.run = run
        self.registry = run.registry
        self.services = services

    def own_scope(self, name: str) -> Scope:
        """Return the scope of the code that is emitting the node ``name``. Raises `AgentrtError`
        if the code does not run in a task of this run.
        """
        scope = tracking.current_scope()
        if scope is None or scope.owner is not self.run:
            raise AgentrtError(
                f"run {self.run.id}: {name!r} was called outside the tasks of this run; use ctx "
                f"only in the program that it was made for. {_IN_A_THREAD}"
            )
        return scope

    def scope_on_loop(self, name: str) -> Scope:
        """Return `own_scope`. Raises `AgentrtError` if the code runs on another event loop than the
        run, because the front end, the engine, the journal, and whoever answers questions, sends
        events or runs remote tools wake tasks of the run's loop only.
        """
        scope = self.own_scope(name)
        task = self.run.task
        if task is not None and asyncio.get_running_loop() is not task.get_loop():
            raise AgentrtError(
                f"run {self.run.id}: {name!r} was called on another event loop than the program's; "
                "await it in the program, and not with asyncio.run() in a thread. "
                f"{_IN_A_THREAD}"
            )
        return scope

    def parents_of(self, after: Iterable[Reply]) -> list[int]:
        """Return the ids of the nodes of the replies and completions in ``after``. Raises
        `ConfigError` for a value that is not the reply of a call of this run.

        A resumed program may have replies that were recorded by an earlier process, for example in
        the state of a loop. If the DAG of this process has no ended node with the number of such a
        reply, the reply is left out, because its call ended long ago.
        """
        parents, dag = list[int](), self.run.dag
        for reply in _replies_in(after):
            number = getattr(reply, "node", None)  # completions of token contexts have it, too
            if not isinstance(number, int):
                raise ConfigError(f"after= takes a list of replies, but it has {reply!r:.80}")
            # The node of a reply of this process has ended. The same number in a reply of another
            # process or program may be that of a node that is still open.
            if 0 <= number < len(dag) and dag.node(number).state.ended:
                parents.append(number)
            elif number < 0 or self.run.record is None:
                raise ConfigError(
                    "after= has a reply without a node of this program; pass replies of this "
                    "program's calls"
                )
        return parents

    # -- chats -------------------------------------------------------------------------

    async def call(self, request: Request, after: Iterable[Reply]) -> Reply:
        caller = RunCaller(self, self.scope_on_loop("llm"), _replies_in(after))
        answer = await self.chat(request, caller)
        return caller.with_report(reply_of(answer, as_json="response_format" in request))

    async def stream(
        self, request: Request, after: Iterable[Reply], put: Callable[[Reply], None]
    ) -> AsyncIterator[Answer]:
        caller = RunCaller(self, self.scope_on_loop("llm"), _replies_in(after))
        whole = StreamedAnswer()
        made = self.chat_stream(request, caller)
        self.run.opens(made)
        async with contextlib.aclosing(made) as pieces:
            async for piece in pieces:
                whole.add(piece)
                yield piece
        put(caller.with_report(reply_of(whole.answer(), as_json="response_format" in request)))

    def caller(self, scope: Scope) -> RunCaller:
        """Return the caller that makes calls in ``scope`` for code whose tasks do not belong to the
        run: a client program, or a chat model of LangChain in any program.
        """
        return RunCaller(self, scope, client=True)

    async def chat(self, request: Request, caller: RunCaller) -> Answer:
        """Return the whole answer to a chat request that ``caller`` makes."""
        WORKS_FOR.set(self.run.row.tenant)
        with tracking.outside():
            return await (await self.services.frontend()).chat(request, caller)

    async def chat_stream(
        self, request: Request, caller: RunCaller
    ) -> AsyncGenerator[Answer, None]:
        """Yield the pieces of the answer to a chat request that ``caller`` makes. Closing the
        generator aborts the calls of the request.
        """
        WORKS_FOR.set(self.run.row.tenant)
        with tracking.outside():
            pieces = (await self.services.frontend()).chat_stream(request, caller)
        async with contextlib.aclosing(pieces):
            while (piece := await _next_outside(pieces)) is not None:
                yield piece

    async def takes(self, model: str | None) -> Takes:
        """Return the types of message parts, other than text, that a model accepts. The value of a
        type is True if a tool's message may contain such parts. With None, the model is the first
        model that is served.
        """
        with tracking.outside():
            profile = (await self.services.frontend()).profile(model)
        known = {"image_url": profile.images, "input_audio": profile.audio}
        return {part: profile.media_in_tools for part, takes in known.items() if takes}

    @property
    def contexts(self) -> LiveContexts:
        """The emitter for the run's token contexts."""
        return LiveContexts(self)

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
        """Run a tool and return its result. Raises the errors of `Attempts.run`.

        ``key`` identifies the tool call for the tool's transport. A resumed program passes the key
        of its earlier attempt; with None, a new key is made. ``before`` is awaited before each
        attempt.
        """
        run, services = self.run, self.services
        # A remote tool may get calls of several runtimes, so a key must be unique among runtimes,
        # also in processes that were forked after this module was imported.
        key = uuid.uuid4().hex if key is None else key
        transport, slots = services.toolbox.transport_of(tool), services.toolbox.slots_of(tool)
        known = arguments if tool.spec is not None else None
        interrupt = Interrupt(transport.name, known, key=key, attempt=1)
        request = ToolRequest(
            tool,
            arguments,
            positional,
            key=key,
            run_id=run.id,
            tenant=run.row.tenant,
            timeout=tool.options.timeout,
            before=before,
        )
        # A tool that is a function of this process may itself emit nodes of this run. The tasks of
        # other transports do not belong to the run.
        inside = isinstance(transport, ThreadTransport)
        scope = self.own_scope(tool.name) if inside else self.scope_on_loop(tool.name)
        with self._interrupted(NodeKind.TOOL, tool.name, scope, after, interrupt) as node:
            observer = _Observer(self, node, scope, tool.options.timeout)
            if inside:
                return await services.attempts.run(request, transport, observer, slots)
            with tracking.outside():
                return await services.attempts.run(request, transport, observer, slots)

    async def find_tool(self, name: str, timeout: float | None = None) -> Tool:
        """Return the tool with this name from the transport that offers it.

        Raises the errors of `Toolbox.find`, and `InterruptExpiredError` if the transports have not
        answered after ``timeout`` seconds.
        """
        bound = asyncio.timeout(timeout)
        try:
            with tracking.outside():
                async with bound:
                    return await self.services.toolbox.find(name, self.run.row.tenant)
        except TimeoutError as error:
            if not bound.expired():
                raise
            message = (
                f"tool {name} was not found within {timeout:g} s, because a tool server did not "
                "answer"
            )
            raise InterruptExpiredError(message, name=name) from error

    async def tools(self, *transports: str) -> list[Tool]:
        """Return the tools of the named ``transports``; the tools of all transports if no transport
        is named.

        Raises the errors of `Toolbox.tools`.
        """
        with tracking.outside():
            tenant = self.run.row.tenant
            return await self.services.toolbox.tools(*transports, tenant=tenant)

    async def human(
        self,
        text: str | Reply,
        form: AnswerForm,
        timeout: float | None,
        after: Iterable[Reply],
        *,
        key: str | None = None,
    ) -> Any:
        """Ask a human a question and return the answer. Raises the errors of `Questions.ask`.

        ``key`` is the id of the question. A resumed program passes the id that people have already
        seen; with None, a new id is made. ``timeout`` is in seconds.
        """
        scope = self.scope_on_loop("human")
        return await self.ask(scope, str(text), form, timeout, after, key)

    async def ask(
        self,
        scope: Scope,
        text: str,
        form: AnswerForm,
        timeout: float | None = None,
        after: Iterable[Reply] = (),
        key: str | None = None,
    ) -> Any:
        """Ask a human a question, as `human` does, with the question's node in ``scope``."""
        run = self.run
        earlier = sum(node.kind is NodeKind.HUMAN for node in run.dag.nodes())
        question = Question(text, run.id, run.type, run.row.tenant, form, earlier)
        question.id = key or question.id
        question.earlier -= run.inherited_questions
        deadline = None if timeout is None else self.registry.clock() + timeout
        interrupt = Interrupt("human", deadline=deadline, key=question.id, attempt=1)
        with self._interrupted(NodeKind.HUMAN, text, scope, after, interrupt), tracking.outside():
            return await self.services.questions.ask(question, timeout=timeout)

    async def event(self, feed: Feed, timeout: float | None, after: Iterable[Reply]) -> Event:
        """Wait at most ``timeout`` seconds for the next event. Raises the errors of `Feed.next`."""
        run, services = self.run, self.services
        scope = self.scope_on_loop(feed.topic)
        services.feeds.setdefault(run.id, set()).add(feed)
        deadline = None if timeout is None else self.registry.clock() + timeout
        interrupt = Interrupt(services.events.name, deadline=deadline, attempt=1)
        with (
            self._interrupted(NodeKind.EVENT, feed.topic, scope, after, interrupt),
            tracking.outside(),
        ):
            return await feed.next(services.events, run.row.tenant, timeout, services.clock)

    async def sleep(self, seconds: float, after: Iterable[Reply]) -> None:
        """Sleep for a number of seconds. The engine is told that the program waits, in the same way
        as for a tool.
        """
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
        """Open the node of an interrupt. The returned context manager ends the node."""
        before = self.parents_of(after)
        node = self.registry.begin_interrupt(self.run, scope, kind, name, before, interrupt)
        return _Interrupted(self.registry, self.run, scope, node)

    # -- nodes that only a journal needs -----------------------------------------------

    def value(self, name: str, make: Callable[[], T]) -> T:
        return make()

    def reward(self, value: float) -> None:
        self.own_scope("reward")
        if self.run.tokens is not None:
            self.run.tokens.rewards[f"{len(self.run.tokens.rewards)}"] = value

    def patched(self, name: str) -> bool:
        self.own_scope("patched")
        return True

    def checkpoint(self) -> Callable[[T], T]:
        self.own_scope("checkpoint")
        return LoopCheckpoint(self.run)

    def spawned(self, name: str, inputs: Sequence[Any], work: Coroutine[Any, Any, T]) -> Any:
        return work


@dataclasses.dataclass(slots=True)
class RunCaller(Caller):
    """The `Caller` through which the front end makes calls for the code of a run."""

    emitter: LiveEmitter
    scope: Scope
    """The scope of the code. The last nodes of the scope become parents of the calls."""
    after: Iterable[Reply] = ()
    """Replies whose nodes become parents of the calls, too."""
    client: bool = False
    """Whether the tasks that make the calls do not belong to the run (`ClientCall`)."""
    name: str = "llm"
    """The name of the calls' nodes."""
    probes: bool = False
    """Whether the calls only read log probabilities, so that their output is not used."""
    replies: list[Reply] = dataclasses.field(default_factory=list)
    """The replies of the calls so far, in the order in which the calls ended."""
    read: int | None = None
    """The number of tokens that had been read when the stream was closed; None if it was not closed
    by `closed`.
    """

    async def chunks(
        self, spec: CallSpec, *, stream: bool, reader: ClientCall | None = None
    ) -> AsyncGenerator[Chunk, None]:
        """Make a call and yield its chunks. The caller must read them outside the scope of any
        program (`tracking.outside`).

        This method opens the call's node, and closes it once: before it yields the chunk that has
        the reply, or when the call fails or is closed (`_failed`).

        ``reader`` is the `ClientCall` of a reader that does not need ``replies``. If ``reader`` is
        None, the reply is added to ``replies``.
        """
        run, services = self.emitter.run, self.emitter.services
        has_ended, loop = False, asyncio.get_running_loop()
        client_call = ClientCall(run.id) if reader is None and self.client else reader
        spec, recorder = (spec, None) if self.probes else self._recorded(spec, stream=stream)
        try:
            node, call = self._begin(spec)
            outputs = services.executor.generate(call, stream=stream)
            try:
                async with contextlib.aclosing(outputs) as chunks:
                    if client_call is not None:
                        services.client_calls.add(client_call)
                        client_call.task = tracking.task_on(loop)
                    async for chunk in chunks:
                        if client_call is not None:
                            client_call.task = None
                        if recorder is not None:
                            await recorder.saw(chunk)
                        if chunk.reply is not None:
                            has_ended = True
                            registry = self.emitter.registry
                            registry.end_call(run, self.scope, node, chunk.reply.report)
                            if reader is None:
                                chunk.reply = self._with_node(chunk.reply, node)
                        yield chunk
                        if client_call is not None:
                            if run.ended_at is not None and not has_ended:
                                # The run ended while nobody waited for the call's next chunk, so
                                # there was no task to cancel.
                                raise asyncio.CancelledError
                            client_call.task = tracking.task_on(loop)
            except BaseException as error:
                if not has_ended:
                    await self._failed(call, node, error, recorder)
                raise
        finally:
            if client_call is not None:
                services.client_calls.discard(client_call)
                client_call.ended()

    def _recorded(self, spec: CallSpec, *, stream: bool) -> tuple[CallSpec, _CallRecorder | None]:
        """Return the recorder of a call's tokens, if they are recorded, and the call that it
        needs.
        """
        tokens, executor = self.emitter.run.tokens, self.emitter.services.executor
        if tokens is None or is_pooled(spec):
            return spec, None
        spec = dataclasses.replace(spec, with_logprobs=True)
        return spec, _CallRecorder(tokens, self.scope, spec, executor, stream=stream)

    def _begin(self, spec: CallSpec) -> tuple[Node, Call]:
        emitter = self.emitter
        info = emitter.services.executor.info
        info.check_served(spec.model)
        if spec.sampling is not None:
            info.check_logits(spec.sampling.logits)
        parents = self.emitter.parents_of(self.after)
        node = emitter.registry.begin_call(emitter.run, self.scope, self.name, parents)
        if spec.seed is None and spec.temperature > 0:
            spec = dataclasses.replace(spec, seed=self._draw_seed(node))
        return node, Call(identity_of(emitter.run, self.scope, node), spec)

    def _draw_seed(self, node: Node) -> int:
        """Draw a random seed that depends only on the runtime's seed, the run's id and the node. A
        fork draws the same seeds as the run from which it was forked.
        """
        run, place, where = self.emitter.run, self.scope.place, str(node.id)
        # With a journal, the seed depends on the place in the code and not on the node's number.
        # So a resumed program that makes the call again draws the same seed, even if the numbers
        # of its nodes have changed.
        if place is not None:
            where, place.nodes = f"{place.path}#{place.nodes}", place.nodes + 1
        key = f"{self.emitter.services.seed}/{run.draws_as or run.id}/{where}".encode()
        # A hash takes a tenth of the time of seeding a random number generator.
        return int.from_bytes(blake2b(key, digest_size=4).digest()) >> 1

    def _with_node(self, reply: Reply, node: Node) -> Reply:
        """Return a call's reply with the ids of its node and run, and add it to ``replies``."""
        reply = dataclasses.replace(reply, node=node.id, run_id=self.emitter.run.id)
        self.replies.append(reply)
        return reply

    async def _failed(
        self, call: Call, node: Node, error: BaseException, recorder: _CallRecorder | None
    ) -> None:
        """Handle the ``error`` that ended a call."""
        run, registry, report = self.emitter.run, self.emitter.registry, CallReport()
        if isinstance(error, Exception):
            registry.end_call(run, self.scope, node, report, error=error)
            return
        try:  # the call must end in the registry even if the task is cancelled a second time
            report = await self.emitter.services.executor.aborted(call.call_id)
        finally:
            try:
                was_closed = isinstance(error, GeneratorExit) or self.read is not None
                if recorder is not None and was_closed:
                    await recorder.closed(report, self.read)
            finally:
                registry.end_call(run, self.scope, node, report, cancelled=True)

    def closed(self, read: int) -> None:
        self.read = read

    @contextlib.contextmanager
    def siblings(self, count: int) -> Iterator[Sequence[RunCaller]]:
        # Threads of the program may use the same scope, for example those in which sync nodes of a
        # LangGraph graph run, while this code runs on the runtime's event loop.
        lock = self.emitter.registry.lock
        with lock:
            each = [
                dataclasses.replace(self, scope=self.scope.fork(), read=None) for _ in range(count)
            ]
        try:
            yield each
        finally:
            with lock:
                for sibling in each:
                    self.scope.join(sibling.scope)

    def with_report(self, reply: Reply) -> Reply:
        """Return the reply to a chat request with the tokens of all calls of the request, and with
        one report of these calls (`CallReport.of_all`). The node of the reply is the node of the
        call that ended last. If no call has ended, return the reply unchanged.
        """
        if not self.replies:
            return reply
        last = self.replies[-1]
        tokens = tuple(itertools.chain.from_iterable(each.tokens for each in self.replies))
        report = CallReport.of_all([each.report for each in self.replies])
        return dataclasses.replace(
            reply, report=report, node=last.node, run_id=last.run_id, tokens=tokens
        )


@dataclasses.dataclass(frozen=True, slots=True)
class LiveContexts:
    """The `TokenEmitter` of one run, which makes the calls of the run's token contexts."""

    emitter: LiveEmitter

    async def token_call(
        self, spec: CallSpec, name: str, *, stream: bool
    ) -> AsyncGenerator[Chunk, None]:
        """Make a call whose prompt is token ids, and yield its output as it is generated.

        Raises `ConfigError` if the executor does not accept token ids, and the errors of
        `Executor.generate`.
        """
        scope = self.emitter.scope_on_loop(name)
        spec = (await self.frontend()).addressed(spec)
        probes = name not in WRITING
        caller = RunCaller(self.emitter, scope, name=name, probes=probes)
        made = caller.chunks(spec, stream=stream)
        self.emitter.run.opens(made)
        async with contextlib.aclosing(made) as chunks:
            while (chunk := await _next_outside(chunks)) is not None:
                yield chunk

    async def frontend(self) -> Frontend:
        """Return the front end, which turns text into token ids and back."""
        with tracking.outside():
            return await self.emitter.services.frontend()

    def save(self, name: str, context: SavedContext) -> None:
        """Save a context for the run's tenant. Raises `ConfigError` if the tenant's budget for
        saved contexts is exceeded, or if the name is empty or too long.
        """
        self.emitter.services.saved.save(self.emitter.run.row.tenant, name, context)

    def saved(self, name: str) -> SavedContext | None:
        """Return the context that the tenant has saved under this name; None if there is none."""
        return self.emitter.services.saved.get(self.emitter.run.row.tenant, name)

    def open(self, name: str) -> SavedContext:
        """Return a context that the tenant has saved under this name. Raises `UnknownContextError`
        if the name is unknown.
        """
        return self.emitter.services.saved.open(self.emitter.run.row.tenant, name)

    def forget(self, name: str) -> None:
        """Delete a saved context. Raises `UnknownContextError` if the name is unknown."""
        self.emitter.services.saved.forget(self.emitter.run.row.tenant, name)

    def dropped(self, call: str, shared: int) -> None:
        """Tell the engine that a token context is not used any more. ``call`` is the id of the last
        call of the context. Other contexts still use the first ``shared`` tokens of the context.
        """
        program_id = call.rpartition("/")[0]
        self.emitter.services.executor.notify(Notification(program_id, "dropped", call, shared))


class _CallRecorder:
    """A recorder that adds the tokens of one call to the log of the run when the call ends. If the
    prompt, a log probability, or the weights of ``executor`` that wrote the tokens are unknown, the
    tokens are left out, and the log is marked as incomplete.
    """

    def __init__(
        self, log: TokenLog, scope: Scope, spec: CallSpec, executor: Executor, *, stream: bool
    ) -> None:
        self._log, self._prompt, self._executor = log, spec.prompt_token_ids, executor
        self._is_updated = executor.info.is_first(spec.model)
        self._in_journal, self._stream = scope.place is not None, stream
        # With a journal, the key is the place in the code, because a resumed program has the same
        # places.
        self._at = log.begin_task() if scope.place is None else scope.place.path
        self._ids: list[int] = []
        self._logprobs: list[float] = []

    async def saw(self, chunk: Chunk) -> None:
        """Note a piece of the output. At the end of the output, add its tokens to the log and to
        the reply. Raises `JournalWriteError` if the tokens cannot be recorded.
        """
        if (reply := chunk.reply) is None:
            self._ids += chunk.token_ids
            self._logprobs += chunk.logprobs
            return
        logprobs = [position[0][1] for position in reply.token_logprobs]
        if (call := await self._add(reply.token_ids, logprobs, reply.report)) is not None:
            chunk.reply = dataclasses.replace(reply, tokens=(call,))

    async def closed(self, report: CallReport, read: int | None = None) -> None:
        """Add the pieces that the program had read when it closed the stream. ``report`` is the
        report of the call. If not all pieces of the call had been read, ``read`` is the number of
        tokens that had been read.
        """
        ids, logprobs = self._ids[:read], self._logprobs[:read]
        if not ids:
            return
        await self._add(ids, logprobs, report)

    async def _add(
        self, written: Sequence[int], logprobs: Sequence[float], report: CallReport
    ) -> CallTokens | None:
        # An empty report does not say which weights wrote the tokens. If the weights have never
        # been updated, version 0 did.
        is_known = report.prompt_tokens > 0 or not self._executor.weights.version
        if self._prompt is None or len(logprobs) != len(written) or not is_known:
            self._log.complete = False
            return None
        key = self._log.key(self._at)
        prompt, in_journal = self._prompt, self._in_journal
        # Another model than the first is never updated, so that its version 0 does not become old.
        versions = report.versions if self._is_updated else ((0, -1),)
        call = self._log.add(key, prompt, written, logprobs, versions, in_journal=in_journal)
        if in_journal and self._stream:
            # The journal also records the calls of a stream that the program closes later.
            self._log.streamed.setdefault(node_of_key(key), []).append(call)
        if self._log.keep is not None:  # a cancellation must not lose tokens that are in the log
            await tracking.to_its_end(self._log.keep(call))
        return call


def is_pooled(spec: CallSpec) -> bool:
    """Return whether a call computes an embedding or a score, so that it writes no tokens."""
    return spec.rendered is not None and spec.rendered.pooled


class LoopCheckpoint:
    """The function that `Context.checkpoint` returns. A loop calls this function at its top with
    the loop's state, and continues with the state that the function returns.

    ``keep`` records a state in the journal and returns it; in a resumed program, its first call
    returns the last recorded state instead. Without a journal, ``keep`` is None, and the function
    returns its argument. The function raises `UsageError` if it is called at two places of the
    code, or while another task of the program is open.
    """

    def __init__(self, run: Run, keep: Callable[[Any], Any] | None = None) -> None:
        self._run, self._keep = run, keep
        self._top: tuple[FrameType, int] | None = None

    def __call__(self, state: T) -> T:
        frame = sys._getframe(1)
        # Compare lines and not instructions, because the compiler may turn one line of source into
        # two instructions.
        at = frame, frame.f_lineno
        self._top = self._top or at
        if self._top != at:
            raise UsageError(
                f"run {self._run.id}: one checkpoint was called at two places of the code; "
                "make a separate checkpoint for each loop"
            )
        if not tracking.is_alone(self._run) or asyncio.current_task() is not self._run.task:
            raise UsageError(
                f"run {self._run.id}: a checkpoint was called while other tasks of the program "
                "are open; call it from the program's own function, after all tasks have ended"
            )
        if self._keep is None:
            return state
        kept: T = self._keep(state)
        return kept


class _Interrupted:
    """A context manager that ends the node of an interrupt. If the ``with`` block raises an error,
    the node ends with this error. This is a class because a generator would be slower, and each
    tool call uses it.
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
    """An observer of one tool call: it reports the attempts of the call to the registry, and asks
    humans the questions of the tool.
    """

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
        with self._registry.lock:
            fork = self._scope.fork()
        try:
            return await self._emitter.ask(fork, question, answer_form(schema))
        finally:
            with self._registry.lock:
                self._scope.join(fork)


def _replies_in(after: Any) -> tuple[Any, ...]:
    """Return the items of the argument ``after``, which may be an iterator. Raises `ConfigError`
    for a value that has no items, such as a single reply.
    """
    if not isinstance(after, Iterable):
        raise ConfigError(
            f"after= takes a list of replies, got {after!r:.80}; put a single reply into a list"
        )
    return tuple(after)


async def _next_outside(items: AsyncGenerator[T, None]) -> T | None:
    """Return the next of ``items``, or None after the last item. Tasks that the generator starts
    belong to no program.
    """
    with tracking.outside():
        return await anext(items, None)
