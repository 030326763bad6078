"""Messages on a broker's topics as events for programs."""

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
"""Seconds for which the broker keeps events while the connection is broken."""


@dataclass(slots=True, eq=False)
class _Filter:
    """A subscription at the broker, which several programs may share. ``number`` is its MQTT
    subscription identifier. The first ``cut`` characters of each topic are removed for programs.
    """

    topic: str
    number: int
    cut: int
    subscriptions: set[MqttSubscription] = field(default_factory=set)

    async def subscribe(self, client: aiomqtt.Client) -> None:
        number = properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=self.number)
        # A retained message is older than the subscription, so it is not an event.
        options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        codes = await client.subscribe(self.topic, options=options, properties=number)
        check_codes([self.topic], codes)


class MqttSubscription(Subscription):
    """A program's share in a subscription at the broker."""

    def __init__(self, source: MqttEvents, topic_filter: _Filter) -> None:
        super().__init__()
        self._source, self._filter = source, topic_filter
        topic_filter.subscriptions.add(self)

    async def close(self) -> None:
        await self._source._leave(self, self._filter)


class MqttEvents(EventSource):
    """A source of events from a broker's messages. Each event that is published with QoS 1 or 2 is
    delivered at least once, and in order within a topic. But events are dropped (`Event.dropped`)
    if they are too large, or if too many events wait for a program.

    Such messages that are published while the connection is broken arrive later, unless the broker
    itself stopped, or the connection is broken for more than 300 seconds. A subscription waits up
    to ``connect_timeout`` seconds for the broker.
    """

    name = "mqtt"

    def __init__(self, broker: Broker, *, connect_timeout: float = 5.0) -> None:
        self._prefix, self._connect_timeout = broker.prefix, connect_timeout
        self._numbers = count(1)
        self._filters: dict[str, _Filter] = {}
        # Topics that no program waits for any more, but that the broker may still deliver.
        self._left: set[str] = set()
        self._lock = asyncio.Lock()
        self._connection = Connection(
            broker,
            f"agentrt-events-{uuid.uuid4().hex[:12]}",
            on_message=self._saw,
            on_connect=self._again,
            on_up=self._unsubscribe_left,
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
            topic_filter = self._filters.get(full)
            if topic_filter is None:
                topic_filter = _Filter(full, next(self._numbers), len(below))
                try:
                    await self._connection.ask(self._connect_timeout, topic_filter.subscribe)
                except BaseException:  # the broker may have the subscription already
                    self._unsubscribe(full)
                    raise
                self._filters[full] = topic_filter
            return MqttSubscription(self, topic_filter)

    async def refuse(self, event: Event, why: str, program: str, tenant: str = "default") -> None:
        payload, form = event.payload, "payload"
        if isinstance(payload, bytes):
            payload, form = b64encode(payload).decode(), "base64"
        letter = {"topic": event.topic, form: payload, "program": program, "reason": why}
        topic = self._prefix.of(tenant).dead_letters
        self._connection.send(Outgoing(topic, json.dumps(letter).encode()))

    async def _leave(self, subscription: MqttSubscription, topic_filter: _Filter) -> None:
        topic_filter.subscriptions.discard(subscription)
        async with self._lock:
            if (
                topic_filter.subscriptions
                or self._filters.get(topic_filter.topic) is not topic_filter
            ):
                return
            del self._filters[topic_filter.topic]  # so a new connection does not subscribe again
            self._unsubscribe(topic_filter.topic)

    def _unsubscribe(self, topic: str) -> None:
        """Unsubscribe without waiting. If the connection is broken, or breaks before the broker has
        answered, unsubscribe on the next connection, because the broker keeps the subscription.
        """
        self._left.add(topic)
        self._connection.tell(partial(self._unsubscribe_now, [topic]))

    def _unsubscribe_left(self) -> None:
        if left := self._left - self._filters.keys():
            self._connection.tell(partial(self._unsubscribe_now, [*left]))

    async def _unsubscribe_now(self, topics: list[str], client: aiomqtt.Client) -> None:
        await client.unsubscribe(topics)
        self._left.difference_update(topics)

    async def _again(self, client: aiomqtt.Client) -> None:
        for topic_filter in tuple(self._filters.values()):
            await topic_filter.subscribe(client)

    def _saw(self, message: aiomqtt.Message) -> None:
        numbers = getattr(message.properties, "SubscriptionIdentifier", [])
        for topic_filter in tuple(self._filters.values()):
            if topic_filter.number in numbers:
                _hand_on(message, topic_filter)


def _hand_on(message: aiomqtt.Message, topic_filter: _Filter) -> None:
    payload: Any = message.payload or b""
    topic = str(message.topic)[topic_filter.cut :]
    event = None if len(payload) > MAX_BYTES else Event(topic, read_payload(payload))
    for subscription in topic_filter.subscriptions:
        if event is None:
            subscription.drop()
        else:
            subscription.put(event)


def read_payload(payload: bytes) -> Any:
    """Decode a payload: as JSON if possible, else as text if possible, else return the bytes."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return payload
    try:
        return parse_json(text)
    except ValueError:
        return text
