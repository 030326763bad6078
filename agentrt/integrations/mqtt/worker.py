"""A worker: it offers functions as tools at a broker, runs them when they are called, replies to
the callers, and asks the questions of its tools.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import aiomqtt

from agentrt.errors import (
    ConfigError,
    InterruptExpiredError,
    QuestionClosedError,
    ToolArgumentsError,
    ToolFailedError,
    ToolLostError,
    ToolResultError,
    ToolUnavailableError,
    UnknownToolError,
    text_of,
)
from agentrt.graph import Progress
from agentrt.integrations.mqtt.broker import Broker, Outgoing, subscribe
from agentrt.integrations.mqtt.connection import Connection
from agentrt.integrations.mqtt.messages import (
    Announcement,
    CallMessage,
    Cancel,
    Failure,
    OfferedTool,
    ReplyMessage,
    ToolAnswer,
    ToolQuestion,
    decode,
    encode,
)
from agentrt.integrations.mqtt.topics import is_name
from agentrt.interrupts import Tool, ToolRequest
from agentrt.interrupts.attempts import Attempts
from agentrt.interrupts.toolbox import Toolbox

_KEPT = 10_000
_KEPT_BYTES = 64 << 20
_KEPT_S = 900.0


@dataclass(frozen=True, slots=True)
class _Sender:
    """The topic and the correlation data for the replies to an attempt."""

    topic: str
    correlation: bytes

    @classmethod
    def of(cls, message: aiomqtt.Message, request: CallMessage | None) -> _Sender:
        """Read the sender from a message's MQTT 5 properties, else from an MQTT 3 client's
        request.
        """
        topic = getattr(message.properties, "ResponseTopic", None)
        data = getattr(message.properties, "CorrelationData", None)
        if topic is None and request is not None:
            topic, data = request.reply_to, request.id.encode()
        return cls(topic or "", bytes(data or b""))


@dataclass(slots=True, eq=False)
class _ToolJob:
    """A call that a worker runs. All attempts of the call have the same key. ``deadline`` is a time
    of the event loop's clock.

    After the call has ended, ``reply`` is its outcome. If the call has a result, ``size`` is the
    size of the reply in bytes.
    """

    request: CallMessage
    sender: _Sender
    deadline: float | None
    task: asyncio.Task[None] | None = None
    reply: ReplyMessage | None = None
    size: int = 0
    ended_at: float | None = None
    cancelled: bool = False

    @property
    def failed(self) -> Failure | None:
        """The reason why the call has no result; None if it has one or still runs."""
        return None if self.reply is None else self.reply.error


class _ToolJobs:
    """A worker's jobs by key: all running jobs, and the last ended jobs for some minutes."""

    def __init__(self) -> None:
        self.live: dict[str, _ToolJob] = {}
        self._ended: OrderedDict[str, _ToolJob] = OrderedDict()
        self._bytes = 0

    def find(self, request: CallMessage, now: float) -> _ToolJob | None:
        """Return the job that a request repeats; None if the request is a new job, such as a new
        attempt at a failed call.
        """
        self._forget(now)
        known = self.live.get(request.key) or self._ended.get(request.key)
        if known is None or known.ended_at is None:
            return known
        return known if known.failed is None or request.attempt <= known.request.attempt else None

    def begin(self, job: _ToolJob) -> None:
        """Add a job that starts."""
        self.live[job.request.key] = job

    def end(self, job: _ToolJob, now: float) -> None:
        """Record the end of a job."""
        key = job.request.key
        if self.live.get(key) is job:
            del self.live[key]
        if (before := self._ended.pop(key, None)) is not None:
            self._bytes -= before.size
        job.ended_at = now
        self._ended[key] = job
        self._bytes += job.size
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._ended:
            oldest = next(iter(self._ended.values()))
            assert oldest.ended_at is not None
            if (
                len(self._ended) <= _KEPT
                and self._bytes <= _KEPT_BYTES
                and now - oldest.ended_at <= _KEPT_S
            ):
                return
            self._ended.popitem(last=False)
            self._bytes -= oldest.size


# -- replies -------------------------------------------------------------------------------


_ReplyState = Literal["accepted", "progress", "asks", "withdrawn", "done", "failed"]


