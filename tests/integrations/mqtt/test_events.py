"""Programs that wait for messages at a real broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiomqtt
import pytest

from agentrt import Context, Event, Runtime, program
from agentrt.errors import ConfigError, InterruptExpiredError, ToolUnavailableError
from agentrt.integrations.mqtt import Broker, MqttEvents
from agentrt.integrations.mqtt.topics import TopicPrefix
from tests.doubles.ports import reserved_port
from tests.doubles.scripted import ScriptedExecutor
from tests.integrations.mqtt.mosquitto import Mosquitto
from tests.integrations.mqtt.side import cut_off, has_session, until


@asynccontextmanager
async def opened(broker: Broker, **options: Any) -> AsyncIterator[tuple[Runtime, MqttEvents]]:
    """Nothing may be left when it ends: no task, no subscription."""
    before = asyncio.all_tasks()
    source = MqttEvents(broker, **options)
    async with Runtime(ScriptedExecutor(lambda call: "x"), events=source) as runtime:
        yield runtime, source
    assert not source._filters
    assert asyncio.all_tasks() <= before


@asynccontextmanager
async def publisher(broker: Broker) -> AsyncIterator[aiomqtt.Client]:
    async with aiomqtt.Client(broker.host, broker.port) as client:
        yield client


async def test_payloads_are_json_text_or_bytes(broker: Broker) -> None:
    @program
    async def listens(ctx: Context, root: str) -> list[Any]:
        heard = []
        async for event in ctx.event(f"{root}/+/alarm"):
            assert event.topic == f"{root}/drill/alarm"
            heard.append(event.payload)
            if event.payload == b"\xff":
                break
        return heard

    root = broker.prefix.text
    async with opened(broker) as (runtime, source), publisher(broker) as client:
        run = runtime.start(listens, root)
        await until(lambda: bool(source._filters))
        for payload in ('{"degrees": 81.5}', "hot", "[NaN]", "", b"\xff"):
            await client.publish(f"{root}/drill/alarm", payload, qos=1)
        await client.publish(f"{root}/drill/other", "not asked for", qos=1)
        assert await run.wait() == [{"degrees": 81.5}, "hot", "[NaN]", "", b"\xff"]


async def test_two_programs_share_a_subscription_and_overlapping_ones_get_each_once(
    broker: Broker,
) -> None:
    """A message that fits two filters comes once to each subscription."""

    @program
    async def takes(ctx: Context, topic: str) -> list[int]:
        heard: list[int] = []
        async for event in ctx.event(topic):
            heard.append(event.payload)
            if len(heard) == 3:
                break
        return heard

    root = broker.prefix.text
    async with opened(broker) as (runtime, source), publisher(broker) as client:
        topics = [f"{root}/#", f"{root}/#", f"{root}/+/alarm"]
        runs = [runtime.start(takes, topic) for topic in topics]
        await until(lambda: sum(len(one.subscriptions) for one in source._filters.values()) == 3)
        assert len(source._filters) == 2
        for number in range(3):
            await client.publish(f"{root}/drill/alarm", json.dumps(number), qos=1)
        assert [await run.wait() for run in runs] == [[0, 1, 2]] * 3


async def test_a_retained_message_is_no_event(broker: Broker) -> None:
    @program
    async def waits(ctx: Context, topic: str) -> Event:
        event: Event = await ctx.event(topic)
        return event

    topic = f"{broker.prefix.text}/state"
    async with opened(broker) as (runtime, source), publisher(broker) as client:
        await client.publish(topic, "old", qos=1, retain=True)
        run = runtime.start(waits, topic)
        await until(lambda: bool(source._filters))
        await client.publish(topic, "new", qos=1, retain=True)
        assert await run.wait() == Event(topic, "new")
        await client.publish(topic, b"", qos=1, retain=True)


async def test_a_topic_that_cannot_be_an_absent_broker_and_a_silent_topic(broker: Broker) -> None:
    @program
    async def waits(ctx: Context, topic: str) -> None:
        await ctx.event(topic)

    @program
    async def hopes(ctx: Context, topic: str) -> None:
        await ctx.event(topic, timeout=0.2)

    async with opened(broker) as (runtime, _):
        with pytest.raises(ConfigError, match="'plant/#/x' is not a valid topic filter"):
            await runtime.start(waits, "plant/#/x").wait()
        with pytest.raises(InterruptExpiredError, match=r"within 0\.2 s"):
            await runtime.start(hopes, "plant/silent").wait()
    absent = Broker("127.0.0.1", reserved_port())
    async with opened(absent, connect_timeout=0.1) as (runtime, source):
        await source._connection._tried.wait()
        with pytest.raises(ToolUnavailableError, match="cannot be reached"):
            await runtime.start(waits, "plant/+").wait()


async def test_a_wait_that_is_over_before_the_broker_answers_leaves_no_subscription(
    mosquitto: Mosquitto, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"{broker.prefix.text}/hasty"
    async with opened(broker) as (_, source):
        await source._connection.ready(60)
        with mosquitto.frozen():
            for steps in range(8):
                hasty = asyncio.create_task(source.subscribe(topic))
                for _ in range(steps):
                    await asyncio.sleep(0)
                hasty.cancel()
                await asyncio.wait([hasty])
                assert hasty.cancelled()
        assert not source._filters
        # The same again is a subscription of its own, which that one's end does not take away.
        held = await source.subscribe(topic)
        async with publisher(broker) as client:
            await client.publish(topic, "1", qos=1)
        assert (await held.next()).payload == 1
        await held.close()
    assert not caplog.records


async def test_each_tenant_has_events_of_its_own_below_a_prefix_that_names_it(
    broker: Broker,
) -> None:
    @program
    async def waits(ctx: Context, topic: str) -> Event:
        event: Event = await ctx.event(topic)
        return event

    root = broker.prefix.text
    apart = Broker(broker.host, broker.port, TopicPrefix(f"{root}/{{tenant}}"))
    async with opened(apart) as (runtime, source), publisher(broker) as client:
        runs = [runtime.start(waits, "#", tenant=tenant) for tenant in ("acme", "duck")]
        await until(lambda: len(source._filters) == 2)
        await client.publish(f"{root}/acme/events/alarm", "1", qos=1)
        await client.publish(f"{root}/duck/events/alarm", "2", qos=1)
        assert [await run.wait() for run in runs] == [Event("alarm", 1), Event("alarm", 2)]


async def test_an_event_that_came_to_nothing_is_a_dead_letter(broker: Broker) -> None:
    topic = broker.prefix.of("default").dead_letters
    async with opened(broker) as (_, source), publisher(broker) as client:
        await client.subscribe(topic, qos=1)
        await source.refuse(Event("plant/a", {"degrees": 80}), "too many", "reacts")
        await source.refuse(Event("plant/a", b"\xff"), "too many", "reacts")
        messages = [await anext(client.messages) for _ in range(2)]
    letters = [json.loads(one.payload) for one in messages]
    common = {"topic": "plant/a", "program": "reacts", "reason": "too many"}
    assert letters == [{**common, "payload": {"degrees": 80}}, {**common, "base64": "/w=="}]


async def test_a_subscription_outlives_a_broker_that_is_killed(mortal: Mosquitto) -> None:
    @program
    async def takes(ctx: Context) -> list[int]:
        heard = []
        async for event in ctx.event("plant/#"):
            heard.append(event.payload)
            if len(heard) == 2:
                break
        return heard

    broker = mortal.broker()
    async with opened(broker) as (runtime, source):
        run = runtime.start(takes)
        await until(lambda: bool(source._filters))
        async with publisher(broker) as client:
            await client.publish("plant/a", "1", qos=1)
        mortal.kill()
        await until(lambda: not source._connection.is_up)
        mortal.start()
        await until(lambda: source._connection.is_up)
        async with publisher(broker) as client:
            await client.publish("plant/a", "2", qos=1)
        assert await run.wait() == [1, 2]


async def test_the_broker_keeps_a_session_as_long_as_the_source_is_open(broker: Broker) -> None:
    """Whoever connects under its name takes its session over; it connects again by itself."""
    async with opened(broker) as (_, source):
        await source._connection.ready(60)
        first = source._connection._client
        assert has_session(broker, source._connection.identifier)
        await until(lambda: source._connection._client not in (first, None))
    assert not has_session(broker, source._connection.identifier)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "failed"])
async def test_a_subscription_that_ends_without_a_connection_ends_at_the_broker(
    mortal: Mosquitto, closed: bool
) -> None:
    """The broker keeps the session, and with it the subscriptions, until the source is back."""
    heard: list[str] = []

    class Listening(MqttEvents):
        def _saw(self, message: aiomqtt.Message) -> None:
            heard.append(str(message.topic))
            super()._saw(message)

    broker = mortal.broker()
    source = Listening(broker)
    await source.open()
    left = await source.subscribe("left/#" if closed else "other")
    with mortal.frozen():
        asking = None if closed else asyncio.create_task(source.subscribe("left/#"))
        for _ in range(5):  # the request is sent, and the broker answers it too late
            await asyncio.sleep(0)
        cut_off(source._connection)
        await until(lambda: not source._connection.is_up)
        if asking is not None:
            with pytest.raises(ToolUnavailableError, match="the connection broke"):
                await asking
        await left.close()
    mark = await source.subscribe("mark")
    async with publisher(broker) as client:
        await client.publish("left/a", "1", qos=1)
        await client.publish("mark", "2", qos=1)
    assert (await mark.next()).payload == 2
    assert heard == ["mark"]
    again = await source.subscribe("left/#")
    async with publisher(broker) as client:
        await client.publish("left/a", "3", qos=1)
    assert (await again.next()).payload == 3
    await source.close()


async def test_a_program_ends_also_while_the_broker_is_frozen(mortal: Mosquitto) -> None:
    @program
    async def waits(ctx: Context) -> None:
        await ctx.event("plant/#")

    async with opened(mortal.broker()) as (runtime, source):
        run = runtime.start(waits)
        await until(lambda: bool(source._filters))
        with mortal.frozen():
            run.cancel()
            assert run.task is not None
            ended, _ = await asyncio.wait([run.task], timeout=60)
            assert ended
