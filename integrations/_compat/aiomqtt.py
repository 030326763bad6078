"""What is replaced inside aiomqtt: its DISCONNECT carries no properties."""

from __future__ import annotations

import functools
from typing import Any

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

VERSIONS = "aiomqtt 2.5"


def end_session(client: Any) -> None:
    """Have the broker forget the client's session when the client disconnects by itself."""
    properties = Properties(PacketTypes.DISCONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = 0
    paho = client._client
    paho.disconnect = functools.partial(paho.disconnect, properties=properties)
