"""A worker: it offers functions as tools at a broker, and runs them when they are called."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import aiomqtt

from agentrt.errors import (
    ConfigError,
    InterruptExpiredError,
    ToolArgumentsError,
    ToolLostError,
    ToolUnavailableError,
    UnknownToolError,
)
from agentrt.integrations.mqtt.broker import Broker, Outgoing, subscribe
from agentrt.integrations.mqtt.connection import Connection
from agentrt.integrations.mqtt.messages import (
    Announcement,
    CallMessage,
    Cancel,
    OfferedTool,
    ReplyMessage,
    ToolAnswer,
    decode,
    encode,
)
from agentrt.integrations.mqtt.replies import JobContext, Replies, Sender, ToolJob, ToolJobs
from agentrt.integrations.mqtt.topics import is_name
from agentrt.interrupts import Tool, ToolRequest
from agentrt.interrupts.attempts import Attempts
from agentrt.interrupts.toolbox import Toolbox

log = logging.getLogger(__name__)
_ACCEPT_AFTER_S = 0.05
"""Seconds after which a call is confirmed as accepted. A call that ends earlier sends only its
result, which also names the worker.
"""
_BEAT_S, _STALE_S = 60.0, 180.0
"""Seconds between announcements, and seconds after which the broker drops an announcement."""
_GOODBYE_S = 10.0


class Worker:
    """A worker that offers ``tools`` until `drain` is called. Call `run` once.

    ``concurrency`` is the maximum number of calls, of all tools, that run at the same time;
    further calls wait. ``notice`` gets a line at each new connection, if the first connection
    fails, and when the worker drains. Raises `ConfigError` for a ``name`` or ``tenant`` that cannot
    be part of a topic.
    """

    def __init__(
        self,
        broker: Broker,
        tools: Sequence[Tool],
        *,
        name: str = "worker",
        concurrency: int = 8,
        tenant: str = "default",
        notice: Callable[[str], None] = log.info,
    ) -> None:
        if not is_name(name):
            raise ConfigError(
                f"invalid worker name {name!r}; use at most 128 letters, digits, . _ : @ -"
            )
        self.id = f"{name}-{uuid.uuid4().hex[:8]}"
        # Retries are the caller's task.
        self._tools = {tool.name: tool.but(retries=0) for tool in tools}
        self._topics, self._common = broker.prefix.of(tenant), broker.prefix.common()
        self._concurrency, self._slots = concurrency, asyncio.Semaphore(concurrency)
        self._notice = notice
        self._offer = [OfferedTool.of(tool) for tool in tools]
        self._toolbox, self._jobs = Toolbox(), ToolJobs()
        self._draining = asyncio.Event()
        self._connection = Connection(
            broker,
            self.id,
            on_message=self._saw,
            on_connect=self._subscribe,
            on_up=self._up,
            will=Outgoing(self._topics.worker(self.id), b"", retain=True),
        )
        self._replies = Replies(self.id, self._connection.send)

    def drain(self) -> None:
        """Finish the running calls, accept no new ones, and let `run` return."""
        self._draining.set()

    async def run(self) -> None:
        """Offer the tools until drained. Raises `ConfigError` if the broker rejects the login."""
        beat = asyncio.create_task(self._beat(), name=f"{self.id}/beat")
        await self._toolbox.open()
        self._connection.open()
        try:
            await self._first_connection()
            await self._draining.wait()
            await self._finish()
        finally:
            beat.cancel()
            await self._stop()
            await asyncio.wait([beat])

    async def _first_connection(self) -> None:
        try:
            await self._connection.ready(_GOODBYE_S)
        except ToolUnavailableError as error:
            if self._connection.refused:
                raise ConfigError(str(error)) from error
            self._notice(f"{error}; trying again")

    async def _finish(self) -> None:
        """Wait until the running calls have ended, and then at most `_GOODBYE_S` seconds until
        their results are sent.
        """
        self._announce()
        self._notice(f"finishing {len(self._jobs.live)} calls, accepting no new ones")
        if running := self._running():
            await asyncio.wait(running)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await self._connection.sent()

    async def _stop(self) -> None:
        """Cancel the running calls, remove the announcement, and disconnect."""
        if running := self._running():
            for task in running:
                task.cancel()
            await asyncio.wait(running)
        if self._connection.is_up:
            self._connection.send(Outgoing(self._topics.worker(self.id), b"", retain=True))
        await self._connection.finish()
        await self._toolbox.close()

    def _running(self) -> list[asyncio.Task[None]]:
        return [job.task for job in self._jobs.live.values() if job.task is not None]

    # -- the connection -----------------------------------------------------------------

    async def _subscribe(self, client: aiomqtt.Client) -> None:
        own = (self._topics.inbox(self.id), self._topics.answers_for(self.id))
        topics = [*own, self._common.client("+")]
        for name in self._tools:
            topics.append(self._topics.cancels(name))
            if not self._draining.is_set():
                topics.append(self._topics.shared_calls(name))
        await subscribe(client, topics)

    def _up(self) -> None:
        self._announce()
        self._notice(f"{self.id} offers {', '.join(self._tools)} at {self._connection.broker}")

    def _announce(self) -> None:
        announcement = Announcement(
            tools=tuple(self._offer),
            concurrency=self._concurrency,
            draining=self._draining.is_set(),
        )
        topic = self._topics.worker(self.id)
        self._connection.send(Outgoing(topic, encode(announcement), retain=True, expiry=_STALE_S))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            if self._connection.is_up:
                self._announce()

    # -- incoming messages --------------------------------------------------------------

    def _saw(self, message: aiomqtt.Message) -> None:
        topic = str(message.topic)
        if topic.endswith("/cancels"):
            self._cancel(decode(Cancel, message.payload))
        elif topic.endswith("/calls"):
            self._called(message)
        elif topic.endswith("/answers"):
            self._replies.questions.take(decode(ToolAnswer, message.payload))
        else:
            self._client_left(topic.rpartition("/")[2])

    def _called(self, message: aiomqtt.Message) -> None:
        try:
            request = decode(CallMessage, message.payload)
        except ValueError as error:
            refused = ToolArgumentsError(f"the request is invalid: {error}")
            self._replies.refuse(Sender.of(message, None), refused)
            return
        loop = asyncio.get_running_loop()
        sender, now = Sender.of(message, request), loop.time()
        if (known := self._jobs.find(request, now)) is not None:
            known.sender = sender
            self._replies.tell(known)
        elif (refusal := self._refusal(request)) is not None:
            self._replies.refuse(sender, refusal)
        else:
            left = getattr(message.properties, "MessageExpiryInterval", None)
            job = ToolJob(request, sender, None if left is None else now + left)
            self._jobs.begin(job)
            job.task = asyncio.create_task(self._work(job), name=f"{self.id}/{request.key}")

    def _refusal(self, request: CallMessage) -> UnknownToolError | ToolUnavailableError | None:
        if request.tool not in self._tools:
            offered = ", ".join(self._tools) or "none"
            return UnknownToolError(
                f"worker {self.id} has no tool {request.tool!r}; available: {offered}"
            )
        if self._draining.is_set():
            return ToolUnavailableError(f"worker {self.id} is shutting down and accepts no calls")
        return None

    def _cancel(self, cancel: Cancel) -> None:
        now = asyncio.get_running_loop().time()
        job = self._jobs.live.get(cancel.key)
        if job is None:  # the call may arrive later, so record that it is cancelled
            request = CallMessage(tool="-", key=cancel.key, arguments={}, attempt=cancel.attempt)
            job = ToolJob(request, Sender("", b""), None)
            if self._jobs.find(request, now) is not None:
                return
        elif job.request.attempt > cancel.attempt:
            return
        self._end(job)

    def _client_left(self, client: str) -> None:
        """Stop the calls of a client that has disconnected. If the client connects again and
        repeats such a call, the reply is an error.
        """
        replies = self._topics.replies(client)
        for job in tuple(self._jobs.live.values()):
            if job.sender.topic == replies:
                lost = ToolLostError(
                    f"tool {job.request.tool} was stopped because its caller had disconnected"
                )
                self._end(job, self._replies.failed(lost))

    def _end(self, job: ToolJob, reply: ReplyMessage | None = None) -> None:
        """Stop a job. If the caller repeats the job's request, ``reply`` is sent to the caller;
        with None, no reply is sent.
        """
        job.cancelled, job.reply = True, reply
        self._jobs.end(job, asyncio.get_running_loop().time())
        if job.task is not None:
            job.task.cancel()

    # -- one job ------------------------------------------------------------------------

    async def _work(self, job: ToolJob) -> None:
        loop = asyncio.get_running_loop()
        accepting = loop.call_later(_ACCEPT_AFTER_S, self._replies.tell, job)
        try:
            job.reply = await self._outcome(job)
        finally:
            accepting.cancel()
            self._replies.questions.close(job)
            if not job.cancelled:
                self._jobs.end(job, loop.time())
        self._replies.tell(job)

    async def _outcome(self, job: ToolJob) -> ReplyMessage:
        name = job.request.tool
        bound = asyncio.timeout_at(job.deadline)
        try:
            async with bound, self._slots:
                result = await self._perform(job)
            reply, job.size = self._replies.done(name, result)
        except Exception as error:
            if isinstance(error, TimeoutError) and bound.expired():
                error = InterruptExpiredError(f"tool {name} did not end before its deadline")
            return self._replies.failed(error)
        return reply

    async def _perform(self, job: ToolJob) -> Any:
        call, tool = job.request, self._tools[job.request.tool]
        if job.deadline is not None:
            await asyncio.sleep(0)  # raises if the deadline has already passed
        request = ToolRequest(
            tool,
            call.arguments,
            key=call.key,
            run_id=call.program,
            tenant=call.tenant,
            timeout=tool.options.timeout,
        )
        transport, slots = self._toolbox.transport_of(tool), self._toolbox.slots_of(tool)
        return await Attempts().run(request, transport, JobContext(self._replies, job), slots)
