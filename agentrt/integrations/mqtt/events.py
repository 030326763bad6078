"""Events of a broker's topics, for programs that wait for them."""

from __future__ import annotations

import asyncio
import json
import uuid
from base64 import b64encode
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.subscribeoptions import SubscribeOptions

from agentrt.files import parse_json
from agentrt.integrations._compat.aiomqtt import properties
from agentrt.integrations.mqtt.broker import Broker, Outgoing, check_codes
from agentrt.integrations.mqtt.connection import Connection
from agentrt.integrations.mqtt.messages import MAX_BYTES
from agentrt.integrations.mqtt.topics import check_filter
from agentrt.interrupts.events import Event, EventSource, Subscription

_SESSION_S = 300
"""So long the broker keeps events while the connection is broken."""


@dataclass(slots=True, eq=False)
class _Filter:
    """One subscription at the broker, and who is behind it. ``number`` is its identifier;
    of topics, the first ``cut`` characters are left out.
    """

    topic: str
    number: int
    cut: int
    behind: set[MqttSubscription] = field(default_factory=set)

    async def subscribe(self, client: aiomqtt.Client) -> None:
        number = properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=self.number)
        # A retained message is from before: no event.
        options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        codes = await client.subscribe(self.topic, options=options, properties=number)
        check_codes([self.topic], codes)


class MqttSubscription(Subscription):
    """One program's part in a subscription."""

    def __init__(self, source: MqttEvents, behind: _Filter) -> None:
        super().__init__()
        self._source, self._behind = source, behind
        behind.behind.add(self)

    async def close(self) -> None:
        await self._source._leave(self, self._behind)


class MqttEvents(EventSource):
    """Messages at a broker as events, at least once each, in the order of their topic.

    What is published while the connection is broken comes afterwards, unless the broker itself
    was gone. A subscription waits ``connect_timeout`` seconds for the broker.
    """

    name = "mqtt"

    def __init__(self, broker: Broker, *, connect_timeout: float = 5.0) -> None:
        self._prefix, self._connect_timeout = broker.prefix, connect_timeout
        self._numbers = count(1)
        self._filters: dict[str, _Filter] = {}
        self._lock = asyncio.Lock()
        self._connection = Connection(
            broker,
            f"agentrt-events-{uuid.uuid4().hex[:12]}",
            on_message=self._saw,
            on_connect=self._again,
            session_s=_SESSION_S,
        )

    async def open(self) -> None:
        self._connection.open()

    async def close(self) -> None:
        await self._connection.finish()

    async def subscribe(self, topic: str, tenant: str = "default") -> MqttSubscription:
        check_filter(topic)
        below = "" if self._prefix.is_shared else f"{self._prefix.of(tenant).events}/"
        full = below + topic
        async with self._lock:
            one = self._filters.get(full)
            if one is None:
                one = _Filter(full, next(self._numbers), len(below))
                try:
                    await self._connection.ask(self._connect_timeout, one.subscribe)
                except asyncio.CancelledError:  # the broker has it already, or gets it yet
                    self._connection.tell(partial(_unsubscribe, full))
                    raise
                self._filters[full] = one
            return MqttSubscription(self, one)

    async def refuse(self, event: Event, why: str, program: str, tenant: str = "default") -> None:
        payload, form = event.payload, "payload"
        if isinstance(payload, bytes):
            payload, form = b64encode(payload).decode(), "base64"
        letter = {"topic": event.topic, form: payload, "program": program, "reason": why}
        topic = self._prefix.of(tenant).dead_letters
        self._connection.send(Outgoing(topic, json.dumps(letter).encode()))

    async def _leave(self, subscription: MqttSubscription, one: _Filter) -> None:
        one.behind.discard(subscription)
        async with self._lock:
            if one.behind or self._filters.get(one.topic) is not one:
                return
            del self._filters[one.topic]  # without a connection, it is not made again
            self._connection.tell(partial(_unsubscribe, one.topic))

    async def _again(self, client: aiomqtt.Client) -> None:
        for one in tuple(self._filters.values()):
            await one.subscribe(client)

    def _saw(self, message: aiomqtt.Message) -> None:
        numbers = getattr(message.properties, "SubscriptionIdentifier", [])
        for one in tuple(self._filters.values()):
            if one.number in numbers:
                _hand_on(message, one)


async def _unsubscribe(topic: str, client: aiomqtt.Client) -> None:
    await client.unsubscribe(topic)


def _hand_on(message: aiomqtt.Message, one: _Filter) -> None:
    payload: Any = message.payload or b""
    topic = str(message.topic)[one.cut :]
    event = None if len(payload) > MAX_BYTES else Event(topic, read_payload(payload))
    for subscription in one.behind:
        if event is None:
            subscription.drop()
        else:
            subscription.put(event)


def read_payload(payload: bytes) -> Any:
    """A JSON value; a text, or bytes, if it is none."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return payload
    try:
        return parse_json(text)
    except ValueError:
        return text
