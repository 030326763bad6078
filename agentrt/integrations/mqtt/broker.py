"""The address of a broker, and publishing and subscribing there."""

from __future__ import annotations

import math
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from agentrt.errors import ConfigError, shown_url, url_fault
from agentrt.integrations._compat.aiomqtt import properties
from agentrt.integrations.mqtt.topics import TopicPrefix

PASSWORD = "AGENTRT_BROKER_PASSWORD"
_FORM = "mqtt://[USER[:PASSWORD]@]HOST[:PORT][/PREFIX], or mqtts:// for TLS"


@dataclass(frozen=True, slots=True)
class Broker:
    """The address of an MQTT 5 broker, and the prefix of agentrt's topics there. The password is
    never printed.

    ``ca`` is a file with the certificates to trust instead of the system's. ``cert`` and ``key``
    are the client's certificate and key, if the broker identifies clients by certificates.
    """

    host: str
    port: int = 1883
    prefix: TopicPrefix = field(default_factory=TopicPrefix)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __str__(self) -> str:
        scheme = "mqtts" if self.tls else "mqtt"
        user = "" if self.user is None else f"{self.user}@"
        return f"{scheme}://{user}{self.host}:{self.port}"

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context; None without TLS. Raises `ConfigError` for unusable files."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(file) for file in (self.ca, self.cert, self.key) if file)
            raise ConfigError(
                f"broker {self}: cannot use {files} for TLS: {error}; give PEM files "
                "that belong together"
            ) from error
        return context


def read_broker(
    url: str,
    environment: Mapping[str, str] | None = None,
    *,
    ca: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
) -> Broker:
    """Read a broker from its URL. The password may be in the URL, or in the variable `PASSWORD` of
    ``environment``. The password in the URL takes precedence.

    Raises `ConfigError` for an invalid URL or unusable certificates. The message never has the
    password.
    """
    parts = _parts(url)
    tls = parts.scheme == "mqtts"
    if (ca or cert or key) and not tls:
        raise ConfigError("certificates need TLS; write the broker's address as mqtts://…")
    if (cert is None) != (key is None):
        raise ConfigError(
            "only the certificate or only the key of the client is set; set both, or neither"
        )
    password = (environment or {}).get(PASSWORD)
    if parts.password is not None:
        password = unquote(parts.password)
    broker = Broker(
        parts.hostname or "",
        parts.port or (8883 if tls else 1883),
        TopicPrefix(unquote(parts.path).strip("/") or TopicPrefix().text),
        unquote(parts.username) if parts.username else None,
        password,
        tls,
        ca,
        cert,
        key,
    )
    broker.context()
    return broker


def _parts(url: str) -> SplitResult:
    shown = shown_url(url)
    if (fault := url_fault(url)) is not None:
        raise ConfigError(f"{shown!r} is not a broker's address: {fault}; write {_FORM}")
    parts = urlsplit(url)
    if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname:
        raise ConfigError(f"{shown!r} is not a broker's address; write {_FORM}")
    if parts.query or parts.fragment:
        raise ConfigError(f"{shown!r} has text after the prefix; write {_FORM}")
    # The part before the slash is read as host and port, but may be a user and half a password.
    has_port = ":" in parts.netloc.rpartition("]")[2]
    if has_port and "@" not in parts.netloc and "@" in parts.path:
        raise ConfigError(
            f"{shown!r} is not a broker's address: it has an @ after a /; write / as %2F in a user "
            f"or a password, and @ as %40 in a prefix: {_FORM}"
        )
    return parts


# -- publishing and subscribing -------------------------------------------------------------


_HEADER = 9
"""Bytes of a PUBLISH packet besides its topic, properties and payload: the fixed header, the
topic's length, and the packet's identifier.
"""
_LONGEST_EXPIRY_S = 2**32 - 1
"""The longest message expiry of MQTT 5, in seconds."""
_FAILURES = 128
"""The smallest reason code of MQTT 5 that means a failure."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to publish. ``expiry`` is in seconds; a longer time than MQTT has means never."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    reply_to: str | None = None
    correlation: bytes | None = None
    expiry: float | None = None

    def as_properties(self) -> Properties:
        """Return the MQTT 5 properties of the message."""
        seconds = math.inf if self.expiry is None else self.expiry
        expiry = None if seconds > _LONGEST_EXPIRY_S else max(1, math.ceil(seconds))
        fields = {
            "ResponseTopic": self.reply_to,
            "CorrelationData": self.correlation,
            "MessageExpiryInterval": expiry,
        }
        present = {name: value for name, value in fields.items() if value is not None}
        return properties(PacketTypes.PUBLISH, **present)

    def size(self) -> int:
        """Return the size of the message's packet in bytes, with the largest possible header."""
        own = len(self.topic.encode()) + len(self.payload)
        return _HEADER + own + len(self.as_properties().pack())  # type: ignore[no-untyped-call]  # paho


async def publish(client: aiomqtt.Client, message: Outgoing) -> None:
    """Publish a message, and wait until the broker has confirmed it, without a timeout. Cancel this
    call if the connection breaks.
    """
    await client.publish(
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        message.as_properties(),
        timeout=math.inf,
    )


async def subscribe(client: aiomqtt.Client, topics: list[str]) -> None:
    """Subscribe to topics. Raises `aiomqtt.MqttError` if the broker rejects a subscription."""
    check_codes(topics, await client.subscribe([(topic, 1) for topic in topics]))


def check_codes(topics: list[str], codes: Sequence[Any]) -> None:
    """Raise `aiomqtt.MqttError` if the broker rejected one of the subscriptions."""
    for topic, code in zip(topics, codes, strict=True):
        if getattr(code, "value", 0) >= _FAILURES:
            raise aiomqtt.MqttError(f"the broker rejected the subscription to {topic}: {code}")
