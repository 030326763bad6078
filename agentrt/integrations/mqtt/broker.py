"""How a broker is reached, and what a client asks of it: to publish a message, and to subscribe."""

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

from agentrt.errors import ConfigError
from agentrt.integrations._compat.aiomqtt import properties
from agentrt.integrations.mqtt.topics import Prefix

PASSWORD = "AGENTRT_BROKER_PASSWORD"
_FORM = "mqtt://[USER[:PASSWORD]@]HOST[:PORT][/PREFIX], or mqtts:// for TLS"


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker of MQTT 5, and the prefix of our topics there. Its password is never printed.

    ``ca`` is a file with the certificates to trust in place of the system's; ``cert`` and ``key``
    are those of a client that the broker knows by its certificate.
    """

    host: str
    port: int = 1883
    prefix: Prefix = field(default_factory=Prefix)
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
        """What TLS needs; None without it. Raises `ConfigError` for files that do not fit."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(one) for one in (self.ca, self.cert, self.key) if one)
            raise ConfigError(f"broker {self}: TLS with {files}: {error}") from error
        return context


def read_broker(
    url: str,
    environment: Mapping[str, str] | None = None,
    *,
    ca: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
) -> Broker:
    """The broker of a URL; its password may be in the environment instead.

    Raises `ConfigError` for what cannot be, without the password in it.
    """
    parts = _parts(url)
    tls = parts.scheme == "mqtts"
    if (ca or cert or key) and not tls:
        raise ConfigError("certificates are for TLS: give the broker as mqtts://…")
    if (cert is None) != (key is None):
        raise ConfigError("a client's certificate needs its key, and the key its certificate")
    password = (environment or {}).get(PASSWORD)
    if parts.password is not None:
        password = unquote(parts.password)
    broker = Broker(
        parts.hostname or "",
        parts.port or (8883 if tls else 1883),
        Prefix(unquote(parts.path).strip("/") or Prefix().text),
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
    shown = f"{url.partition('://')[0]}://…{url.rpartition('@')[2]}" if "@" in url else url
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises for one that is no number
    except ValueError as error:
        raise ConfigError(f"{shown!r} is no broker: {error}; give {_FORM}") from error
    if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname:
        raise ConfigError(f"{shown!r} is no broker: give {_FORM}")
    if parts.query or parts.fragment:
        raise ConfigError(f"{shown!r}: nothing may come behind the prefix; give {_FORM}")
    return parts


# -- what a client asks of it: to publish a message, and to subscribe ----------------------


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
