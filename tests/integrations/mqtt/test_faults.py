"""Brokers and workers that die mid-call: nothing is lost, applied twice, or left."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrt import Context, Runtime, program
from agentrt.errors import InterruptExpiredError, ToolLostError
from agentrt.graph import NodeState
from agentrt.integrations.mqtt import Broker, MqttTools
from agentrt.runtime.run import Run
from agentrt.testing.scripted import ScriptedExecutor
from tests.integrations.mqtt.mosquitto import Mosquitto
from tests.integrations.mqtt.processes import workers
from tests.integrations.mqtt.side import until

MANY = ("--concurrency", "200")


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Mosquitto]:
    """A broker for one test, which may end it."""
    mosquitto = Mosquitto(tmp_path)
    mosquitto.start()
    yield mosquitto
    mosquitto.stop()


@asynccontextmanager
async def opened(broker: Broker, **options: Any) -> AsyncIterator[tuple[Runtime, MqttTools]]:
    """A runtime at the broker; no task, call or program is left when it ends."""
    before = asyncio.all_tasks()
    transport = MqttTools(broker, **options)
    async with Runtime(ScriptedExecutor(lambda call: "x"), tools=[transport]) as runtime:
        yield runtime, transport
        assert not runtime.runs
        assert len(runtime.table) == 0
        assert not transport._calls
    assert asyncio.all_tasks() <= before


@program
async def calls(ctx: Context, given: dict[str, Any]) -> list[Any]:
    """Calls one tool many times at once; the results, or the errors."""
    tools = {one.name: one for one in await ctx.tools("mqtt")}
    tool, numbers = tools[given["tool"]], range(given["count"])
    made = [ctx.tool(tool, number=number, until=f"gate{number % 2}") for number in numbers]
    return await asyncio.gather(*made, return_exceptions=True)


def runs(folder: Path) -> list[str]:
    file = folder / "runs"
    return file.read_text().splitlines() if file.exists() else []


async def offered(transport: MqttTools, count: int) -> None:
    """Wait until so many workers are there."""
    fleet = transport._fleets["default"]
    await until(lambda: len(fleet.workers) == count)


async def test_a_broker_dies_under_a_hundred_calls(mortal: Mosquitto, tmp_path: Path) -> None:
    """1 A hundred calls run at two workers. 2 The broker is killed. 3 Half of them end meanwhile.
    4 It comes back, without memory. 5 The rest end: each once, and every result arrives."""
    with workers(2, f"mqtt://127.0.0.1:{mortal.port}", *MANY, folder=tmp_path):
        async with opened(mortal.broker(), resend_s=2.0) as (runtime, transport):
            await offered(transport, 2)
            run = runtime.start(calls, {"tool": "once", "count": 100})
            await until(lambda: len(runs(tmp_path)) == 100)
            mortal.kill()
            (tmp_path / "gate0").touch()
            await until(lambda: not transport._connection.is_up)
            mortal.start()
            (tmp_path / "gate1").touch()
            assert await run.wait() == list(range(100))
            await offered(transport, 2)
    assert sorted(runs(tmp_path)) == sorted(f"once {number}" for number in range(100))
    assert Counter(node.state for node in run.dag.nodes()) == {NodeState.DONE: 100}


async def test_a_worker_that_is_killed_loses_calls_that_may_not_run_twice(
    mortal: Mosquitto, tmp_path: Path
) -> None:
    with workers(2, f"mqtt://127.0.0.1:{mortal.port}", *MANY, folder=tmp_path) as two:
        async with opened(mortal.broker(), back_within=0.2) as (runtime, transport):
            await offered(transport, 2)
            dead = two[0].name()
            run = runtime.start(calls, {"tool": "once", "count": 20})
            await until(lambda: len(runs(tmp_path)) == 20)
            two[0].end(signal.SIGKILL)
            await until(lambda: failed(run) == 10)
            (tmp_path / "gate0").touch()
            (tmp_path / "gate1").touch()
            results = await run.wait()
    errors = [one for one in results if isinstance(one, ToolLostError)]
    assert len(errors) == 10
    assert f"its worker {dead} is gone; whether it ran is unknown" in str(errors[0])
    assert sum(isinstance(one, int) for one in results) == 10
    assert len(runs(tmp_path)) == len(set(runs(tmp_path))) == 20


def failed(run: Run) -> int:
    return sum(node.state is NodeState.FAILED for node in run.dag.nodes())


async def test_idempotent_calls_of_a_killed_worker_go_to_another(
    mortal: Mosquitto, tmp_path: Path
) -> None:
    with workers(2, f"mqtt://127.0.0.1:{mortal.port}", *MANY, folder=tmp_path) as two:
        async with opened(mortal.broker()) as (runtime, transport):
            await offered(transport, 2)
            run = runtime.start(calls, {"tool": "again", "count": 20})
            accepted = transport._fleets["default"].workers.values()
            await until(lambda: sum(one.calls for one in accepted) == 20)
            of_dead = [one for one in runs(tmp_path) if one.endswith(f" {two[0].process.pid}")]
            two[0].end(signal.SIGKILL)
            (tmp_path / "gate0").touch()
            (tmp_path / "gate1").touch()
            assert await run.wait() == list(range(20))
    assert 0 < len(of_dead) < 20
    assert len(runs(tmp_path)) == 20 + len(of_dead)
    attempts = Counter(one.interrupt.attempt for one in run.dag.nodes() if one.interrupt)
    assert attempts == {1: 20 - len(of_dead), 2: len(of_dead)}


async def test_a_cancelled_program_stops_its_calls_where_they_run(
    mortal: Mosquitto, tmp_path: Path
) -> None:
    @program
    async def endless(ctx: Context) -> None:
        await ctx.tool("cancelled")

    with workers(1, f"mqtt://127.0.0.1:{mortal.port}", folder=tmp_path):
        async with opened(mortal.broker()) as (runtime, transport):
            await offered(transport, 1)
            run = runtime.start(endless)
            await until(
                lambda: any(node.interrupt and node.interrupt.progress for node in run.dag.nodes())
            )
            run.cancel()
            assert run.task is not None
            await asyncio.wait([run.task])
            await until(lambda: runs(tmp_path) == ["cancelled"])


async def test_a_worker_told_to_stop_finishes_first(mortal: Mosquitto, tmp_path: Path) -> None:
    with workers(1, f"mqtt://127.0.0.1:{mortal.port}", folder=tmp_path) as (worker,):
        async with opened(mortal.broker()) as (runtime, transport):
            await offered(transport, 1)
            run = runtime.start(calls, {"tool": "once", "count": 4})
            await until(lambda: len(runs(tmp_path)) == 4)
            worker.process.terminate()
            fleet = transport._fleets["default"]
            await until(lambda: not fleet.offering("once"))
            (tmp_path / "gate0").touch()
            (tmp_path / "gate1").touch()
            assert await run.wait() == [0, 1, 2, 3]
            await until(lambda: not fleet.workers)
            _, said = worker.process.communicate(timeout=30)
    assert worker.process.returncode == 128 + signal.SIGTERM
    assert "finishing 4 calls, taking nothing new" in said
    assert said.endswith("stopped: what ran has ended\n")


async def test_a_tool_in_an_endless_loop_is_ended_at_its_worker(
    mortal: Mosquitto, tmp_path: Path
) -> None:
    @program
    async def endless(ctx: Context) -> None:
        await ctx.tool("spins")

    with workers(1, f"mqtt://127.0.0.1:{mortal.port}", folder=tmp_path) as (worker,):
        async with opened(mortal.broker()) as (runtime, transport):
            await offered(transport, 1)
            with pytest.raises(InterruptExpiredError, match=r"spins was not over"):
                await runtime.start(endless).wait()
            process = psutil.Process(worker.process.pid)
            await until(lambda: not process.children(recursive=True))
