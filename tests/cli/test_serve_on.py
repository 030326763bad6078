"""``agentrt serve --on`` as a process, at a real broker: messages start programs."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiomqtt
import pytest

from agentrt.serving.tenants.keys import new_key
from tests.cli.conftest import Write
from tests.cli.test_serve import running
from tests.integrations.mqtt.mosquitto import Mosquitto
from tests.integrations.mqtt.side import census, until

REACTS = """
import asyncio
from pathlib import Path

FOLDER = Path({folder!r})

@program
async def reacts(ctx, event):
    if event["payload"] == "wait":
        (FOLDER / f"waits-{{ctx.run_id}}").touch()
        await asyncio.Event().wait()
    reply = await ctx.llm(f"{{event['topic']}} {{event['payload']['degrees']}}")
    (FOLDER / "new").write_text(reply.text)
    (FOLDER / "new").rename(FOLDER / "reply")
"""
LISTENING = (4, 5, 0)
"""Clients and subscriptions at the broker once the server listens, the machine with them."""


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path) as mosquitto:
        yield mosquitto


class Machine:
    """A client of the broker, which raises alarms and reads what came to nothing."""

    def __init__(self, client: aiomqtt.Client, topic: str) -> None:
        self._client, self._topic = client, topic

    async def alarm(self, payload: Any) -> None:
        given = payload if isinstance(payload, bytes) else json.dumps(payload)
        await self._client.publish(self._topic, given, qos=1)

    async def letters(self, count: int) -> list[dict[str, Any]]:
        """The next dead letters."""
        async with asyncio.timeout(60):
            messages = [await anext(self._client.messages) for _ in range(count)]
        letters = [json.loads(bytes(one.payload or b"")) for one in messages]
        for one in letters:
            assert (one["topic"], one["program"]) == ("plant/press/alarm", "reacts")
        return letters


@asynccontextmanager
async def machine(at: Mosquitto, prefix: str, events: str) -> AsyncIterator[Machine]:
    async with aiomqtt.Client("127.0.0.1", at.port) as client:
        await client.subscribe(f"{prefix}/dead-letters", qos=1)
        yield Machine(client, f"{events}plant/press/alarm")


async def test_messages_start_programs(write: Write, mosquitto: Mosquitto, tmp_path: Path) -> None:
    """1 A message starts a program, which calls the model. 2 Programs that fail are dead letters,
    of text and of bytes. 3 Two run at once, and a third one may not. 4 The server stops: those that
    it cancels are dead letters, too. All for a tenant with topics of its own.
    """
    url = f"mqtt://127.0.0.1:{mosquitto.port}/plants/{{tenant}}"
    prefix, events = "plants/acme", "plants/acme/events/"
    options = ["--on", "mqtt:plant/+/alarm=reacts", "--on-max", "2", "--drain-timeout", "0"]
    new_key(tmp_path / "keys.json", "acme")
    options += ["--api-key-file", str(tmp_path / "keys.json"), "--on-tenant", "acme"]
    options += ["--journal", "off"]  # with one, the next server continues with those of 4
    file = write(REACTS.format(folder=str(tmp_path)))
    with running(file, "--broker", url, *options) as (server, _):
        async with machine(mosquitto, prefix, events) as press:
            async with census(mosquitto.broker()) as counted:
                await counted.until(*LISTENING)
            await press.alarm({"degrees": 80})
            await until((tmp_path / "reply").exists)
            assert (tmp_path / "reply").read_text() == "plant/press/alarm 80"
            for bad, key, told in (("hot", "payload", "hot"), (b"\xff", "base64", "/w==")):
                await press.alarm(bad)
                [failed] = await press.letters(1)
                assert failed[key] == told
                assert "failed: TypeError: " in failed["reason"]
            for _ in range(2):
                await press.alarm("wait")
            await until(lambda: len(list(tmp_path.glob("waits-*"))) == 2)
            await press.alarm({"degrees": 81})
            [third] = await press.letters(1)
            assert third["payload"] == {"degrees": 81}
            assert third["reason"] == "2 programs of this trigger run already"
            server.process.send_signal(signal.SIGTERM)
            cancelled = await press.letters(2)
            assert [one["payload"] for one in cancelled] == ["wait", "wait"]
            assert all("was cancelled" in one["reason"] for one in cancelled)
        code, said = server.end()
    assert code == 128 + signal.SIGTERM
    assert "Traceback" not in said