_SendQuestion = Callable[[_ToolJob, Literal["asks", "withdrawn"], ToolQuestion], None]
"""A function that sends a reply with a question."""


@dataclass(slots=True, eq=False)
class _OpenQuestion:
    job: _ToolJob
    question: ToolQuestion
    answered: asyncio.Future[Any] = field(default_factory=asyncio.Future)


class _ToolQuestions:
    """The questions of a worker's tools, which are sent to the callers of the jobs.

    Replies may be lost, so the open questions of a job are sent again whenever the state of the job
    is sent (`_Replies.tell`), for example when the caller repeats its request.
    """

    def __init__(self, say: _SendQuestion) -> None:
        self._say = say
        self._open: dict[str, _OpenQuestion] = {}

    async def ask(self, job: _ToolJob, text: str, schema: Mapping[str, Any] | None) -> Any:
        """Ask a question and return its answer. Raises a `ToolError` if the question gets no
        answer.
        """
        if job.ended_at is not None:
            raise QuestionClosedError(
                "the tool's call has ended, so its questions cannot be answered any more"
            )
        form = None if schema is None else dict(schema)
        pending = _OpenQuestion(job, ToolQuestion(id=uuid.uuid4().hex, text=text, schema=form))
        self._say(job, "asks", pending.question)
        self._open[pending.question.id] = pending
        try:
            return await pending.answered
        except asyncio.CancelledError:
            self._say(job, "withdrawn", ToolQuestion(id=pending.question.id))
            raise
        finally:
            del self._open[pending.question.id]

    def repeat(self, job: _ToolJob) -> None:
        """Send the questions of a job again, because a question or its answer may be lost."""
        for pending in self._open.values():
            if pending.job is job:
                self._say(job, "asks", pending.question)

    def close(self, job: _ToolJob) -> None:
        """Close the questions of a job that has ended. A thread that is still running may wait for
        an answer.
        """
        for pending in self._open.values():
            if pending.job is job and not pending.answered.done():
                pending.answered.set_exception(
                    QuestionClosedError(
                        "the tool's call has ended, so its questions cannot be answered any more"
                    )
                )

    def take(self, answer: ToolAnswer) -> None:
        """Accept the first answer to an open question. Ignore all other answers."""
        pending = self._open.get(answer.question)
        if pending is None or pending.answered.done():
            return
        if answer.error is not None:
            pending.answered.set_exception(answer.error.error(pending.job.request.tool))
        else:
            pending.answered.set_result(answer.answer)


class _Replies:
    """The replies of a worker, which ``send`` publishes, and the ``questions`` of its tools.
    ``check_size`` raises `ValueError` for a message that is larger than the broker accepts.
    """

    def __init__(
        self, worker: str, send: Callable[..., None], check_size: Callable[[Outgoing], None]
    ) -> None:
        self._worker, self._send, self._check_size = worker, send, check_size
        self.questions = _ToolQuestions(self._ask)

    def done(self, job: _ToolJob, result: Any) -> tuple[ReplyMessage, int]:
        """Return the reply with a job's result, and its size in bytes. Raises `ToolResultError` if
        the result cannot be sent as JSON, or if it is larger than the broker accepts.
        """
        reply = self._make_reply("done", result=result)
        try:
            message = _addressed(job.sender, reply)
            self._check_size(message)
        except ValueError as error:
            tool = job.request.tool
            raise ToolResultError(f"tool {tool}: cannot send the result: {error}") from error
        return reply, len(message.payload)

    def failed(self, error: Exception) -> ReplyMessage:
        """Return the reply for a call that failed."""
        return self._make_reply("failed", error=Failure.of(error))

    def refuse(self, sender: _Sender, error: Exception) -> None:
        """Send an error to the sender of a request that starts no job."""
        self._reply(sender, self.failed(error))

    def tell(self, job: _ToolJob) -> None:
        """Send the state of a job to its caller."""
        self._reply(job.sender, job.reply or self._make_reply("accepted"))
        self.questions.repeat(job)

    def progress(self, job: _ToolJob, progress: Progress) -> None:
        """Send the progress of a running job to its caller."""
        if job.ended_at is None:
            self._reply(job.sender, self._make_reply("progress", progress=progress), keep=False)

    def _ask(
        self, job: _ToolJob, state: Literal["asks", "withdrawn"], question: ToolQuestion
    ) -> None:
        if not job.cancelled:
            self._reply(job.sender, self._make_reply(state, question=question))

    def _make_reply(self, state: _ReplyState, **parts: Any) -> ReplyMessage:
        return ReplyMessage(state=state, worker=self._worker, **parts)

    def _reply(self, sender: _Sender, reply: ReplyMessage, *, keep: bool = True) -> None:
        if not sender.topic:
            log.warning("a reply was dropped, because its request has no topic for it: %s", reply)
            return
        self._send(_addressed(sender, reply, qos=int(keep)), keep=keep)


