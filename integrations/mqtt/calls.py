"""A call under way, as the one who made it knows it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiomqtt

from agentrt.errors import ToolArgumentsError, ToolError
from agentrt.integrations.mqtt.asking import Asked
from agentrt.integrations.mqtt.fleet import Fleet
from agentrt.integrations.mqtt.messages import Reply, Request, decode, encode
from agentrt.integrations.mqtt.outgoing import Outgoing
from agentrt.integrations.mqtt.topics import Topics
from agentrt.interrupts import ToolContext, ToolRequest


@dataclass(slots=True, eq=False)
class ToolAttempt:
    """One attempt at a call, which `answer` ends.

    ``worker`` is who has it, as far as is known. ``silent`` counts how often it was sent since a
    worker was last heard of. ``heard`` is called at the first word. ``asked`` has what its
    tool asks, ``again`` sends it again.
    """

    request: ToolRequest
    context: ToolContext
    fleet: Fleet
    topics: Topics
    reply_to: str
    deadline: float | None
    asked: Asked
    heard: Callable[[], None] | None = None
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

    def hear(self) -> None:
        """A worker said something."""
        self.silent = 0
        if self.heard is not None:
            self.heard()
            self.heard = None

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
