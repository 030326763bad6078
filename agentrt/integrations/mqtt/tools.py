"""The transport that discovers the tools of workers at a broker and calls them, with its state of
the calls in flight, and of the workers that offer tools.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiomqtt

from agentrt.errors import (
    ToolArgumentsError,
    ToolError,
    ToolLostError,
    ToolResultError,
    UnknownToolError,
)
from agentrt.integrations.mqtt.broker import Broker, Outgoing, publish, subscribe
from agentrt.integrations.mqtt.connection import Connection
from agentrt.integrations.mqtt.messages import (
    Announcement,
    CallMessage,
    Cancel,
    Failure,
    ReplyMessage,
    ToolAnswer,
    ToolQuestion,
    decode,
    encode,
)
from agentrt.integrations.mqtt.topics import Topics
from agentrt.interrupts import Tool, ToolContext, ToolRequest, ToolTransport


@dataclass(slots=True)
class _KnownWorker:
    """A worker that has announced itself.

    After the connection to the broker breaks, a worker is ``unsure`` until it announces itself
    again.
    """

    name: str
    tools: Mapping[str, Tool] = field(default_factory=dict)
    unsure: bool = False


@dataclass(slots=True)
class _TenantWorkers:
    """The workers of one tenant, by name.

    ``calls`` has the number of this client's calls that each worker has now. It also counts calls
    of workers that have disconnected, because they may come back with their calls.
    """

    workers: dict[str, _KnownWorker] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)

    def announce(self, name: str, announcement: Announcement) -> None:
        """Record the tools that a worker offers from now on."""
        worker = self.workers.setdefault(name, _KnownWorker(name))
        offers = () if announcement.draining else announcement.tools
        worker.tools = {offer.name: offer.tool() for offer in offers}
        worker.unsure = False

    def doubt(self) -> None:
        """Mark all workers as unsure, because the connection broke."""
        for worker in self.workers.values():
            worker.unsure = True

    def doubtful(self) -> list[str]:
        """Return the names of the workers that have not announced themselves since `doubt`."""
        return [name for name, worker in self.workers.items() if worker.unsure]

    def offering(self, tool: str) -> list[_KnownWorker]:
        """Return the workers that offer a tool: first the workers that are not ``unsure``, then the
        others; within both groups, workers with fewer calls come first.
        """
        fitting = [worker for worker in self.workers.values() if tool in worker.tools]
        return sorted(fitting, key=lambda worker: (worker.unsure, self.calls[worker.name]))

    def offers(self, worker: str, tool: str) -> bool:
        """Return whether a worker offers a tool now."""
        known = self.workers.get(worker)
        return known is not None and tool in known.tools

    def tools(self, transport: ToolTransport) -> list[Tool]:
        """Return all offered tools, called through ``transport``."""
        names = sorted({name for worker in self.workers.values() for name in worker.tools})
        return [self._tool(name, transport) for name in names]

    def _tool(self, name: str, transport: ToolTransport) -> Tool:
        """Join the offers of several workers. The tool is idempotent if all workers say so."""
        offers = [worker.tools[name] for worker in self.offering(name)]
        joined = offers[0].but(idempotent=all(offer.options.idempotent for offer in offers))
        joined.transport = transport
        return joined


class _CallQuestions:
    """The questions that the worker of one call asks a human. ``give`` sends the message with an
    answer to the worker.
    """

    def __init__(self, context: ToolContext, give: Callable[[str, bytes], None]) -> None:
        self._context, self._give = context, give
        self._answers: dict[str, asyncio.Task[bytes]] = {}

    def take(self, worker: str, question: ToolQuestion, *, asks: bool) -> None:
        """Handle a reply with a question. If ``asks`` is True, the tool asks the question: ask a
        human once, and send the answer again for each further reply with this question, because
        messages may be lost. If ``asks`` is False, the tool has withdrawn the question.
        """
        answer = self._answers.get(question.id)
        if answer is None and asks:
            answer = asyncio.create_task(self._answer(question))
            self._answers[question.id] = answer
            answer.add_done_callback(partial(self._hand_on, worker))
        elif answer is not None and not asks:
            answer.cancel()
        elif answer is not None and answer.done():
            self._hand_on(worker, answer)

    async def close(self) -> None:
        """Withdraw all questions."""
        for answer in self._answers.values():
            answer.cancel()
        if self._answers:
            await asyncio.wait(self._answers.values())

    def _hand_on(self, worker: str, answer: asyncio.Task[bytes]) -> None:
        if not answer.cancelled():
            self._give(worker, answer.result())

    async def _answer(self, question: ToolQuestion) -> bytes:
        try:
            answer = await self._context.ask(question.text, question.form)
        except Exception as error:
            return encode(ToolAnswer(question=question.id, error=Failure.of(error)))
        try:
            return encode(ToolAnswer(question=question.id, answer=answer))
        except ValueError as error:
            large = ToolArgumentsError(f"cannot send the answer: {error}")
            return encode(ToolAnswer(question=question.id, error=Failure.of(large)))


@dataclass(slots=True, eq=False)
class _ToolAttempt:
    """An attempt at a call. It ends when the future `answer` is done.

    ``worker`` is the worker that has the call, if known. ``silent`` is the number of intervals
    (``resend_s`` of `MqttTools`) that have passed since the last reply of a worker.
    ``on_first_reply`` is called once. ``questions`` are the questions of the tool. ``again`` is the
    timer that sends the call again.
    """

    request: ToolRequest
    context: ToolContext
    workers: _TenantWorkers
    topics: Topics
    reply_to: str
    deadline: float | None
    questions: _CallQuestions
    on_first_reply: Callable[[], None] | None = None
    worker: str | None = None
    silent: int = 0
    payload: bytes = b""
    again: asyncio.TimerHandle | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    answer: asyncio.Future[Any] = field(default_factory=asyncio.Future)

    @property
    def tool(self) -> str:
        """The name of the tool at its workers."""
        return self.request.tool.remote

    @property
    def is_idempotent(self) -> bool:
        """Whether the call may run twice."""
        return self.request.tool.options.idempotent

    def encoded(self) -> bytes:
        """Encode the message for a worker. Raises `ToolArgumentsError` if the arguments cannot be
        sent.
        """
        call = self.request
        try:
            return encode(
                CallMessage(
                    tool=self.tool,
                    key=call.key or self.id,
                    arguments=dict(call.arguments),
                    attempt=call.attempt,
                    program=call.run_id,
                    tenant=call.tenant,
                    reply_to=self.reply_to,
                    id=self.id,
                )
            )
        except ValueError as error:
            raise ToolArgumentsError(
                f"tool {self.tool}: cannot send the arguments: {error}", name=self.tool
            ) from error

    def outgoing(self, now: float) -> Outgoing:
        """Return the message for the worker that has the call. If no worker has the call, the
        message is for one of the workers that offer the tool.
        """
        topic = self.topics.calls(self.tool)
        if self.worker is not None:
            topic = self.topics.inbox(self.worker)
        left = None if self.deadline is None else max(0.0, self.deadline - now)
        return Outgoing(
            topic, self.payload, reply_to=self.reply_to, correlation=self.id.encode(), expiry=left
        )

    def assign(self, worker: str | None) -> None:
        """Record the worker that has the call now; None for no worker."""
        calls = self.workers.calls
        if self.worker is not None:
            calls[self.worker] -= 1
            if not calls[self.worker]:
                del calls[self.worker]
        if worker is not None:
            calls[worker] += 1
        self.worker = worker

    def replied(self) -> None:
        """Record that a worker has replied."""
        self.silent = 0
        if self.on_first_reply is not None:
            self.on_first_reply()
            self.on_first_reply = None

    def succeed(self, result: Any) -> None:
        """End the attempt with a result, unless it has ended."""
        if not self.answer.done():
            self.answer.set_result(result)

    def fail(self, error: ToolError) -> None:
        """End the attempt with an error, unless it has ended."""
        if not self.answer.done():
            self.answer.set_exception(error)


def _call_id_of(message: aiomqtt.Message) -> str:
    """Return the id of the call to which a reply belongs; "" if the reply has none."""
    data = getattr(message.properties, "CorrelationData", None)
    if data is not None:
        return bytes(data).decode("utf-8", "replace")
    try:
        return decode(ReplyMessage, message.payload).id
    except ValueError:
        return ""


_SYNC_S = 3.0
_MOST_UNANSWERED = 100
"""Maximum number of calls in flight that no worker has accepted. Brokers drop messages that they
cannot queue.
"""
_SILENCES = 3
"""Number of times that a call is sent without any reply before it counts as lost."""


class MqttTools(ToolTransport):
    """The transport to the tools that workers announce at a broker.

    A call of an idempotent tool goes to any worker, through a shared subscription. Any other call
    goes to a single worker, so that it runs at most once. All times are in seconds:

    - ``connect_timeout``: how long a call waits for a connection to the broker.
    - ``back_within``: how long a lost worker may take to return before its calls are lost. Calls of
        idempotent tools do not wait for the worker.
    - ``resend_s``: the interval after which a call without an answer is sent again, with the same
      key.
    - ``away``: workers stop the calls of a client that has been disconnected for this long.
    - ``settle``: how long, after the first connection, a call waits for a tool that no worker
      offers yet.

    ``dropped`` counts answers for which no call was waiting.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        name: str = "mqtt",
        connect_timeout: float = 5.0,
        back_within: float = 5.0,
        resend_s: float = 10.0,
        away: int = 30,
        settle: float = 2.0,
    ) -> None:
        self.name = name
        self.dropped = 0
        self._prefix = broker.prefix
        self._connect_timeout = connect_timeout
        self._back_within, self._resend_s = back_within, resend_s
        self._client_id = f"agentrt-{uuid.uuid4().hex[:12]}"
        self._tenants: defaultdict[str, _TenantWorkers] = defaultdict(_TenantWorkers)
        self._calls: dict[str, _ToolAttempt] = {}
        self._unanswered_calls = asyncio.Semaphore(_MOST_UNANSWERED)
        self._synced, self._sync = asyncio.Event(), ""
        self._settle, self._settled_at = settle, 0.0
        self._announcement = asyncio.Event()
        self._timers: set[asyncio.TimerHandle] = set()
        self._connection = Connection(
            broker,
            self._client_id,
            on_message=self._saw,
            on_connect=self._greet,
            on_up=self._resume,
            will=Outgoing(broker.prefix.common().client(self._client_id), b""),
            session_s=away,
        )

    async def open(self) -> None:
        self._connection.open()

    async def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        await self._connection.finish()  # sends the cancellations to the workers

    async def tools(self) -> Sequence[Tool]:
        return await self.tools_for("default")

    async def tools_for(self, tenant: str) -> Sequence[Tool]:
        """Return the tools of a tenant's workers. Raises `ToolUnavailableError` if there is no
        connection to the broker.
        """
        await self._connection.ready(self._connect_timeout)
        return self._workers(tenant).tools(self)

    async def more(self, tenant: str) -> bool:
        """Wait for a worker's next announcement, until ``settle`` seconds after the first
        connection. Return whether there was an announcement.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._settled_at):
                return await self._announcement.wait()
        return False

    async def call(self, request: ToolRequest, context: ToolContext) -> Any:
        await self._connection.ready(self._connect_timeout)
        loop, topics = asyncio.get_running_loop(), self._prefix.of(request.tenant)
        call = _ToolAttempt(
            request,
            context,
            self._workers(request.tenant),
            topics,
            topics.replies(self._client_id),
            None if request.timeout is None else loop.time() + request.timeout,
            _CallQuestions(context, partial(self._give, topics)),
        )
        call.payload = call.encoded()
        await self._unanswered_calls.acquire()
        call.on_first_reply = self._unanswered_calls.release
        self._calls[call.id] = call
        try:
            return await self._answer(call)
        except asyncio.CancelledError:
            self._cancel(call)
            raise
        finally:
            del self._calls[call.id]
            call.replied()
            call.assign(None)
            await call.questions.close()

    async def _answer(self, call: _ToolAttempt) -> Any:
        """Send the call every ``resend_s`` seconds until it is answered, and return the answer.

        Raises `ToolLostError` when no worker has replied for `_SILENCES` such intervals.
        """
        self._try(call)
        try:
            return await call.answer
        finally:
            assert call.again is not None
            call.again.cancel()

    def _try(self, call: _ToolAttempt) -> None:
        loop = asyncio.get_running_loop()
        call.again = loop.call_later(self._resend_s, self._unanswered, call)
        self._send(call)

    def _unanswered(self, call: _ToolAttempt) -> None:
        call.silent += 1
        if call.silent < _SILENCES:
            self._try(call)
            return
        source = f"worker {call.worker}" if call.worker else "any worker"
        seconds = _SILENCES * self._resend_s
        message = f"tool {call.tool}: no reply from {source} for {seconds:g} s"
        call.fail(ToolLostError(message, name=call.tool))

    def _send(self, call: _ToolAttempt) -> None:
        """Publish a call to the worker that has it. If no worker has it, publish a call that may
        run twice on the topic that all workers of the tool share, and any other call to the worker
        that is first in `_TenantWorkers.offering`. If no worker offers the tool, or if the broker
        does not accept messages of this size, the call fails.
        """
        if call.worker is None:
            offering = call.workers.offering(call.tool)
            if not offering:
                offered = ", ".join(tool.name for tool in call.workers.tools(self)) or "none"
                message = f"no worker offers the tool {call.tool!r} now; available: {offered}"
                call.fail(UnknownToolError(message, name=call.tool))
                return
            if not call.is_idempotent:
                call.assign(offering[0].name)
        outgoing = call.outgoing(asyncio.get_running_loop().time())
        try:
            self._connection.check_size(outgoing)
        except ValueError as error:
            text = f"tool {call.tool}: cannot send the arguments: {error}"
            call.fail(ToolArgumentsError(text, name=call.tool))
            return
        self._connection.send(outgoing, keep=False)

    def _cancel(self, call: _ToolAttempt) -> None:
        key, attempt = call.request.key or call.id, call.request.attempt
        message = encode(Cancel(key=key, attempt=attempt, id=call.id))
        self._connection.send(Outgoing(call.topics.cancels(call.tool), message))

    def _give(self, topics: Topics, worker: str, answer: bytes) -> None:
        """Send the answer to a tool's question to its worker."""
        self._connection.send(Outgoing(topics.answers_for(worker), answer))

    # -- the connection -----------------------------------------------------------------

    async def _greet(self, client: aiomqtt.Client) -> None:
        """Subscribe, and wait until all workers' announcements have arrived.

        Messages arrive in order, so a message to ourselves arrives after the announcements.
        """
        for workers in self._tenants.values():
            workers.doubt()
        everywhere, own = self._prefix.all(), self._prefix.common().replies(self._client_id)
        await subscribe(client, [everywhere.worker("+"), everywhere.replies(self._client_id)])
        self._synced.clear()
        self._sync = uuid.uuid4().hex
        await publish(client, Outgoing(own, b"{}", correlation=self._sync.encode()))
        try:
            async with asyncio.timeout(_SYNC_S):
                await self._synced.wait()
        except TimeoutError:
            raise aiomqtt.MqttError(
                f"a message of this client to itself did not arrive within {_SYNC_S:g} s: either "
                f"the broker's rules do not allow the client to read and write {own}, or the "
                "broker is slow"
            ) from None

    def _resume(self) -> None:
        """Send the calls again that were in flight when the connection broke. A call of a worker
        that has not announced itself again waits for the worker's announcement.
        """
        self._settled_at = self._settled_at or asyncio.get_running_loop().time() + self._settle
        for call in tuple(self._calls.values()):
            worker = call.workers.workers.get(call.worker or "")
            if call.worker is None or (worker is not None and not worker.unsure):
                self._send(call)
        self._later(self._forget_doubtful)

    def _forget_doubtful(self) -> None:
        for tenant, workers in self._tenants.items():
            for worker in workers.doubtful():
                self._left(tenant, worker)

    def _later(self, do: Any, *args: Any) -> None:
        loop = asyncio.get_running_loop()

        def now() -> None:
            self._timers.discard(timer)
            do(*args)

        timer = loop.call_later(self._back_within, now)
        self._timers.add(timer)

    # -- incoming messages --------------------------------------------------------------

    def _saw(self, message: aiomqtt.Message) -> None:
        tenant, levels = self._prefix.read(str(message.topic))
        if levels[0] == "workers":
            self._announced(tenant, levels[1], message.payload)
        else:
            self._replied(message)

    def _announced(self, tenant: str, worker: str, payload: Any) -> None:
        if not payload:
            self._left(tenant, worker)
            return
        workers = self._workers(tenant)
        known = workers.workers.get(worker)
        was_sure = known is not None and not known.unsure
        workers.announce(worker, decode(Announcement, payload))
        self._announcement.set()
        self._announcement = asyncio.Event()
        if was_sure or not self._connection.is_up:
            return
        for call in self._calls_of(workers, worker):
            self._send(call)

    def _left(self, tenant: str, worker: str) -> None:
        """Handle a worker that has disconnected. It may still be running without a connection."""
        workers = self._workers(tenant)
        gone = workers.workers.pop(worker, None)
        if gone is None:
            return
        for call in self._calls_of(workers, worker):
            if call.is_idempotent:
                self._lose(call, worker)
            else:
                self._later(self._lose, call, worker)
        for call in tuple(self._calls.values()):  # the worker may have had unconfirmed calls, too
            if call.workers is workers and call.worker is None and call.tool in gone.tools:
                self._send(call)

    def _lose(self, call: _ToolAttempt, worker: str) -> None:
        if worker not in call.workers.workers:
            message = (
                f"tool {call.tool}: worker {worker} has disconnected; whether the tool ran is "
                "unknown"
            )
            call.fail(ToolLostError(message, name=call.tool))

    def _calls_of(self, workers: _TenantWorkers, worker: str) -> list[_ToolAttempt]:
        calls = self._calls.values()
        return [call for call in calls if call.workers is workers and call.worker == worker]

    def _replied(self, message: aiomqtt.Message) -> None:
        call_id = _call_id_of(message)
        if call_id == self._sync:
            self._synced.set()
            return
        call = self._calls.get(call_id)
        if call is None or call.answer.done():
            self.dropped += 1
            return
        call.replied()
        try:
            reply = decode(ReplyMessage, message.payload)
        except ValueError as error:
            message_text = f"tool {call.tool}: the worker's reply is invalid: {error}"
            call.fail(ToolResultError(message_text, name=call.tool))
        else:
            self._take(call, reply)

    def _take(self, call: _ToolAttempt, reply: ReplyMessage) -> None:
        if reply.state == "done":
            call.succeed(reply.result)
        elif reply.progress is not None:
            call.context.progress(reply.progress)
        elif reply.question is not None:
            call.questions.take(reply.worker, reply.question, asks=reply.state == "asks")
        elif reply.error is None:
            call.assign(reply.worker)
        elif (
            reply.error.kind == "unavailable"
            and not call.workers.offers(reply.worker, call.tool)
            and call.workers.offering(call.tool)
        ):
            call.assign(None)  # the worker is shutting down, so try another worker
            self._send(call)
        else:
            call.fail(reply.error.error(call.tool))

    def _workers(self, tenant: str) -> _TenantWorkers:
        return self._tenants["default" if self._prefix.is_shared else tenant]