def _addressed(sender: _Sender, reply: ReplyMessage, qos: int = 1) -> Outgoing:
    """Return the message with a reply. Raises `ValueError` as `encode` does."""
    correlation = sender.correlation
    whole = reply.model_copy(update={"id": correlation.decode("utf-8", "replace")})
    return Outgoing(sender.topic, encode(whole), qos, correlation=correlation)


class _JobContext:
    """The context of a tool that runs on a worker: its progress and questions go to the caller."""

    def __init__(self, replies: _Replies, job: _ToolJob) -> None:
        self._replies, self._job = replies, job
        self._loop = asyncio.get_running_loop()

    def waits(self, why: str) -> None:
        """Do nothing: the caller is told only that the job was accepted, not that it waits."""

    def starts(self, attempt: int) -> None:
        """Do nothing: the caller is told only that the job was accepted, not when it starts."""

    def progress(self, progress: Progress) -> None:
        self._loop.call_soon_threadsafe(self._replies.progress, self._job, progress)

    async def ask(self, question: str, schema: Mapping[str, Any] | None = None) -> Any:
        return await self._replies.questions.ask(self._job, question, schema)


log = logging.getLogger(__name__)
_ACCEPT_AFTER_S = 0.05
"""Seconds after which a call is confirmed as accepted. A call that ends earlier sends only its
result, which also names the worker.
"""
_BEAT_S, _STALE_S = 60.0, 180.0
"""Seconds between announcements, and seconds after which the broker drops an announcement."""
_GOODBYE_S = 10.0


def _offered(tool: Tool) -> OfferedTool:
    """Return the description of a tool for the announcement. Raises `ConfigError` if there can be
    none.
    """
    if not is_name(tool.name):
        raise ConfigError(
            f"tool {tool.name!r} cannot be offered over MQTT, because its name is part of topics; "
            'use at most 128 letters from A to Z, digits, . _ : @ -, as in @tool(name="drill")'
        )
    offer = OfferedTool.of(tool)
    try:
        encode(offer)
    except ValueError as error:  # for example a default of infinity in the schema
        raise ConfigError(f"tool {tool.name!r} cannot be offered over MQTT: {error}") from error
    return offer


