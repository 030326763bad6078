"""A call under way, as the one who made it knows it."""

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
    Failure,
    Reply,
    Request,
    ToolAnswer,
    ToolQuestion,
    decode,
    encode,
)
from agentrt.integrations.mqtt.topics import Topics
from agentrt.interrupts import Tool, ToolContext, ToolRequest, ToolTransport


@dataclass(slots=True)
class Announced:
    """One worker. ``calls`` are those that it has now from this client.

    It is ``unsure`` after the connection to the broker broke, until it announces itself again.
    """

    name: str
    tools: Mapping[str, Tool] = field(default_factory=dict)
    calls: int = 0
    unsure: bool = False


@dataclass(slots=True)
class Fleet:
    """The workers of one tenant, by name."""

    workers: dict[str, Announced] = field(default_factory=dict)

    def announce(self, name: str, said: Announcement) -> None:
        """A worker says what it offers now."""
        worker = self.workers.setdefault(name, Announced(name))
        worker.tools = {} if said.draining else {one.name: one.tool() for one in said.tools}
        worker.unsure = False

    def doubt(self) -> None:
        """Nobody knows who is still there."""
        for worker in self.workers.values():
            worker.unsure = True

    def doubtful(self) -> list[str]:
        """Who has not announced itself since `doubt`."""
        return [name for name, worker in self.workers.items() if worker.unsure]

    def offering(self, tool: str) -> list[Announced]:
        """Who offers a tool; those that are surely there come first, then the least busy."""
        fitting = [worker for worker in self.workers.values() if tool in worker.tools]
        return sorted(fitting, key=lambda worker: (worker.unsure, worker.calls))

    def tools(self, transport: ToolTransport) -> list[Tool]:
        """All tools that are offered, reached through ``transport``."""
        names = sorted({name for worker in self.workers.values() for name in worker.tools})
        return [self._tool(name, transport) for name in names]

    def _tool(self, name: str, transport: ToolTransport) -> Tool:
        """One tool of several workers: idempotent if they all say so."""
        first, *others = (worker.tools[name] for worker in self.offering(name))
        joined = first.but(idempotent=all(one.options.idempotent for one in (first, *others)))
        joined.transport = transport
        return joined


class CallQuestions:
    """What the worker of one call asks a human; ``give`` sends it the message with an answer."""

    def __init__(self, context: ToolContext, give: Callable[[str, bytes], None]) -> None:
        self._context, self._give = context, give
        self._answers: dict[str, asyncio.Task[bytes]] = {}

    def take(self, worker: str, question: ToolQuestion, *, asks: bool) -> None:
        """A reply with a question came. If the tool ``asks``, ask a human once, and give the answer
        each time; else it does not wait for the answer any more.
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
            large = ToolArgumentsError(f"the answer cannot be sent: {error}")
            return encode(ToolAnswer(question=question.id, error=Failure.of(large)))


@dataclass(slots=True, eq=False)
class ToolAttempt:
    """One attempt at a call, which `answer` ends.

    ``worker`` is who has it, as far as is known. ``silent`` counts how often it was sent since a
    worker last sent a reply. ``on_first_reply`` is called once. ``questions`` are those of its
    tool, ``again`` sends it again.
    """

    request: ToolRequest
    context: ToolContext
    fleet: Fleet
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
        """The tool's name at its workers."""
        return self.request.tool.remote

    @property
    def is_idempotent(self) -> bool:
        """Whether it may run twice."""
        return self.request.tool.options.idempotent

    def encoded(self) -> bytes:
        """The message for a worker. Raises `ToolArgumentsError` for what cannot be sent."""
        asked = self.request
        try:
            return encode(
                Request(
                    tool=self.tool,
                    key=asked.key or self.id,
                    arguments=dict(asked.arguments),
                    attempt=asked.attempt,
                    program=asked.program_id,
                    tenant=asked.tenant,
                    reply_to=self.reply_to,
                    id=self.id,
                )
            )
        except ValueError as error:
            raise ToolArgumentsError(
                f"tool {self.tool}: its arguments cannot be sent: {error}", name=self.tool
            ) from error

    def outgoing(self, now: float) -> Outgoing:
        """The message for the worker that has it, or for any that offers the tool."""
        topic = self.topics.calls(self.tool)
        if self.worker is not None:
            topic = self.topics.inbox(self.worker)
        left = None if self.deadline is None else max(0.0, self.deadline - now)
        return Outgoing(
            topic, self.payload, reply_to=self.reply_to, correlation=self.id.encode(), expiry=left
        )

    def assign(self, worker: str | None) -> None:
        """This worker has it now."""
        for name, change in ((self.worker, -1), (worker, 1)):
            if name is not None and name in self.fleet.workers:
                self.fleet.workers[name].calls += change
        self.worker = worker

    def replied(self) -> None:
        """A worker sent something."""
        self.silent = 0
        if self.on_first_reply is not None:
            self.on_first_reply()
            self.on_first_reply = None

    def succeed(self, result: Any) -> None:
        """The first answer counts."""
        if not self.answer.done():
            self.answer.set_result(result)

    def fail(self, error: ToolError) -> None:
        """The same for one that failed."""
        if not self.answer.done():
            self.answer.set_exception(error)


def call_id_of(message: aiomqtt.Message) -> str:
    """The id of the call that a reply is for."""
    data = getattr(message.properties, "CorrelationData", None)
    if data is not None:
        return bytes(data).decode("utf-8", "replace")
    try:
        return decode(Reply, message.payload).id
    except ValueError:
        return ""
