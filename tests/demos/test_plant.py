"""The plant: a real broker, the machines' worker, and a human who decides."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import plant_machines
from agentrt import Runtime
from agentrt.graph import NodeKind, NodeState
from agentrt.integrations.mqtt import Broker, MqttTools, Worker
from agentrt.integrations.mqtt.broker import Outgoing
from agentrt.integrations.mqtt.connection import Connection
from agentrt.interrupts.questions import Question
from agentrt.runtime.run import Run
from plant import ACTIONS, plant
from tests.doubles.scripted import ScriptedExecutor
from tests.graph.integrity import check_integrity
from tests.integrations.mqtt.conftest import Alarms, broker, mosquitto, running  # noqa: F401  # fixtures

ALARM = {"sensor": "temperature", "value": 97}


@pytest.fixture(autouse=True)
def machines() -> Iterator[None]:
    yield
    plant_machines.STOPPED.clear()


@asynccontextmanager
async def publishing(at: Broker) -> AsyncIterator[Connection]:
    """What a machine's own controller would have: a client of the broker."""

    async def nothing(client: Any) -> None:
        pass

    client = Connection(at, "press", on_message=lambda _: None, on_connect=nothing)
    client.open()
    try:
        await client.ready(60)
        yield client
    finally:
        await client.close()


async def handled(at: Broker, decide: str, *machines: str) -> tuple[Run, list[dict[str, Any]]]:
    """Run the program over the alarms of these machines; a human decides the same each time."""

    async def human(question: Question) -> str:
        return decide

    worker = Worker(at, [plant_machines.read_sensors, plant_machines.stop_machine], name="press")
    model = ScriptedExecutor(lambda call: json.dumps("dangerous"))
    alarms = Alarms(at)
    runtime = Runtime(model, tools=[MqttTools(at)], events=alarms, ask_human=human)
    async with running(worker), runtime, publishing(at) as client:
        run = runtime.start(plant, len(machines))
        await alarms.subscribed.wait()
        async with asyncio.timeout(60):  # the worker's announcements take a moment
            while len(await runtime.toolbox.tools()) < 2:
                await asyncio.sleep(0.01)
        for machine in machines:
            client.send(Outgoing(f"plant/{machine}/alarm", json.dumps(ALARM).encode()))
        result = await run.wait()
    check_integrity(run.dag)
    return run, result


async def test_an_alarm_is_seen_judged_and_acted_upon(broker: Broker) -> None:  # noqa: F811
    run, result = await handled(broker, "stop it", "press-3")
    assert [node.name for node in run.dag.nodes() if node.kind is NodeKind.TOOL] == [
        "read_sensors",
        "stop_machine",
    ]
    kinds = [node.kind for node in run.dag.nodes()]
    assert kinds == [NodeKind.EVENT, NodeKind.TOOL, NodeKind.CALL, NodeKind.HUMAN, NodeKind.TOOL]
    assert {node.state for node in run.dag.nodes()} == {NodeState.DONE}
    assert all(node.parents == (node.id - 1,) for node in run.dag.nodes()[1:])
    assert {"press-3"} == plant_machines.STOPPED
    (one,) = result
    assert one["readings"] == plant_machines.MACHINES["press-3"]
    assert (one["verdict"], one["decision"]) == ("dangerous", "stop it")


async def test_several_alarms_are_handled_side_by_side_and_nothing_is_stopped_unasked(
    broker: Broker,  # noqa: F811
) -> None:
    run, result = await handled(broker, ACTIONS[1], "press-1", "press-3")
    assert Counter(node.kind for node in run.dag.nodes()) == {
        NodeKind.EVENT: 2,
        NodeKind.TOOL: 2,
        NodeKind.CALL: 2,
        NodeKind.HUMAN: 2,
    }
    assert [one["machine"] for one in result] == ["press-1", "press-3"]
    assert set() == plant_machines.STOPPED