class Worker:
    """A worker that offers ``tools`` until `drain` is called. Call `run` once.

    ``concurrency`` is the maximum number of calls, of all tools, that run at the same time;
    further calls wait. ``notice`` gets a line at each new connection, if the first connection
    fails, and when the worker drains. Raises `ConfigError` for a ``name`` or ``tenant`` that cannot
    be part of a topic, and for a tool that cannot be announced.
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
        self._offer = [_offered(tool) for tool in tools]
        self._toolbox, self._jobs = Toolbox(), _ToolJobs()
        self._draining = asyncio.Event()
        self._connection = Connection(
            broker,
            self.id,
            on_message=self._saw,
            on_connect=self._subscribe,
            on_up=self._up,
            will=Outgoing(self._topics.worker(self.id), b"", retain=True),
        )
        connection = self._connection
        self._replies = _Replies(self.id, connection.send, connection.check_size)

    def drain(self) -> None:
        """Finish the running calls, accept no new ones, and let `run` return."""
        if not self._draining.is_set():
            self._draining.set()
            self._announce()  # before a refusal, which sends callers only away from leaving workers

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
            self._cancel(topic.split("/")[-2], decode(Cancel, message.payload))
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
            self._replies.refuse(_Sender.of(message, None), refused)
            return
        loop = asyncio.get_running_loop()
        sender, now = _Sender.of(message, request), loop.time()
        known = self._jobs.find(request, now)
        if known is not None and not self._runs_again(known, sender):
            known.sender = sender
            self._replies.tell(known)
        elif (refusal := self._refusal(request)) is not None:
            self._replies.refuse(sender, refusal)
        else:
            left = getattr(message.properties, "MessageExpiryInterval", None)
            job = _ToolJob(request, sender, None if left is None else now + left)
            self._jobs.begin(job)
            job.task = asyncio.create_task(self._work(job), name=f"{self.id}/{request.key}")

    def _runs_again(self, job: _ToolJob, sender: _Sender) -> bool:
        """Return whether a request runs although it repeats ``job``: the job was stopped, and a
        resumed program calls its idempotent tool again, under another id.
        """
        tool = self._tools.get(job.request.tool)
        is_other = job.sender.correlation not in (b"", sender.correlation)
        return job.cancelled and is_other and tool is not None and tool.options.idempotent

    def _refusal(self, request: CallMessage) -> UnknownToolError | ToolUnavailableError | None:
        if request.tool not in self._tools:
            offered = ", ".join(self._tools) or "none"
            return UnknownToolError(
                f"worker {self.id} has no tool {request.tool!r}; available: {offered}"
            )
        if self._draining.is_set():
            return ToolUnavailableError(f"worker {self.id} is shutting down and accepts no calls")
        return None

    def _cancel(self, tool: str, cancel: Cancel) -> None:
        now = asyncio.get_running_loop().time()
        job = self._jobs.live.get(cancel.key)
        if job is None:  # the call may arrive later, so record that it is cancelled
            request = CallMessage(tool=tool, key=cancel.key, arguments={}, attempt=cancel.attempt)
            job = _ToolJob(request, _Sender("", cancel.id.encode()), None)
            if self._jobs.find(request, now) is not None:
                return
        elif job.request.attempt > cancel.attempt:
            return
        self._end(job, "its caller had cancelled the call")

    def _client_left(self, client: str) -> None:
        """Stop the calls of a client that has disconnected."""
        replies = self._topics.replies(client)
        for job in tuple(self._jobs.live.values()):
            if job.sender.topic == replies:
                self._end(job, "its caller had disconnected")

    def _end(self, job: _ToolJob, reason: str) -> None:
        """Stop a job. If its request is repeated, the reply is an error with this ``reason``."""
        lost = ToolLostError(f"tool {job.request.tool} was stopped because {reason}")
        job.cancelled, job.reply = True, self._replies.failed(lost)
        self._jobs.end(job, asyncio.get_running_loop().time())
        if job.task is not None:
            job.task.cancel()

    # -- one job ------------------------------------------------------------------------

    async def _work(self, job: _ToolJob) -> None:
        loop = asyncio.get_running_loop()
        accepting = loop.call_later(_ACCEPT_AFTER_S, self._replies.tell, job)
        try:
            job.reply = await self._outcome(job)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # Such as a class of the tool's own, or a `GeneratorExit`. If a future raises the
            # latter, Python closes the coroutines that wait for the future, and their results are
            # lost, so it cannot be handled in `_outcome`.
            kind = type(error).__name__
            job.reply = self._replies.failed(ToolFailedError(text_of(error), type=kind))
        finally:
            accepting.cancel()
            self._replies.questions.close(job)
            if not job.cancelled:
                self._jobs.end(job, loop.time())
        self._replies.tell(job)

    async def _outcome(self, job: _ToolJob) -> ReplyMessage:
        name = job.request.tool
        bound = asyncio.timeout_at(job.deadline)
        try:
            async with bound, self._slots:
                result = await self._perform(job)
            reply, job.size = self._replies.done(job, result)
        except Exception as error:
            if isinstance(error, TimeoutError) and bound.expired():
                error = InterruptExpiredError(f"tool {name} did not end before its deadline")
            return self._replies.failed(error)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            kind = type(error).__name__
            return self._replies.failed(ToolFailedError("cancelled by its own code", type=kind))
        return reply

    async def _perform(self, job: _ToolJob) -> Any:
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
        return await Attempts().run(request, transport, _JobContext(self._replies, job), slots)
