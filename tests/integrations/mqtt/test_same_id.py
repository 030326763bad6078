"""Two clients of one id: each that connects has the broker close the other's connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiomqtt
import pytest

from agentrt.errors import ToolUnavailableError
from agentrt.integrations.mqtt import Broker
from agentrt.integrations.mqtt.broker import Outgoing
from agentrt.integrations.mqtt.connection import Connection

CONNACK, TAKEN_OVER = b"\x20\x03\x00\x00\x00", b"\xe0\x02\x8e\x00"


class Pausing:
    """A connection whose pauses last until the test continues."""

    def __init__(self, broker: Broker) -> None:
        self.pauses: asyncio.Queue[float] = asyncio.Queue()
        self.goes_on = asyncio.Event()
        self.connection = Connection(
            broker,
            "same",
            on_message=lambda message: None,
            on_connect=self._connected,
            sleep=self._sleep,
        )

    async def _connected(self, client: aiomqtt.Client) -> None:
        pass

    async def _sleep(self, seconds: float) -> None:
        self.goes_on.clear()
        self.pauses.put_nowait(seconds)
        await self.goes_on.wait()

    async def pause(self) -> float:
        """Wait for the next pause, and return how long it is to be (seconds)."""
        async with asyncio.timeout(60):
            return await self.pauses.get()


@asynccontextmanager
async def pausing(broker: Broker) -> AsyncIterator[Pausing]:
    ours = Pausing(broker)
    ours.connection.open()
    try:
        yield ours
    finally:
        await ours.connection.close()


@asynccontextmanager
async def telling_broker(goodbye: bytes = TAKEN_OVER) -> AsyncIterator[Broker]:
    """One that takes each client's connection away, and says why: by default, that another client
    has its id.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(CONNACK)
        await reader.read(1000)  # the first message
        writer.write(goodbye)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield Broker("127.0.0.1", server.sockets[0].getsockname()[1])


async def test_the_pauses_grow_and_one_line_says_why(caplog: pytest.LogCaptureFixture) -> None:
    pauses: list[float] = []
    with caplog.at_level(logging.WARNING, "agentrt"):
        async with telling_broker() as broker, pausing(broker) as ours:
            ours.connection.send(Outgoing("here", b"", qos=1))
            for _ in range(8):
                pauses.append(await ours.pause())
                with pytest.raises(ToolUnavailableError, match="with the same id 'same'"):
                    await ours.connection.ready(0)
                ours.goes_on.set()
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    [record] = caplog.records
    assert record.getMessage().startswith(f"broker {broker}: another client")
    assert "id 'same'" in record.getMessage()


async def test_another_reason_of_the_broker_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Such as a message that its rules do not allow: some brokers then end the connection."""
    not_allowed = b"\xe0\x02\x87\x00"
    with caplog.at_level(logging.WARNING, "agentrt"):
        async with telling_broker(not_allowed) as broker, pausing(broker) as ours:
            ours.connection.send(Outgoing("here", b"", qos=1))
            for _ in range(5):
                await ours.pause()
                ours.goes_on.set()
    [record] = caplog.records
    assert "repeatedly; its reason is 'Not authorized'" in record.getMessage()


async def test_a_connection_that_is_taken_over_at_once_is_opened_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Both packets come together, as on a busy machine: aiomqtt forgets the second."""
    came: asyncio.Queue[bytes] = asyncio.Queue()
    taken = [CONNACK + TAKEN_OVER] * 2

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        if taken:
            writer.write(taken.pop())
        else:
            writer.write(CONNACK)
            came.put_nowait(await reader.read(1000))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        broker = Broker("127.0.0.1", server.sockets[0].getsockname()[1])
        async with pausing(broker) as ours, asyncio.timeout(60):
            ours.connection.send(Outgoing("here", b"kept", qos=1))
            assert b"kept" in await came.get()
    assert [record.name for record in caplog.records] == ["agentrt.integrations.mqtt.connection"]
    assert "id 'same'" in caplog.text


async def test_where_the_broker_does_not_say_so(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """Mosquitto before 2.1 closes the older connection without a word."""
    pauses: list[float] = []
    with caplog.at_level(logging.WARNING, "agentrt"):
        async with pausing(broker) as ours:
            for _ in range(5):
                await ours.connection.ready(60)
                async with aiomqtt.Client(
                    broker.host,
                    broker.port,
                    identifier="same",
                    protocol=aiomqtt.ProtocolVersion.V5,
                ):
                    pauses.append(await ours.pause())
                ours.goes_on.set()
            await ours.connection.ready(60)
    assert pauses in ([0, 0.1, 0.2, 0.4, 0.8], [1, 2, 4, 8, 16])
    [record] = caplog.records
    assert "id 'same'" in record.getMessage()
