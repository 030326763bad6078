"""What a client asks of its broker: to publish a message, and to subscribe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from agentrt.integrations._compat.aiomqtt import properties

_FAILURES = 128
"""Reason codes from here on say that something failed."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to publish; ``expiry`` is in seconds."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    reply_to: str | None = None
    correlation: bytes | None = None
    expiry: float | None = None

    def as_properties(self) -> Properties:
        """As properties of MQTT 5."""
        expiry = None if self.expiry is None else max(1, math.ceil(self.expiry))
        fields = {
            "ResponseTopic": self.reply_to,
            "CorrelationData": self.correlation,
            "MessageExpiryInterval": expiry,
        }
        said = {name: value for name, value in fields.items() if value is not None}
        return properties(PacketTypes.PUBLISH, **said)


async def publish(client: aiomqtt.Client, message: Outgoing) -> None:
    """Publish a message, and wait until the broker has it: for ever, if the connection breaks."""
    await client.publish(
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        message.as_properties(),
        timeout=math.inf,
    )


async def subscribe(client: aiomqtt.Client, topics: list[str]) -> None:
    """Subscribe to all. Raises `aiomqtt.MqttError` if the broker lets us not."""
    check_codes(topics, await client.subscribe([(topic, 1) for topic in topics]))


def check_codes(topics: list[str], codes: Sequence[Any]) -> None:
    """Raise `aiomqtt.MqttError` where the broker refused a subscription."""
    for topic, code in zip(topics, codes, strict=True):
        if getattr(code, "value", 0) >= _FAILURES:
            raise aiomqtt.MqttError(f"it lets nobody subscribe to {topic} here: {code}")
