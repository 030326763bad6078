"""One broker for all tests that do not end it, and workers in the test's own process."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentrt.integrations.mqtt import Broker, MqttEvents, Worker
from agentrt.integrations.mqtt.events import MqttSubscription
from tests.integrations.mqtt.mosquitto import Mosquitto


@pytest.fixture(scope="session")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path_factory.mktemp("mosquitto")) as broker:
        yield broker


@pytest.fixture
def broker(mosquitto: Mosquitto) -> Broker:
    """The broker, with topics of the test's own."""
    return mosquitto.broker(f"tests/{uuid.uuid4().hex[:8]}")


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Mosquitto]:
    """A broker for one test, which may end it."""
    with Mosquitto(tmp_path) as mosquitto:
        yield mosquitto


@pytest.fixture
def never_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may take as long as it likes to answer: calls are sent again and again."""
    monkeypatch.setattr("agentrt.integrations.mqtt.tools._SILENCES", 1_000_000)


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[Worker]:
    """The worker, drained and gone at the end. Whoever wants it to be known waits for its tools."""
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.drain()
        await task


class Alarms(MqttEvents):
    """It says when somebody waits for one: what is published before is no event."""

    def __init__(self, at: Broker) -> None:
        super().__init__(at)
        self.subscribed = asyncio.Event()

    async def subscribe(self, topic: str, tenant: str = "default") -> MqttSubscription:
        subscription = await super().subscribe(topic, tenant)
        self.subscribed.set()
        return subscription
