"""Questions to humans at a broker: each open question is a retained message, and is answered on a
topic below the topic of the message.

The first answer that fits a question's form is accepted. If all tenants share the same topics, only
the questions of the tenant ``default`` are published, because every client of the broker can read
and answer them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import aiomqtt

from agentrt import tracking
from agentrt.errors import ConfigError, ToolError
from agentrt.integrations.mqtt.broker import Broker, Outgoing, subscribe
from agentrt.integrations.mqtt.connection import Connection
from agentrt.integrations.mqtt.messages import (
    MAX_BYTES,
    AnswerMessage,
    AnswerOutcome,
    decode,
    encode,
)

log = logging.getLogger(__name__)
_EXPIRY_S = 600.0
"""Seconds after which the broker drops a question, if the process that published the question was
killed.
"""
_AGAIN_S = 240.0
"""Seconds between publications of an open question, so that the broker does not drop it."""


class QuestionBoard(Protocol):
    """The open questions of a server or a command, implemented by `ServerQuestions`."""

    watchers: set[Callable[[], None]]

    async def listed(self) -> Sequence[Mapping[str, Any]]:
        """Return the open questions as JSON objects with an ``id`` and a ``tenant``."""

    async def answer_of(self, tenant: str, question_id: str, value: Any) -> Any:
        """Answer a tenant's question. Raises a `ToolError` if the answer is not accepted."""


class MqttQuestions:
    """A publisher of the open questions of ``board``. It also receives the answers, and passes them
    to ``board``.
    """

    def __init__(self, broker: Broker, board: QuestionBoard) -> None:
        self._prefix, self._board = broker.prefix, board
        self._published: dict[str, Outgoing] = {}
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._connection = Connection(
            broker,
            f"agentrt-questions-{uuid.uuid4().hex[:12]}",
            on_message=self._saw,
            on_connect=self._greet,
            on_up=self._publish_all,
        )

    async def open(self) -> None:
        """Start connecting. A broker that cannot be reached yet is not an error."""
        self._connection.open()
        self._board.watchers.add(self._changed.set)
        self._changed.set()
        self._start(self._follow())

    async def close(self) -> None:
        """Remove all questions from the broker, and disconnect."""
        self._board.watchers.discard(self._changed.set)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._show({})
        await self._connection.finish()

    # -- questions ---------------------------------------------------------------------

    async def _follow(self) -> None:
        """Publish changes, and publish all open questions again before they expire."""
        loop = asyncio.get_running_loop()
        again_at = loop.time() + _AGAIN_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(again_at):
                    await self._changed.wait()
            if loop.time() >= again_at:  # also if changes come all the time
                self._publish_all()
                again_at = loop.time() + _AGAIN_S
            self._changed.clear()
            try:
                messages = map(self._message, await self._board.listed())
                self._show({each.topic: each for each in messages if each is not None})
            except Exception:  # an error of the server's database: the next change tries again
                log.exception("cannot publish the open questions")

    def _message(self, question: Mapping[str, Any]) -> Outgoing | None:
        """Return the message that publishes a question; None if the question is not published."""
        tenant = question["tenant"]
        if self._prefix.is_shared and tenant != "default":
            return None
        try:
            topic = self._prefix.of(tenant).question(question["id"])
        except ConfigError:
            return None
        payload = json.dumps(question, separators=(",", ":")).encode()
        if len(payload) > MAX_BYTES:
            log.warning(
                "question %s is not published: it has %d bytes, and at most %d are allowed",
                question["id"],
                len(payload),
                MAX_BYTES,
            )
            return None
        return Outgoing(topic, payload, retain=True, expiry=_EXPIRY_S)

    def _show(self, now: dict[str, Outgoing]) -> None:
        """Publish new questions, and remove questions that are no longer open."""
        for topic in self._published.keys() - now.keys():
            self._connection.send(Outgoing(topic, b"", retain=True))
        for topic in now.keys() - self._published.keys():
            self._connection.send(now[topic], keep=False)
        self._published = now

    def _publish_all(self) -> None:
        for message in self._published.values():
            self._connection.send(message, keep=False)

    # -- answers -----------------------------------------------------------------------

    async def _greet(self, client: aiomqtt.Client) -> None:
        await subscribe(client, [self._prefix.all().answers("+")])

    def _saw(self, message: aiomqtt.Message) -> None:
        tenant, (_, question, _) = self._prefix.read(str(message.topic))
        self._start(self._answer(tenant, question, message))

    async def _answer(self, tenant: str, question: str, message: aiomqtt.Message) -> None:
        reply_to = getattr(message.properties, "ResponseTopic", "")
        correlation = getattr(message.properties, "CorrelationData", None)
        answer, outcome = None, AnswerOutcome(state="answered")
        try:
            answer = decode(AnswerMessage, message.payload)
            await self._board.answer_of(tenant, question, answer.answer)
        except (ValueError, ToolError) as error:
            outcome = AnswerOutcome(state="refused", why=str(error))
        except Exception as error:  # an error of the server, which may be at a limit or draining
            outcome = AnswerOutcome(state="refused", why=f"cannot accept the answer: {error}")
        if answer is not None and answer.reply_to:
            reply_to, outcome = answer.reply_to, outcome.model_copy(update={"id": answer.id})
        if reply_to and not set("+#") & set(reply_to):
            self._connection.send(
                Outgoing(reply_to, encode(outcome), correlation=correlation, expiry=60)
            )

    def _start(self, work: Any) -> None:
        with tracking.outside():
            task: asyncio.Task[None] = asyncio.create_task(work, name="mqtt/questions")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
