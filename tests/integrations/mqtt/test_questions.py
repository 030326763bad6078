"""Questions to humans at a real broker: published while they are open, and answered there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiomqtt
import pytest
from paho.mqtt.packettypes import PacketTypes

from agentrt import Context, Runtime, program
from agentrt.integrations._compat.aiomqtt import properties
from agentrt.integrations.mqtt import Broker, MqttQuestions
from agentrt.serving.questions.server_questions import ServerQuestions
from tests.doubles.scripted import ScriptedExecutor
from tests.integrations.mqtt.mosquitto import Mosquitto


@program
async def chooser(ctx: Context) -> Any:
    return await ctx.human("Which?", choices=["red", "blue"])


class Phone:
    """Somebody at the broker, who sees what is retained below a prefix and may answer."""

    def __init__(self, client: aiomqtt.Client, root: str) -> None:
        self.client, self.root = client, root

    async def next(self) -> tuple[str, Any]:
        """The next message: its topic below the prefix, and its JSON; None if it was taken off."""
        async with asyncio.timeout(60):
            message = await anext(self.client.messages)
        payload: Any = message.payload
        return str(message.topic)[len(self.root) + 1 :], json.loads(payload) if payload else None

    async def answer(self, question: str, payload: str) -> Any:
        """What is said of an answer, by response topic and correlation data."""
        reply = {"ResponseTopic": f"{self.root}/humans/phone", "CorrelationData": b"7"}
        said = properties(PacketTypes.PUBLISH, **reply)
        topic = f"{self.root}/questions/{question}/answers"
        await self.client.publish(topic, payload, qos=1, properties=said)
        while True:
            where, said = await self.next()
            if where == "humans/phone":
                return said


@asynccontextmanager
async def opened(
    broker: Broker, root: str, human: Broker | None = None
) -> AsyncIterator[tuple[Runtime, Phone]]:
    """A runtime with its questions at the broker, and somebody there, who may log in as another
    user (``human``). No task may be left.
    """
    before, seen_by = asyncio.all_tasks(), human or broker
    async with Runtime(ScriptedExecutor(), ask_human=None) as runtime:
        board = MqttQuestions(broker, ServerQuestions(runtime))
        await board.open()
        try:
            async with aiomqtt.Client(
                seen_by.host,
                seen_by.port,
                username=seen_by.user,
                password=seen_by.password,
                protocol=aiomqtt.ProtocolVersion.V5,
                tls_context=seen_by.context(),
            ) as client:
                await client.subscribe([(f"{root}/questions/+", 1), (f"{root}/humans/phone", 1)])
                yield runtime, Phone(client, root)
        finally:
            await board.close()
    assert asyncio.all_tasks() <= before


async def test_a_question_is_published_and_answered_there(broker: Broker) -> None:
    """1. A program asks. 2. Answers that do not fit are refused. 3. One is taken, the question
    goes, and a late one is refused.
    """
    async with opened(broker, broker.prefix.text) as (runtime, phone):
        run = runtime.start(chooser)
        topic, question = await phone.next()
        assert topic == f"questions/{question['id']}"
        assert (question["question"], question["program"]) == ("Which?", run.id)
        assert question["schema"] == {"enum": ["red", "blue"]}
        for payload, why in (
            ("red", "not JSON"),
            ('{"reply": "red"}', "answer: Field required"),
            ('{"answer": "green"}', "the answer does not fit: 'green' is not one of"),
            ('{"answer": "' + "x" * (1 << 20) + '"}', "1,048,576"),
        ):
            said = await phone.answer(question["id"], payload)
            assert said["state"] == "refused"
            assert why in said["why"]
        assert await phone.answer(question["id"], '{"answer": "blue"}') == {"state": "answered"}
        assert await run.wait() == "blue"
        said = await phone.answer(question["id"], '{"answer": "red"}')
        assert said["why"].endswith("was answered already")
        said = await phone.answer("nobodys", '{"answer": "red"}')
        assert said["why"] == "unknown question nobodys"


async def test_a_question_that_ends_otherwise_is_taken_off(broker: Broker) -> None:
    async with opened(broker, broker.prefix.text) as (runtime, phone):
        run = runtime.start(chooser)
        topic, question = await phone.next()
        assert question is not None
        run.cancel()
        assert await phone.next() == (topic, None)


async def test_a_question_is_published_again_while_others_come_and_go(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the broker would drop it after ten minutes."""
    monkeypatch.setattr("agentrt.integrations.mqtt.questions._AGAIN_S", 0.2)
    async with opened(broker, broker.prefix.text) as (runtime, phone):
        run = runtime.start(chooser)
        first, _ = await phone.next()

        async def others() -> None:
            while True:
                other = runtime.start(chooser)
                await asyncio.sleep(0.05)
                other.cancel()

        busy = asyncio.create_task(others())
        topic, question = await phone.next()
        while topic != first:
            topic, question = await phone.next()
        assert question is not None
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)
        run.cancel()


async def test_each_tenant_has_topics_of_its_own(mosquitto: Mosquitto) -> None:
    """1. Two tenants ask. 2. Whoever may write to one's topics alone cannot answer the other."""
    broker = mosquitto.broker("tests-questions/{tenant}")
    async with opened(broker, "tests-questions/ann") as (runtime, phone):
        other = runtime.start(chooser, tenant="bob")
        run = runtime.start(chooser, tenant="ann")
        _, question = await phone.next()
        assert question["program"] == run.id
        [foreign] = [one.id for one in runtime.questions.open.values() if one.tenant == "bob"]
        said = await phone.answer(foreign, '{"answer": "red"}')
        assert said["why"] == f"unknown question {foreign}"
        assert await phone.answer(question["id"], '{"answer": "red"}') == {"state": "answered"}
        assert await run.wait() == "red"
        other.cancel()


async def test_shared_topics_have_the_default_tenants_questions_alone(broker: Broker) -> None:
    async with opened(broker, broker.prefix.text) as (runtime, phone):
        hidden = runtime.start(chooser, tenant="acme")
        shown = runtime.start(chooser)
        _, question = await phone.next()
        assert question["program"] == shown.id
        hidden.cancel()


async def test_a_broker_that_comes_later_has_the_questions_too(tmp_path: Path) -> None:
    """1. A program asks, and no broker is there. 2. One comes; it dies, and another comes."""
    mosquitto = Mosquitto(tmp_path)
    broker = mosquitto.broker()
    async with Runtime(ScriptedExecutor(), ask_human=None) as runtime:
        board = MqttQuestions(broker, ServerQuestions(runtime))
        await board.open()
        run = runtime.start(chooser)
        try:
            for _ in range(2):
                mosquitto.start()
                async with aiomqtt.Client(broker.host, broker.port) as client:
                    await client.subscribe("agentrt/questions/+", 1)
                    _, question = await Phone(client, "agentrt").next()
                    assert question["program"] == run.id
                mosquitto.kill()
        finally:
            run.cancel()
            await board.close()
