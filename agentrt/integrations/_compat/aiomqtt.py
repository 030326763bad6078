"""Replacements for parts of aiomqtt: connecting, receiving, publishing, and the DISCONNECT packet.

aiomqtt's own code needs a task and several iterations of the event loop for each message, which
takes half of the time of a round trip. It also does not notice the end of a connection that a
broker accepts and ends in the same step.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import aiomqtt
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

VERSIONS = "aiomqtt 2.5"


def properties(packet: int, **fields: Any) -> Properties:
    """Make the MQTT 5 properties of a packet type (`PacketTypes`). Fields have paho's names."""
    made = Properties(packet)  # type: ignore[no-untyped-call]  # paho has no types here
    for name, value in fields.items():
        setattr(made, name, value)
    return made


async def connect(client: Any) -> int | None:
    """Connect ``client``. Return the size of the largest packet that the broker accepts, in bytes;
    None means no limit. Raises `aiomqtt.MqttError`, also for a connection that the broker accepts
    and ends in one step, for example because another client has the same id. aiomqtt does not
    notice the end of such a connection.
    """
    ended: asyncio.Future[None] = client._disconnected
    ended.add_done_callback(_seen)
    paho, largest = client._client, list[int | None]()
    on_connect = paho.on_connect

    def connected(*arguments: Any) -> None:
        largest.append(getattr(arguments[-1], "MaximumPacketSize", None))
        on_connect(*arguments)

    paho.on_connect = connected
    await client.__aenter__()
    if ended.done():
        await client.__aexit__(None, None, None)
        raise ended.exception() or aiomqtt.MqttError("the broker ended the connection at once")
    return largest[-1]


def _seen(ended: asyncio.Future[None]) -> None:
    """Mark the error of a future as retrieved: not every connection's end is awaited."""
    if not ended.cancelled():
        ended.exception()


def deliver(client: Any, on_message: Callable[[aiomqtt.Message], None]) -> None:
    """Call ``on_message``, which must be fast and never raise, with each message that arrives."""

    def received(paho: Any, data: Any, message: Any) -> None:
        on_message(aiomqtt.Message._from_paho_message(message))

    client._client.on_message = received


def publish_now(
    client: Any,
    topic: str,
    payload: bytes,
    qos: int,
    retain: bool,
    properties: Properties,
    published: Callable[[], None],
) -> None:
    """Publish a message. ``published`` is called when the broker has confirmed it; with
    ``qos`` 0, when it was sent.

    Raises `aiomqtt.MqttError` without a connection, and `ValueError` for an invalid topic.
    """
    info = client._client.publish(topic, payload, qos, retain, properties)
    if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
        raise aiomqtt.MqttCodeError(info.rc, "Could not publish message")
    client._pending_publishes[info.mid] = SimpleNamespace(set=published)


def end_session(client: Any) -> None:
    """Make the broker drop the client's session when the client disconnects by itself."""
    forget = properties(PacketTypes.DISCONNECT, SessionExpiryInterval=0)
    paho = client._client
    paho.disconnect = functools.partial(paho.disconnect, properties=forget)
