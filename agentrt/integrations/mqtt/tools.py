"""Calls tools that workers offer, and finds out which there are."""

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
from agentrt.integrations.mqtt.calls import CallQuestions, Fleet, ToolAttempt, call_id_of
from agentrt.integrations.mqtt.connection import Connection
from agentrt.integrations.mqtt.messages import Announcement, Cancel, Reply, decode, encode
from agentrt.integrations.mqtt.topics import Topics
from agentrt.interrupts import Tool, ToolContext, ToolRequest, ToolTransport

_SYNC_S = 3.0
_MOST_UNANSWERED = 100
"""Calls on their way at once that no worker has accepted: brokers drop what they cannot queue."""
_SILENCES = 3
"""So often a call is sent without a word from a worker before it is lost."""


class MqttTools(ToolTransport):
    """The tools that workers announce at a broker.

    A call of an idempotent tool goes to any worker, through a shared subscription; any other
    call to one worker alone, so that it runs at most once. Times are in seconds: a call waits
    ``connect_timeout`` for the broker; a worker that is gone may come back ``back_within``, unless
    the tool is idempotent; what gets no answer is sent again every ``resend_s``, with the same key.
    Workers stop the calls of a client that is cut off from the broker for ``away`` seconds. For
    ``settle`` seconds after its first connection a tool is waited for that nobody offers yet.
    ``dropped`` counts answers that nobody waited for.
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
        self._fleets: defaultdict[str, Fleet] = defaultdict(Fleet)
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
        await self._connection.finish()  # workers are to hear of what was cancelled

    async def tools(self) -> Sequence[Tool]:
        return await self.tools_for("default")

    async def tools_for(self, tenant: str) -> Sequence[Tool]:
        """The tools of a tenant's workers. Raises `ToolUnavailableError`."""
        await self._connection.ready(self._connect_timeout)
        return self._fleet(tenant).tools(self)

    async def more(self, tenant: str) -> bool:
        """Wait for a worker's next announcement, soon after the first connection."""
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
            self._fleet(request.tenant),
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
        """Send it again until it is answered."""
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
        who = f"worker {call.worker}" if call.worker else "every worker"
        message = f"tool {call.tool}: {who} was silent for {_SILENCES * self._resend_s:g} s"
        call.fail(ToolLostError(message, name=call.tool))

    def _send(self, call: ToolAttempt) -> None:
        """Publish a call, to the worker that has it or to those that may take it."""
        if call.worker is None:
            offering = call.fleet.offering(call.tool)
            if not offering:
                known = ", ".join(one.name for one in call.fleet.tools(self)) or "there is none"
                message = f"no worker offers the tool {call.tool!r} now ({known})"
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
        """An answer to what a tool asks."""
        self._connection.send(Outgoing(topics.answers_for(worker), answer))

    # -- the connection -----------------------------------------------------------------

    async def _greet(self, client: aiomqtt.Client) -> None:
        """Hear of the workers that are there, all of them: messages come in their order."""
        for fleet in self._fleets.values():
            fleet.doubt()
        everywhere, own = self._prefix.all(), self._prefix.common().replies(self._client_id)
        await subscribe(client, [everywhere.worker("+"), everywhere.replies(self._client_id)])
        self._synced.clear()
        self._sync = uuid.uuid4().hex
        await publish(client, Outgoing(own, b"{}", correlation=self._sync.encode()))
        try:
            async with asyncio.timeout(_SYNC_S):
                await self._synced.wait()
        except TimeoutError:
            raise aiomqtt.MqttError(f"its rules let us not read and write {own}") from None

    def _resume(self) -> None:
        """Ask again for all that was under way when the connection broke."""
        self._settled_at = self._settled_at or asyncio.get_running_loop().time() + self._settle
        for call in tuple(self._calls.values()):
            worker = call.fleet.workers.get(call.worker or "")
            if call.worker is None or (worker is not None and not worker.unsure):
                self._send(call)
        self._later(self._forget_doubtful)

    def _forget_doubtful(self) -> None:
        for tenant, fleet in self._fleets.items():
            for worker in fleet.doubtful():
                self._left(tenant, worker)

    def _later(self, do: Any, *args: Any) -> None:
        loop = asyncio.get_running_loop()

        def now() -> None:
            self._timers.discard(timer)
            do(*args)

        timer = loop.call_later(self._back_within, now)
        self._timers.add(timer)

    # -- what comes in ------------------------------------------------------------------

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
        fleet = self._fleet(tenant)
        known = fleet.workers.get(worker)
        was_sure = known is not None and not known.unsure
        fleet.announce(worker, decode(Announcement, payload))
        self._announcement.set()
        self._announcement = asyncio.Event()
        if was_sure or not self._connection.is_up:
            return
        for call in self._calls_of(fleet, worker):
            self._send(call)

    def _left(self, tenant: str, worker: str) -> None:
        """A worker is gone. Whether it runs on somewhere, cut off from the broker, is unknown."""
        fleet = self._fleet(tenant)
        gone = fleet.workers.pop(worker, None)
        if gone is None:
            return
        for call in self._calls_of(fleet, worker):
            if call.is_idempotent:
                self._lose(call, worker)
            else:
                self._later(self._lose, call, worker)
        for call in tuple(self._calls.values()):  # it may have had those, too, unsaid
            if call.fleet is fleet and call.worker is None and call.tool in gone.tools:
                self._send(call)

    def _lose(self, call: ToolAttempt, worker: str) -> None:
        if worker not in call.fleet.workers:
            message = f"tool {call.tool}: its worker {worker} is gone; whether it ran is unknown"
            call.fail(ToolLostError(message, name=call.tool))

    def _calls_of(self, fleet: Fleet, worker: str) -> list[ToolAttempt]:
        return [one for one in self._calls.values() if one.fleet is fleet and one.worker == worker]

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
            reply = decode(Reply, message.payload)
        except ValueError as error:
            what = f"tool {call.tool}: the reply cannot be used: {error}"
            call.fail(ToolResultError(what, name=call.tool))
        else:
            self._take(call, reply)

    def _take(self, call: ToolAttempt, reply: Reply) -> None:
        if reply.state == "done":
            call.succeed(reply.result)
        elif reply.progress is not None:
            call.context.progress(reply.progress)
        elif reply.question is not None:
            call.questions.take(reply.worker, reply.question, asks=reply.state == "asks")
        elif reply.error is None:
            call.assign(reply.worker)
        elif reply.error.kind == "unavailable" and call.fleet.offering(call.tool):
            call.assign(None)  # it takes nothing new: it leaves
            self._send(call)
        else:
            call.fail(reply.error.error(call.tool))

    def _fleet(self, tenant: str) -> Fleet:
        return self._fleets["default" if self._prefix.is_shared else tenant]
