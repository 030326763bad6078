"""The side that calls: a transport, and what a program would hear."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from socket import SHUT_RDWR
from typing import Any

import aiomqtt
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

from agentrt.graph import Progress
from agentrt.integrations.mqtt import Broker, MqttTools
from agentrt.integrations.mqtt.broker import Outgoing, publish
from agentrt.integrations.mqtt.connection import Connection
from agentrt.interrupts import Tool, ToolRequest

_PATIENCE_S = 60.0
_LIE = b'{"tools":[{"name":"lie","parameters":{"type":"object"}}],"later":"ignored"}'


class Heard:
    """A `ToolContext` that keeps what it is told, and says yes to every question."""

    def __init__(self) -> None:
        self.progressed: list[Progress] = []

    def progress(self, progress: Progress) -> None:
        self.progressed.append(progress)

    async def ask(self, question: str, schema: Mapping[str, Any] | None = None) -> Any:
        return f"{question} yes"


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
            run_id="p-1",
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


class Stranger:
    """A worker of somebody else's, which offers a tool, and answers when a test says so."""

    def __init__(self, client: aiomqtt.Client) -> None:
        self._client = client

    async def asked(self) -> aiomqtt.Message:
        """The next call that it gets."""
        async with asyncio.timeout(_PATIENCE_S):
            return await anext(self._client.messages)

    async def answer(self, call: aiomqtt.Message, payload: bytes) -> None:
        """Answer a call, in any way and as often as one likes."""
        properties = call.properties
        reply = Outgoing(getattr(properties, "ResponseTopic", ""), payload)
        correlation = getattr(properties, "CorrelationData", None)
        await publish(self._client, replace(reply, correlation=correlation))


@asynccontextmanager
async def stranger(broker: Broker, *answers: bytes, offer: bytes = _LIE) -> AsyncIterator[Stranger]:
    """It offers ``lie``, and gives ``answers``, if there are any, to each call."""
    topics = broker.prefix.of("default")
    async with aiomqtt.Client(
        broker.host, broker.port, protocol=aiomqtt.ProtocolVersion.V5
    ) as client:
        one = Stranger(client)

        async def answer() -> None:
            while answers:
                call = await anext(client.messages)
                for payload in answers:
                    await one.answer(call, payload)

        await client.subscribe(topics.inbox("w"), qos=1)
        await client.publish(topics.worker("w"), offer, qos=1, retain=True)
        task = asyncio.create_task(answer())
        try:
            yield one
        finally:
            task.cancel()
            await asyncio.wait([task])
            await client.publish(topics.worker("w"), b"", qos=1, retain=True)


class Census:
    """What a broker counts: clients, connected or with a session, subscriptions, shared ones."""

    TOPICS = ("clients/total", "subscriptions/count", "shared_subscriptions/count")

    def __init__(self, client: aiomqtt.Client) -> None:
        self._client = client
        self._counts = dict.fromkeys(self.TOPICS, 0)

    async def until(self, clients: int, subscriptions: int, shared: int) -> None:
        """Wait until it counts so many, without this client and its own subscriptions."""
        expected = (clients + 1, subscriptions + len(self.TOPICS), shared)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while tuple(self._counts.values()) != expected:
                    message = await anext(self._client.messages)
                    topic = str(message.topic).removeprefix("$SYS/broker/")
                    self._counts[topic] = int(bytes(message.payload or b"0"))
        except TimeoutError:
            raise AssertionError(f"{self._counts}, not {expected}") from None


@asynccontextmanager
async def census(broker: Broker) -> AsyncIterator[Census]:
    async with aiomqtt.Client(broker.host, broker.port) as client:
        await client.subscribe([(f"$SYS/broker/{topic}", 0) for topic in Census.TOPICS])
        yield Census(client)


async def retained(broker: Broker, topic: str) -> list[str]:
    """The topics below which the broker keeps a message."""
    found: list[str] = []
    async with aiomqtt.Client(broker.host, broker.port) as client:
        await client.subscribe([(topic, 1), ("mark", 1)])
        await client.publish("mark", b"", qos=1)
        async for message in client.messages:
            if str(message.topic) == "mark":
                break
            found.append(str(message.topic))
    return found


def cut_off(connection: Connection) -> None:
    """Break a connection as a network does."""
    assert connection._client is not None
    line: Any = connection._client._client.socket()
    line.shutdown(SHUT_RDWR)


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
