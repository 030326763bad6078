"""The transport that discovers the tools of workers at a broker and calls them."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import aiomqtt

from agentrt.errors import ToolLostError, ToolResultError, UnknownToolError
from agentrt.integrations.mqtt.broker import Broker, Outgoing, publish, subscribe
from agentrt.integrations.mqtt.calls import CallQuestions, TenantWorkers, ToolAttempt, call_id_of
from agentrt.integrations.mqtt.connection import Connection
from agentrt.integrations.mqtt.messages import Announcement, Cancel, ReplyMessage, decode, encode
from agentrt.integrations.mqtt.topics import Topics
from agentrt.interrupts import Tool, ToolContext, ToolRequest, ToolTransport

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
        self._tenants: defaultdict[str, TenantWorkers] = defaultdict(TenantWorkers)
        self._calls: dict[str, ToolAttempt] = {}
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
        call = ToolAttempt(
            request,
            context,
            self._workers(request.tenant),
            topics,
            topics.replies(self._client_id),
            None if request.timeout is None else loop.time() + request.timeout,
            CallQuestions(context, partial(self._give, topics)),
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

    async def _answer(self, call: ToolAttempt) -> Any:
        """Send the call every ``resend_s`` seconds until it is answered, and return the answer.

        Raises `ToolLostError` when no worker has replied for `_SILENCES` such intervals.
        """
        self._try(call)
        try:
            return await call.answer
        finally:
            assert call.again is not None
            call.again.cancel()

    def _try(self, call: ToolAttempt) -> None:
        loop = asyncio.get_running_loop()
        call.again = loop.call_later(self._resend_s, self._unanswered, call)
        self._send(call)

    def _unanswered(self, call: ToolAttempt) -> None:
        call.silent += 1
        if call.silent < _SILENCES:
            self._try(call)
            return
        source = f"worker {call.worker}" if call.worker else "any worker"
        seconds = _SILENCES * self._resend_s
        message = f"tool {call.tool}: no reply from {source} for {seconds:g} s"
        call.fail(ToolLostError(message, name=call.tool))

    def _send(self, call: ToolAttempt) -> None:
        """Publish a call to the worker that has it. If no worker has it, publish a call that may
        run twice on the topic that all workers of the tool share, and any other call to the worker
        that is first in `TenantWorkers.offering`. If no worker offers the tool, the call fails.
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
        now = asyncio.get_running_loop().time()
        self._connection.send(call.outgoing(now), keep=False)

    def _cancel(self, call: ToolAttempt) -> None:
        message = encode(Cancel(key=call.request.key or call.id, attempt=call.request.attempt))
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
                f"the broker's rules do not allow this client to read and write {own}"
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

    def _lose(self, call: ToolAttempt, worker: str) -> None:
        if worker not in call.workers.workers:
            message = (
                f"tool {call.tool}: worker {worker} has disconnected; whether the tool ran is "
                "unknown"
            )
            call.fail(ToolLostError(message, name=call.tool))

    def _calls_of(self, workers: TenantWorkers, worker: str) -> list[ToolAttempt]:
        calls = self._calls.values()
        return [call for call in calls if call.workers is workers and call.worker == worker]

    def _replied(self, message: aiomqtt.Message) -> None:
        call_id = call_id_of(message)
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

    def _take(self, call: ToolAttempt, reply: ReplyMessage) -> None:
        if reply.state == "done":
            call.succeed(reply.result)
        elif reply.progress is not None:
            call.context.progress(reply.progress)
        elif reply.question is not None:
            call.questions.take(reply.worker, reply.question, asks=reply.state == "asks")
        elif reply.error is None:
            call.assign(reply.worker)
        elif reply.error.kind == "unavailable" and call.workers.offering(call.tool):
            call.assign(None)  # the worker is shutting down, so try another worker
            self._send(call)
        else:
            call.fail(reply.error.error(call.tool))

    def _workers(self, tenant: str) -> TenantWorkers:
        return self._tenants["default" if self._prefix.is_shared else tenant]
