"""Brokers and workers that die mid-call: nothing is lost, applied twice, or left."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrt import Context, Runtime, program
from agentrt.errors import InterruptExpiredError, ToolLostError
from agentrt.graph import NodeState
from agentrt.integrations.mcp.tools import McpTools
from agentrt.integrations.mqtt import Broker, MqttEvents, MqttTools
from agentrt.interrupts import ToolTransport
from agentrt.runtime.run import Run
from tests.doubles.forked_python import forked_python
from tests.doubles.scripted import ScriptedExecutor
from tests.integrations.mcp.servers import stdio
from tests.integrations.mqtt.mosquitto import Mosquitto
from tests.integrations.mqtt.processes import WorkerProcess, workers
from tests.integrations.mqtt.side import Census, Stranger, census, retained, stranger, until

MANY = ("--concurrency", "200")
CALLER, WORKER, SHARED = 2, 8, 5
"""Subscriptions of a caller and of a worker with five tools."""


@asynccontextmanager
async def opened(
    broker: Broker, *others: ToolTransport, **options: Any
) -> AsyncIterator[tuple[Runtime, MqttTools]]:
    """A runtime at the broker; no task, call, question or program is left when it ends."""
    before = asyncio.all_tasks()
    transport, events = MqttTools(broker, **options), MqttEvents(broker)
    executor = ScriptedExecutor(lambda call: "x")
    async with Runtime(
        executor, tools=[transport, *others], events=events, ask_human=None
    ) as runtime:
        yield runtime, transport
        assert not runtime.runs
        assert len(runtime.table) == 0
        assert not transport._calls
        assert not runtime.questions.open
    assert asyncio.all_tasks() <= before


@program
async def calls(ctx: Context, given: dict[str, Any]) -> list[Any]:
    """Calls one tool many times at once, which ends at one of two gates; results, or errors."""
    tools = {one.name: one for one in await ctx.tools("mqtt")}
    tool, numbers, gate = tools[given["tool"]], range(given["count"]), given.get("gate", "gate")
    made = [ctx.tool(tool, number=number, until=f"{gate}{number % 2}") for number in numbers]
    return await asyncio.gather(*made, return_exceptions=True)


def runs(folder: Path) -> list[str]:
    file = folder / "runs"
    return file.read_text().splitlines() if file.exists() else []


async def offered(transport: MqttTools, count: int) -> None:
    """Wait until so many workers are surely there."""
    fleet = transport._tenants["default"]
    await until(lambda: len(fleet.workers) == count and not fleet.doubtful())


def children() -> int:
    forked_python()  # its own processes stay
    return len(psutil.Process().children(recursive=True))


def kinds(results: Sequence[Any]) -> Counter[type]:
    return Counter(type(one) for one in results)


def attempts(run: Run) -> Counter[int]:
    return Counter(node.interrupt.attempt for node in run.dag.nodes() if node.interrupt)


async def test_whatever_dies_nothing_is_lost_applied_twice_or_left(
    mortal: Mosquitto, tmp_path: Path
) -> None:
    """Two workers, an MCP server and a stranger's worker serve one runtime. 1 The broker dies
    under a hundred calls, and comes back. 2 A worker dies. 3 The MCP server dies. 4 An answer comes
    twice, and one too late. 5 A program is cancelled. 6 All is counted, also at the broker.
    """
    processes, broker, mcp = children(), mortal.broker(), McpTools(stdio(), lambda line: None)
    url = f"mqtt://127.0.0.1:{mortal.port}"
    with workers(2, url, *MANY, folder=tmp_path, python=sys.executable) as two:
        async with opened(broker, mcp, back_within=60.0) as (runtime, transport):
            await offered(transport, 2)
            await under_a_dying_broker(runtime, transport, mortal, tmp_path)
            transport._back_within = 0.1  # nobody comes back from now on
            await under_a_dying_worker(runtime, transport, two[0], tmp_path)
            await under_a_dying_mcp_server(runtime, tmp_path)
            async with stranger(broker) as other:
                await with_answers_late_and_doubled(runtime, transport, other)
            async with census(broker) as counted:
                await with_a_cancelled_program(runtime, counted, tmp_path)
        two[1].end()
    assert children() == processes
    async with census(broker) as counted:
        await counted.until(0, 0, 0)
    assert await retained(broker, "agentrt/#") == []


async def under_a_dying_broker(
    runtime: Runtime, transport: MqttTools, mortal: Mosquitto, folder: Path
) -> None:
    """Half of the calls end while it is gone; it has no memory. Each runs once, and no result is
    lost."""
    run = runtime.start(calls, {"tool": "once", "count": 100, "gate": "a"})
    await until(lambda: len(runs(folder)) == 100)
    mortal.kill()
    (folder / "a0").touch()
    await until(lambda: not transport._connection.is_up)
    mortal.start()
    (folder / "a1").touch()
    assert await run.wait() == list(range(100))
    assert sorted(runs(folder)) == sorted(f"once {number}" for number in range(100))
    assert Counter(node.state for node in run.dag.nodes()) == {NodeState.DONE: 100}
    assert attempts(run) == {1: 100}
    await offered(transport, 2)


async def under_a_dying_worker(
    runtime: Runtime, transport: MqttTools, dying: WorkerProcess, folder: Path
) -> None:
    """Its calls that may run twice go to the other one, those that may not are lost and say so."""
    (folder / "runs").unlink()
    once = runtime.start(calls, {"tool": "once", "count": 20, "gate": "b"})
    again = runtime.start(calls, {"tool": "again", "count": 20, "gate": "b"})
    accepted = transport._tenants["default"].calls
    await until(lambda: accepted.total() == 40)
    await until(lambda: len(runs(folder)) == 40)
    of_dead = [one for one in runs(folder) if one.endswith(f" {dying.process.pid}")]
    name = dying.name()
    dying.end(signal.SIGKILL)
    await until(lambda: sum(one.state is NodeState.FAILED for one in once.dag.nodes()) == 10)
    for gate in ("b0", "b1"):
        (folder / gate).touch()
    results = await once.wait()
    assert kinds(results) == {int: 10, ToolLostError: 10}
    [error, *_] = (one for one in results if isinstance(one, ToolLostError))
    assert f"worker {name} has disconnected" in str(error)
    assert await again.wait() == list(range(20))
    assert attempts(again) == {1: 20 - len(of_dead), 2: len(of_dead)}
    assert 0 < len(of_dead) < 20
    ran = Counter(" ".join(one.split()[:2]) for one in runs(folder))
    assert ran == {
        **{f"once {number}": 1 for number in range(20)},
        **{f"again {number}": 1 for number in range(20)},
        **{" ".join(one.split()[:2]): 2 for one in of_dead},
    }


async def under_a_dying_mcp_server(runtime: Runtime, folder: Path) -> None:
    """The same; it is started again."""

    @program
    async def dying(ctx: Context) -> list[Any]:
        tools = {one.name: one for one in await ctx.mcp("stdio")}
        waiting = asyncio.create_task(ctx.tool(tools["wait"], marks=str(folder)))
        await until((folder / "began").exists)
        made = (waiting, ctx.tool(tools["die_once"], marks=str(folder)))
        return list(await asyncio.gather(*made, return_exceptions=True))

    run = runtime.start(dying)
    lost, result = await run.wait()
    assert isinstance(lost, ToolLostError)
    assert result == {"result": "alive"}
    assert attempts(run) == {1: 1, 2: 1}


async def with_answers_late_and_doubled(
    runtime: Runtime, transport: MqttTools, other: Stranger
) -> None:
    """The first answer counts; what nobody waits for is dropped."""

    @program
    async def asks(ctx: Context) -> list[Any]:
        [tool] = [one for one in await ctx.tools("mqtt") if one.name == "lie"]
        doubled = await ctx.tool(tool)
        late = ctx.tool(tool.but(timeout=5.0))  # it is on its way before that is over
        return [doubled, *await asyncio.gather(late, return_exceptions=True)]

    dropped, fleet = transport.dropped, transport._tenants["default"]
    await until(lambda: "w" in fleet.workers)
    run = runtime.start(asks)
    call = await other.asked()
    for number in (1, 2, 3):
        await other.answer(call, b'{"state":"done","worker":"w","result":%d}' % number)
    late = await other.asked()
    result, expired = await run.wait()
    await other.answer(late, b'{"state":"done","worker":"w","result":4}')
    assert result == 1
    assert isinstance(expired, InterruptExpiredError)
    await until(lambda: transport.dropped == dropped + 3)


async def with_a_cancelled_program(runtime: Runtime, counted: Census, folder: Path) -> None:
    """It is in four interrupts. Each ends where its work is done."""

    @program
    async def endless(ctx: Context) -> None:
        tools = {one.name: one for one in await ctx.mcp("stdio")}
        waits = ctx.tool(tools["wait"], marks=str(folder))
        await asyncio.gather(ctx.tool("cancelled"), waits, ctx.event("plant/#"), ctx.human("Go?"))

    for file in ("runs", "began"):
        (folder / file).unlink()
    run = runtime.start(endless)
    await until((folder / "began").exists)
    await until(lambda: any(one.interrupt and one.interrupt.progress for one in run.dag.nodes()))
    await counted.until(3, WORKER + CALLER + 1, SHARED)
    run.cancel()
    assert run.task is not None
    await asyncio.wait([run.task])
    assert Counter(node.state for node in run.dag.nodes()) == {NodeState.CANCELLED: 4}
    await until(lambda: runs(folder) == ["waits", "cancelled"])
    await until((folder / "cancelled").exists)
    await counted.until(3, WORKER + CALLER, SHARED)


async def test_a_worker_ends_a_tool_in_an_endless_loop_and_told_to_stop_finishes_first(
    mortal: Mosquitto, tmp_path: Path
) -> None:
    @program
    async def endless(ctx: Context) -> None:
        await ctx.tool("spins")

    with workers(1, f"mqtt://127.0.0.1:{mortal.port}", folder=tmp_path) as (worker,):
        async with opened(mortal.broker()) as (runtime, transport):
            await offered(transport, 1)
            with pytest.raises(InterruptExpiredError, match="tool spins did not finish"):
                await runtime.start(endless).wait()
            process = psutil.Process(worker.process.pid)
            await until(lambda: not process.children(recursive=True))
            run = runtime.start(calls, {"tool": "once", "count": 4})
            await until(lambda: len(runs(tmp_path)) == 4)
            worker.process.terminate()
            fleet = transport._tenants["default"]
            await until(lambda: not fleet.offering("once"))
            (tmp_path / "gate0").touch()
            (tmp_path / "gate1").touch()
            assert await run.wait() == [0, 1, 2, 3]
            await until(lambda: not fleet.workers)
            _, said = worker.process.communicate(timeout=60)
    assert worker.process.returncode == 128 + signal.SIGTERM
    assert "finishing 4 calls" in said
    assert said.splitlines()[-1].startswith("stopped: ")
