"""A worker's running and ended jobs, its replies to callers, and the questions of its tools."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import aiomqtt

from agentrt.errors import QuestionClosedError, ToolResultError
from agentrt.graph import Progress
from agentrt.integrations.mqtt.broker import Outgoing
from agentrt.integrations.mqtt.messages import (
    CallMessage,
    Failure,
    ReplyMessage,
    ToolAnswer,
    ToolQuestion,
    encode,
)

_KEPT = 10_000
_KEPT_BYTES = 64 << 20
_KEPT_S = 900.0


@dataclass(frozen=True, slots=True)
class Sender:
    """The topic and the correlation data for the replies to an attempt."""

    topic: str
    correlation: bytes

    @classmethod
    def of(cls, message: aiomqtt.Message, request: CallMessage | None) -> Sender:
        """Read the sender from a message's MQTT 5 properties, else from an MQTT 3 client's
        request.
        """
        topic = getattr(message.properties, "ResponseTopic", None)
        data = getattr(message.properties, "CorrelationData", None)
        if topic is None and request is not None:
            topic, data = request.reply_to, request.id.encode()
        return cls(topic or "", bytes(data or b""))


@dataclass(slots=True, eq=False)
class ToolJob:
    """A call that a worker runs. All attempts of the call have the same key. ``deadline`` is a time
    of the event loop's clock.

    After the call has ended, ``reply`` is its outcome; None for a call that its caller has
    cancelled. If the call has a result, ``size`` is the size of the reply in bytes.
    """

    request: CallMessage
    sender: Sender
    deadline: float | None
    task: asyncio.Task[None] | None = None
    reply: ReplyMessage | None = None
    size: int = 0
    ended_at: float | None = None
    cancelled: bool = False

    @property
    def failed(self) -> Failure | None:
        """The reason why the call has no result; None if it has one, still runs or was cancelled by
        its caller.
        """
        return None if self.reply is None else self.reply.error


class ToolJobs:
    """A worker's jobs by key: all running jobs, and the last ended jobs for some minutes."""

    def __init__(self) -> None:
        self.live: dict[str, ToolJob] = {}
        self._ended: OrderedDict[str, ToolJob] = OrderedDict()
        self._bytes = 0

    def find(self, request: CallMessage, now: float) -> ToolJob | None:
        """Return the job that a request repeats; None if the request is a new job, such as a new
        attempt at a failed call.
        """
        self._forget(now)
        known = self.live.get(request.key) or self._ended.get(request.key)
        if known is None or known.ended_at is None:
            return known
        is_over = known.failed is None and not known.cancelled
        return known if is_over or request.attempt <= known.request.attempt else None

    def begin(self, job: ToolJob) -> None:
        """Add a job that starts."""
        self.live[job.request.key] = job

    def end(self, job: ToolJob, now: float) -> None:
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


log = logging.getLogger(__name__)
ReplyState = Literal["accepted", "progress", "asks", "withdrawn", "done", "failed"]


SendQuestion = Callable[[ToolJob, Literal["asks", "withdrawn"], ToolQuestion], None]
"""A function that sends a reply with a question."""


@dataclass(slots=True, eq=False)
class _OpenQuestion:
    job: ToolJob
    question: ToolQuestion
    answered: asyncio.Future[Any] = field(default_factory=asyncio.Future)


class ToolQuestions:
    """The questions of a worker's tools, which are sent to the callers of the jobs.

    Replies may be lost, so the open questions of a job are sent again whenever the state of the job
    is sent (`Replies.tell`), for example when the caller repeats its request.
    """

    def __init__(self, say: SendQuestion) -> None:
        self._say = say
        self._open: dict[str, _OpenQuestion] = {}

    async def ask(self, job: ToolJob, text: str, schema: Mapping[str, Any] | None) -> Any:
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

    def repeat(self, job: ToolJob) -> None:
        """Send the questions of a job again, because a question or its answer may be lost."""
        for pending in self._open.values():
            if pending.job is job:
                self._say(job, "asks", pending.question)

    def close(self, job: ToolJob) -> None:
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


class Replies:
    """The replies of a worker, which ``send`` publishes, and the ``questions`` of its tools."""

    def __init__(self, worker: str, send: Callable[..., None]) -> None:
        self._worker, self._send = worker, send
        self.questions = ToolQuestions(self._ask)

    def done(self, tool: str, result: Any) -> tuple[ReplyMessage, int]:
        """Return the reply with a result, and its size in bytes. Raises `ToolResultError` if the
        result cannot be sent as JSON.
        """
        reply = self._make_reply("done", result=result)
        try:
            return reply, len(encode(reply))
        except ValueError as error:
            raise ToolResultError(f"tool {tool}: cannot send the result: {error}") from error

    def failed(self, error: Exception) -> ReplyMessage:
        """Return the reply for a call that failed."""
        return self._make_reply("failed", error=Failure.of(error))

    def refuse(self, sender: Sender, error: Exception) -> None:
        """Send an error to the sender of a request that starts no job."""
        self._reply(sender, self.failed(error))

    def tell(self, job: ToolJob) -> None:
        """Send the state of a job to its caller, unless this caller has cancelled the job."""
        if job.reply is not None or not job.cancelled:
            self._reply(job.sender, job.reply or self._make_reply("accepted"))
            self.questions.repeat(job)

    def progress(self, job: ToolJob, progress: Progress) -> None:
        """Send the progress of a running job to its caller."""
        if job.ended_at is None:
            self._reply(job.sender, self._make_reply("progress", progress=progress), keep=False)

    def _ask(
        self, job: ToolJob, state: Literal["asks", "withdrawn"], question: ToolQuestion
    ) -> None:
        if not job.cancelled:
            self._reply(job.sender, self._make_reply(state, question=question))

    def _make_reply(self, state: ReplyState, **parts: Any) -> ReplyMessage:
        return ReplyMessage(state=state, worker=self._worker, **parts)

    def _reply(self, sender: Sender, reply: ReplyMessage, *, keep: bool = True) -> None:
        if not sender.topic:
            log.warning("a request has no topic for its reply, which was dropped: %s", reply)
            return
        correlation = sender.correlation
        addressed = reply.model_copy(update={"id": correlation.decode("utf-8", "replace")})
        message = Outgoing(sender.topic, encode(addressed), int(keep), correlation=correlation)
        self._send(message, keep=keep)


class JobContext:
    """The context of a tool that runs on a worker: its progress and questions go to the caller."""

    def __init__(self, replies: Replies, job: ToolJob) -> None:
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
