"""Questions to humans at a broker: each is a retained message while it is open, and is answered
on a topic below it.

An answer that fits is taken once, whoever gives it. Where all tenants have the same topics, only
the questions of the tenant ``default`` are there: anybody at the broker may read and answer them.
"""

from __future__ import annotations

import asyncio
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
from agentrt.integrations.mqtt.messages import MAX_BYTES, AnswerMessage, Taken, decode, encode

log = logging.getLogger(__name__)
_EXPIRY_S = 600.0
"""So long a question outlives a process that was killed; an open one is published again sooner."""
_AGAIN_S = 240.0


class QuestionBoard(Protocol):
    """Open questions; in a server and a command it is `ServerQuestions`."""

    watchers: set[Callable[[], None]]

    async def listed(self) -> Sequence[Mapping[str, Any]]:
        """What is open, as JSON objects with an ``id`` and a ``tenant``."""

    async def answer_of(self, tenant: str, question_id: str, value: Any) -> Any:
        """Answer in a tenant's name. Raises a `ToolError`."""


class MqttQuestions:
    """Publishes what is open on a ``board``, and takes answers."""

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
        """Begin to connect. A broker that is not there yet is no error."""
        self._connection.open()
        self._board.watchers.add(self._changed.set)
        self._changed.set()
        self._start(self._follow())

    async def close(self) -> None:
        """Take all questions off the broker, and leave nothing behind."""
        self._board.watchers.discard(self._changed.set)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._show({})
        await self._connection.finish()

    # -- questions ---------------------------------------------------------------------

    async def _follow(self) -> None:
        """Publish what changed, and all again before it would expire."""
        while True:
            try:
                async with asyncio.timeout(_AGAIN_S):
                    await self._changed.wait()
            except TimeoutError:
                self._publish_all()
            self._changed.clear()
            try:
                messages = map(self._message, await self._board.listed())
                self._show({one.topic: one for one in messages if one is not None})
            except Exception:  # of the server's database: the next change, or the next look, tries
                log.exception("the open questions could not be published")

    def _message(self, question: Mapping[str, Any]) -> Outgoing | None:
        """A question as it is published; None for one that cannot be."""
        tenant = question["tenant"]
        if self._prefix.is_shared and tenant != "default":
            return None
        try:
            topic = self._prefix.of(tenant).question(question["id"])
        except ConfigError:
            return None
        payload = json.dumps(question, separators=(",", ":")).encode()
        if len(payload) > MAX_BYTES:
            log.warning("question %s is too large for the broker", question["id"])
            return None
        return Outgoing(topic, payload, retain=True, expiry=_EXPIRY_S)

    def _show(self, now: dict[str, Outgoing]) -> None:
        """Publish what is new, and take off what is not open any more."""
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
        given, taken = None, Taken(state="answered")
        try:
            given = decode(AnswerMessage, message.payload)
            await self._board.answer_of(tenant, question, given.answer)
        except (ValueError, ToolError) as error:
            taken = Taken(state="refused", why=str(error))
        except Exception as error:  # of the server: it is at a limit, it drains
            taken = Taken(state="refused", why=f"it could not be taken: {error}")
        if given is not None and given.reply_to:
            reply_to, taken = given.reply_to, taken.model_copy(update={"id": given.id})
        if reply_to and not set("+#") & set(reply_to):
            self._connection.send(
                Outgoing(reply_to, encode(taken), correlation=correlation, expiry=60)
            )

    def _start(self, what: Any) -> None:
        with tracking.outside():
            task: asyncio.Task[None] = asyncio.create_task(what, name="mqtt/questions")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
