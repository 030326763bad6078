"""What a worker was asked to do, what it remembers of what is over, what it says to those who call
it, and what its tools can say while they run.
"""

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
    Failure,
    Reply,
    Request,
    ToolAnswer,
    ToolQuestion,
    encode,
)

_KEPT = 10_000
_KEPT_BYTES = 64 << 20
_KEPT_S = 900.0


@dataclass(frozen=True, slots=True)
class Sender:
    """Where replies to one attempt go."""

    topic: str
    correlation: bytes

    @classmethod
    def of(cls, message: aiomqtt.Message, request: Request | None) -> Sender:
        """The properties of MQTT 5 say it, or the request of a client of MQTT 3."""
        topic = getattr(message.properties, "ResponseTopic", None)
        data = getattr(message.properties, "CorrelationData", None)
        if topic is None and request is not None:
            topic, data = request.reply_to, request.id.encode()
        return cls(topic or "", bytes(data or b""))


@dataclass(slots=True, eq=False)
class Job:
    """One call, whose attempts share its key. ``deadline`` is on the event loop's clock.

    Once it is over, ``reply`` says how, and has ``size`` bytes.
    """

    request: Request
    sender: Sender
    deadline: float | None
    task: asyncio.Task[None] | None = None
    reply: Reply | None = None
    size: int = 0
    ended_at: float | None = None
    cancelled: bool = False

    @property
    def failed(self) -> Failure | None:
        """Why it has no result, if that is so."""
        return None if self.reply is None else self.reply.error


class Jobs:
    """Jobs by key: all that run, and of those that ended the last ones, for some minutes."""

    def __init__(self) -> None:
        self.live: dict[str, Job] = {}
        self._ended: OrderedDict[str, Job] = OrderedDict()
        self._bytes = 0

    def find(self, request: Request, now: float) -> Job | None:
        """The job that this request asks for again. A new attempt at one that failed is new."""
        self._forget(now)
        known = self.live.get(request.key) or self._ended.get(request.key)
        if known is None or known.ended_at is None:
            return known
        is_over = known.failed is None and not known.cancelled
        return known if is_over or request.attempt <= known.request.attempt else None

    def begin(self, job: Job) -> None:
        """It is to run."""
        self.live[job.request.key] = job

    def end(self, job: Job, now: float) -> None:
        """It is over."""
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
Said = Literal["accepted", "progress", "asks", "withdrawn", "done", "failed"]


Say = Callable[[Job, Literal["asks", "withdrawn"], ToolQuestion], None]
"""Sends a reply with a question."""


@dataclass(slots=True, eq=False)
class _Open:
    job: Job
    question: ToolQuestion
    answered: asyncio.Future[Any] = field(default_factory=asyncio.Future)


class ToolQuestions:
    """The questions of one worker's tools: each is asked through its job's caller, who answers.

    Any reply may be lost: a question is sent again with each later one, until it is answered.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self._open: dict[str, _Open] = {}

    async def ask(self, job: Job, text: str, schema: Mapping[str, Any] | None) -> Any:
        """The answer. Raises a `ToolError` where there is none."""
        if job.ended_at is not None:
            raise QuestionClosedError("the tool's call is over")
        form = None if schema is None else dict(schema)
        one = _Open(job, ToolQuestion(id=uuid.uuid4().hex, text=text, schema=form))
        self._say(job, "asks", one.question)
        self._open[one.question.id] = one
        try:
            return await one.answered
        except asyncio.CancelledError:
            self._say(job, "withdrawn", ToolQuestion(id=one.question.id))
            raise
        finally:
            del self._open[one.question.id]

    def repeat(self, job: Job) -> None:
        """Ask again: what was asked, or answered, may be lost."""
        for one in self._open.values():
            if one.job is job:
                self._say(job, "asks", one.question)

    def close(self, job: Job) -> None:
        """The job is over: whoever asks on, in a thread that was left behind, gets no answer."""
        for one in self._open.values():
            if one.job is job and not one.answered.done():
                one.answered.set_exception(QuestionClosedError("the tool's call is over"))

    def take(self, given: ToolAnswer) -> None:
        """The first answer counts, and none to what is not asked any more."""
        one = self._open.get(given.question)
        if one is None or one.answered.done():
            return
        if given.error is not None:
            one.answered.set_exception(given.error.error(one.job.request.tool))
        else:
            one.answered.set_result(given.answer)


class Replies:
    """The replies of one worker, which ``send`` puts on their way; ``questions`` are its tools'."""

    def __init__(self, worker: str, send: Callable[..., None]) -> None:
        self._worker, self._send = worker, send
        self.questions = ToolQuestions(self._ask)

    def done(self, tool: str, result: Any) -> tuple[Reply, int]:
        """The reply with a result, and its size (bytes). Raises `ToolResultError`."""
        reply = self._said("done", result=result)
        try:
            return reply, len(encode(reply))
        except ValueError as error:
            raise ToolResultError(f"tool {tool}: its result cannot be sent: {error}") from error

    def failed(self, error: Exception) -> Reply:
        """The reply that says why there is no result."""
        return self._said("failed", error=Failure.of(error))

    def refuse(self, sender: Sender, error: Exception) -> None:
        """Answer a request that is no job's."""
        self._reply(sender, self.failed(error))

    def tell(self, job: Job) -> None:
        """Say how a job stands."""
        if job.reply is not None or not job.cancelled:
            self._reply(job.sender, job.reply or self._said("accepted"))
            self.questions.repeat(job)

    def progress(self, job: Job, progress: Progress) -> None:
        """Say how far a job is."""
        if job.ended_at is None:
            self._reply(job.sender, self._said("progress", progress=progress), keep=False)

    def _ask(self, job: Job, state: Literal["asks", "withdrawn"], question: ToolQuestion) -> None:
        if not job.cancelled:
            self._reply(job.sender, self._said(state, question=question))

    def _said(self, state: Said, **parts: Any) -> Reply:
        return Reply(state=state, worker=self._worker, **parts)

    def _reply(self, sender: Sender, reply: Reply, *, keep: bool = True) -> None:
        if not sender.topic:
            log.warning("a request says nowhere where its reply goes: %s", reply)
            return
        correlation = sender.correlation
        said = reply.model_copy(update={"id": correlation.decode("utf-8", "replace")})
        message = Outgoing(sender.topic, encode(said), int(keep), correlation=correlation)
        self._send(message, keep=keep)


class JobContext:
    """What a tool of a worker can say while it runs."""

    def __init__(self, replies: Replies, job: Job) -> None:
        self._replies, self._job = replies, job
        self._loop = asyncio.get_running_loop()

    def waits(self, why: str) -> None:
        """Its caller knows it as accepted."""

    def starts(self, attempt: int) -> None:
        """The same."""

    def progress(self, progress: Progress) -> None:
        self._loop.call_soon_threadsafe(self._replies.progress, self._job, progress)

    async def ask(self, question: str, schema: Mapping[str, Any] | None = None) -> Any:
        return await self._replies.questions.ask(self._job, question, schema)
