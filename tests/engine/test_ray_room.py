"""What an engine reports while Ray places its actor: no room, or a process that starts slowly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from agentrt.engines import EngineOptions
from agentrt.errors import EngineStartError, NoRoomError
from agentrt.executors.base import NO_ROOM_YET
from agentrt.executors.ray import Cluster, RayEngine
from tests.doubles.raycluster import LocalCluster

pytest.importorskip("vllm")
pytest.importorskip("ray")
pytestmark = [pytest.mark.engine, pytest.mark.asyncio, pytest.mark.timeout(600)]

GIB = 1 << 30


@pytest.fixture(scope="module")
def node() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=1, cpus=1) as cluster:
        yield cluster


def _never_ready() -> type:
    """The class of an actor whose process is on its node, and is never ready.

    It is defined in a function so that Ray sends its code, and the node imports nothing.
    """

    class NeverReady:
        def __init__(self, *arguments: object) -> None:
            time.sleep(3600)

    return NeverReady


async def test_a_slow_start_is_not_reported_as_a_lack_of_room(
    node: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A node has room, and the process there is not ready in time. 2. Meanwhile a second engine
    has no room. 3. A third one has no room until the first has gone.
    """
    monkeypatch.setattr("agentrt.executors.ray.engine.EngineActor", _never_ready())
    monkeypatch.setattr("agentrt.executors.ray.engine._POLL_S", 0.1)

    async def start(engine: RayEngine, reports: list[str], wait_s: float) -> None:
        monkeypatch.setattr("agentrt.executors.ray.engine._PLACE_S", wait_s)
        await engine.start(reports.append)

    cluster = Cluster(node.address, 1, memory=GIB)
    first, second, third = (RayEngine(EngineOptions(), cluster) for _ in range(3))
    reports: list[str] = []
    with pytest.raises(EngineStartError, match=r"although a node had room: an engine") as slow:
        await start(first, reports, 20.0)
    assert not isinstance(slow.value, NoRoomError)
    assert not [report for report in reports if report.startswith(NO_ROOM_YET)]

    reports.clear()
    with pytest.raises(NoRoomError, match="no node of the cluster had room"):
        await start(second, reports, 1.0)
    await second.close()
    assert reports[1].startswith(NO_ROOM_YET)

    reports.clear()
    starting = asyncio.create_task(start(third, reports, 300.0))
    async with asyncio.timeout(120):
        while len(reports) < 2:
            await asyncio.sleep(0.05)
        assert reports[1].startswith(NO_ROOM_YET)
        await first.close()
        while len(reports) < 3:
            await asyncio.sleep(0.05)
    assert not reports[2].startswith(NO_ROOM_YET)
    starting.cancel()
    await asyncio.wait([starting])
    await third.close()
