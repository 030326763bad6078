"""The caller's state of calls in flight, and of the workers that offer tools."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiomqtt

from agentrt.errors import ToolArgumentsError, ToolError
from agentrt.integrations.mqtt.broker import Outgoing
from agentrt.integrations.mqtt.messages import (
    Announcement,
    CallMessage,
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
class KnownWorker:
    """A worker that has announced itself. ``calls`` is the number of this client's calls that the
    worker has now.

    After the connection to the broker breaks, a worker is ``unsure`` until it announces itself
    again.
    """

    name: str
    tools: Mapping[str, Tool] = field(default_factory=dict)
    calls: int = 0
    unsure: bool = False


@dataclass(slots=True)
class TenantWorkers:
    """The workers of one tenant, by name."""

    workers: dict[str, KnownWorker] = field(default_factory=dict)

    def announce(self, name: str, announcement: Announcement) -> None:
        """Record the tools that a worker offers from now on."""
        worker = self.workers.setdefault(name, KnownWorker(name))
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

    def offering(self, tool: str) -> list[KnownWorker]:
        """Return the workers that offer a tool: first the workers that are not ``unsure``, then the
        others; within both groups, workers with fewer calls come first.
        """
        fitting = [worker for worker in self.workers.values() if tool in worker.tools]
        return sorted(fitting, key=lambda worker: (worker.unsure, worker.calls))

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


class CallQuestions:
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
class ToolAttempt:
    """An attempt at a call. It ends when the future `answer` is done.

    ``worker`` is the worker that has the call, if known. ``silent`` is the number of intervals
    (``resend_s`` of `MqttTools`) that have passed since the last reply of a worker.
    ``on_first_reply`` is called once. ``questions`` are the questions of the tool. ``again`` is the
    timer that sends the call again.
    """

    request: ToolRequest
    context: ToolContext
    workers: TenantWorkers
    topics: Topics
    reply_to: str
    deadline: float | None
    questions: CallQuestions
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
        for name, change in ((self.worker, -1), (worker, 1)):
            if name is not None and name in self.workers.workers:
                self.workers.workers[name].calls += change
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


def call_id_of(message: aiomqtt.Message) -> str:
    """Return the id of the call to which a reply belongs; "" if the reply has none."""
    data = getattr(message.properties, "CorrelationData", None)
    if data is not None:
        return bytes(data).decode("utf-8", "replace")
    try:
        return decode(ReplyMessage, message.payload).id
    except ValueError:
        return ""
