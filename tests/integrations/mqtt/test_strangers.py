"""Workers that are not ours: those of MQTT 3, and those that lie, say nothing, or too much."""

from __future__ import annotations

import asyncio
import json

import aiomqtt
import pytest

from agentrt import Context, Runtime, program
from agentrt.errors import (
    ToolLostError,
    ToolResultError,
)
from agentrt.integrations.mqtt import Broker, MqttTools, Worker, connection
from agentrt.interrupts import tool
from tests.doubles.scripted import ScriptedExecutor
from tests.integrations.mqtt.conftest import running
from tests.integrations.mqtt.side import calling, publish_once, stranger, until


@tool
def add(a: int, b: int = 1) -> int:
    return a + b


async def test_a_reply_that_is_no_reply_is_an_error_of_its_own(broker: Broker) -> None:
    async with calling(broker) as caller, stranger(broker, b"\x80 no JSON"):
        with pytest.raises(ToolResultError, match="not JSON"):
            await caller.call("lie")


async def test_a_worker_that_says_nothing_is_lost(broker: Broker) -> None:
    async with calling(broker, resend_s=0.05) as caller, stranger(broker):
        with pytest.raises(ToolLostError, match=r"worker w for 0\.15 s"):
            await caller.call("lie")


async def test_a_worker_of_mqtt_3_gets_all_that_it_needs_in_the_call(broker: Broker) -> None:
    topics = broker.prefix.of("default")
    v3 = aiomqtt.ProtocolVersion.V311
    async with (
        calling(broker) as caller,
        aiomqtt.Client(broker.host, broker.port, protocol=v3) as client,
    ):
        await client.subscribe(topics.inbox("old"), qos=1)
        offer = {"tools": [{"name": "old", "parameters": {"type": "object"}}]}
        await client.publish(topics.worker("old"), json.dumps(offer), qos=1, retain=True)
        calling_it = asyncio.create_task(caller.call("old"))
        asked = json.loads((await anext(client.messages)).payload)
        reply = {"state": "done", "worker": "old", "id": asked["id"], "result": [1]}
        await client.publish(asked["reply_to"], json.dumps(reply), qos=1)
        assert await calling_it == [1]
        await client.publish(topics.worker("old"), b"", qos=1, retain=True)


async def test_a_call_whose_reply_cannot_be_sent_holds_nobody_up(broker: Broker) -> None:
    """Its response topic is a filter. The worker continues, and can end."""
    topics = broker.prefix.of("default")
    worker = Worker(broker, [add])
    async with calling(broker) as caller, running(worker):
        await caller.tool("add")
        asked = {"tool": "add", "key": "k", "arguments": {"a": 1}, "reply_to": "a/#"}
        await publish_once(broker, topics.inbox(worker.id), json.dumps(asked).encode())
        assert await caller.call("add", a=1) == 2
        await until(lambda: not worker._connection._kept)


@pytest.mark.parametrize(
    "offer",
    [
        b"no JSON",
        b'{"tools": 1}',
        b'{"tools": [{"name": "a/b", "parameters": {}}]}',
        b'{"tools": [{"name": "x", "parameters": {}, "timeout": NaN}]}',
    ],
)
async def test_an_announcement_that_cannot_be_is_left_out(
    offer: bytes, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[str] = []
    # Not by the log itself: whoever configures logging in this process may have switched it off.
    monkeypatch.setattr(
        connection.log, "warning", lambda _, topic, error: dropped.append(str(topic))
    )
    async with (
        calling(broker) as caller,
        running(Worker(broker, [add])),
        aiomqtt.Client(broker.host, broker.port) as client,
    ):
        await caller.tool("add")
        await client.publish(broker.prefix.of("default").worker("liar"), offer, qos=1)
        await until(lambda: bool(dropped))
        assert dropped == [broker.prefix.of("default").worker("liar")]
        assert [one.name for one in await caller.transport.tools()] == ["add"]


async def test_a_result_that_its_schema_forbids_is_found_out_by_the_caller(broker: Broker) -> None:
    """The worker says that it returns a number, and does not."""
    answer = b'{"state":"done","worker":"w","result":"text"}'
    offer = b'{"tools":[{"name":"lie","parameters":{"type":"object"},"result":{"type":"number"}}]}'

    @program
    async def asks(ctx: Context) -> None:
        await ctx.tool("lie")

    async with calling(broker) as caller, stranger(broker, answer, offer=offer):
        await caller.tool("lie")
        transport = MqttTools(broker)
        executor = ScriptedExecutor(lambda call: "x")
        async with Runtime(executor, tools=[transport]) as runtime:
            with pytest.raises(
                ToolResultError, match=r"tool lie: wrong result: .*'text' is not of"
            ):
                await runtime.start(asks).wait()
