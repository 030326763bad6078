"""The side that calls: a transport, and what a program would hear."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiomqtt
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

from agentrt.graph import Progress
from agentrt.integrations.mqtt import Broker, MqttTools
from agentrt.interrupts import Tool, ToolRequest

_PATIENCE_S = 20.0


class Heard:
    """A `ToolContext` that keeps what it is told."""

    def __init__(self) -> None:
        self.progressed: list[Progress] = []

    def progress(self, progress: Progress) -> None:
        self.progressed.append(progress)

    async def ask(self, question: str, schema: Mapping[str, Any] | None = None) -> Any:
        raise AssertionError(question)


class Caller:
    """Calls tools by name, each call with a key of its own."""

    def __init__(self, transport: MqttTools) -> None:
        self.transport = transport
        self.heard = Heard()

    async def tool(self, name: str) -> Tool:
        """The tool, once some worker offers it."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                for one in await self.transport.tools():
                    if one.name == name:
                        return one
                await asyncio.sleep(0.005)

    async def call(
        self,
        name: str,
        key: str | None = None,
        timeout: float | None = None,
        attempt: int = 1,
        **arguments: Any,
    ) -> Any:
        tool = await self.tool(name)
        request = ToolRequest(
            tool,
            arguments,
            key=key or uuid.uuid4().hex,
            attempt=attempt,
            program_id="p-1",
            timeout=timeout,
        )
        return await self.transport.call(request, self.heard)


@asynccontextmanager
async def calling(broker: Broker, **options: Any) -> AsyncIterator[Caller]:
    """Nothing may be left of it, nor of what ran inside, when it ends."""
    before = asyncio.all_tasks()
    transport = MqttTools(broker, **options)
    await transport.open()
    try:
        yield Caller(transport)
    finally:
        await transport.close()
        assert asyncio.all_tasks() <= before


async def publish_once(broker: Broker, topic: str, payload: bytes) -> None:
    """Publish as any client of the broker would."""
    async with aiomqtt.Client(broker.host, broker.port) as client:
        await client.publish(topic, payload, qos=1)


def has_session(broker: Broker, identifier: str) -> bool:
    """Whether the broker keeps a session of this client, which is not connected now."""
    found: list[bool] = []
    client = Client(CallbackAPIVersion.VERSION2, identifier, protocol=MQTTv5)
    client.on_connect = lambda _client, _data, flags, *_: found.append(flags.session_present)
    client.connect(broker.host, broker.port, clean_start=False)
    while not found:
        client.loop(0.1)
    client.disconnect()
    return found[0]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what somebody else does."""
    async with asyncio.timeout(_PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)
