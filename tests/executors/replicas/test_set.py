"""Several engines behind one executor: routing, a death in the middle of a call, and the return."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.metrics_core import CounterMetricFamily

from agentrt.engines import ReplicaSet
from agentrt.errors import EngineDiedError, EngineStartError
from agentrt.executors.replicas import Backoff, Health, Replica, ReplicaState
from agentrt.request import Call, CallReport
from agentrt.router import make_router
from agentrt.serving.observability.engines import SnapshotPoller
from tests.executors.replicas.cast import TEXT, Cast, Mortal, call_of
from tests.executors.replicas.conftest import Open


async def becomes(replica: Replica, state: ReplicaState) -> None:
    async with asyncio.timeout(60):
        while replica.state is not state:
            await asyncio.sleep(0)


async def text_of(replicas: ReplicaSet, call: Call, *, stream: bool = True) -> list[str]:
    return [chunk.text async for chunk in replicas.generate(call, stream=stream)]


async def test_calls_are_spread(opened: Open) -> None:
    cast = Cast([], [])
    replicas = await opened(cast)
    texts = await asyncio.gather(*(text_of(replicas, call_of(n)) for n in range(8)))
    assert {"".join(pieces) for pieces in texts} == {TEXT}
    assert [len(mortal.calls) for _, mortal in cast.made] == [4, 4]
    assert [replica.view.in_flight for replica in replicas.replicas] == [0, 0]


class Counting(Mortal):
    """An engine that counts its calls in its metrics."""

    async def metrics(self) -> Sequence[Metric]:
        counter = CounterMetricFamily("vllm:requests", "Calls.", labels=("engine",))
        counter.add_metric(("0",), len(self.calls))
        return (counter,)


async def test_metrics_are_one_family_with_a_sample_for_each_engine_that_is_up(
    opened: Open,
) -> None:
    cast = Cast([Counting()], [Counting()], [Counting(0)])
    replicas = await opened(cast, "round-robin")
    for n in range(4):  # the third engine dies of its first call
        await text_of(replicas, call_of(n))
    (family,) = await replicas.metrics()
    counted = {sample.labels["engine"]: sample.value for sample in family.samples}
    assert counted == {str(index): len(cast.latest(index).calls) for index in (0, 1)}
    assert sum(counted.values()) >= 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", range(4))
async def test_a_call_whose_engine_dies_goes_on_elsewhere(
    opened: Open, stream: bool, after: int
) -> None:
    """The reader gets each piece once, and the dead replica comes back."""
    notices: list[str] = []
    cast = Cast([Mortal(after)], [])
    replicas = await opened(cast, notice=notices.append)
    pieces = await text_of(replicas, call_of(), stream=stream)
    assert "".join(pieces) == TEXT
    first = replicas.replicas[0]
    if not stream and after:  # its only chunk was its last
        assert first.deaths == 0
        return
    assert first.deaths == 1
    await becomes(first, ReplicaState.READY)
    assert notices == ["replica-0 died and is restarted: killed", "replica-0 is back"]
    assert cast.made[0][1].closed
    assert "".join(await text_of(replicas, call_of(1))) == TEXT


async def test_a_lone_replica_s_calls_wait_for_its_return(opened: Open) -> None:
    replicas = await opened(Cast([Mortal(1)]))
    texts = await asyncio.gather(*(text_of(replicas, call_of(n)) for n in range(3)))
    assert {"".join(pieces) for pieces in texts} == {TEXT}


async def test_one_that_dies_again_and_again_is_left_out(opened: Open) -> None:
    """A replica is restarted twice. After the third death of the only replica, its calls fail and
    say why.
    """
    notices: list[str] = []
    cast = Cast([Mortal(0) for _ in range(9)])
    replicas = await opened(cast, notice=notices.append)
    with pytest.raises(EngineDiedError, match="no replica is left: replica-0: killed"):
        await text_of(replicas, call_of())
    assert replicas.replicas[0].state is ReplicaState.OUT
    assert len(cast.made) == 3
    assert notices[-1] == "replica-0 died 3 times and is not started again: killed"


async def test_one_that_does_not_start_again_is_left_out(opened: Open) -> None:
    cast = Cast([Mortal(0), Mortal(lame=True), Mortal(lame=True)], [])
    replicas = await opened(cast)
    assert "".join(await text_of(replicas, call_of())) == TEXT
    await becomes(replicas.replicas[0], ReplicaState.OUT)
    assert "".join(await text_of(replicas, call_of(1))) == TEXT
    described = (await replicas.snapshot())["replicas"]
    assert [one["state"] for one in described] == ["out", "ready"]
    assert described[0]["last_error"] == "no memory"


async def test_waiting_for_a_replica_has_an_end(opened: Open) -> None:
    slow = Backoff(first_s=3600)
    replicas = await opened(Cast([Mortal(0)]), backoff=slow, ready_timeout_s=0.01)
    with pytest.raises(EngineDiedError, match=r"no replica came back within 0\.01 s"):
        await text_of(replicas, call_of())


async def test_a_text_that_cannot_be_repeated_fails_rather_than_lies(opened: Open) -> None:
    replicas = await opened(Cast([Mortal(2)], [Mortal(text="quite another story")]))
    with pytest.raises(EngineDiedError, match="another engine's output differs"):
        await text_of(replicas, call_of())


async def test_an_end_is_told_to_those_that_had_the_program(opened: Open) -> None:
    cast = Cast([], [], [])
    replicas = await opened(cast, router="round-robin")
    await text_of(replicas, call_of(0))
    await text_of(replicas, call_of(1))
    await replicas.end_program("p")
    assert [mortal.ended for _, mortal in cast.made] == [["p"], ["p"], []]


async def test_a_cancelled_call_is_told_to_its_replica(opened: Open) -> None:
    cast = Cast([], [])
    replicas = await opened(cast)
    chunks = replicas.generate(call_of(), stream=True)
    await anext(chunks)
    await chunks.aclose()
    report = await replicas.aborted("p/0")
    assert report.steps == 1
    assert await replicas.aborted("p/0") == CallReport()


async def test_an_engine_that_dies_idle_is_noticed(opened: Open) -> None:
    cast = Cast([], [])
    replicas = await opened(cast)
    cast.made[0][1].dead = True
    await replicas._supervisor.check(replicas.replicas[0])
    assert replicas.replicas[0].deaths == 1


async def test_a_start_that_fails_leaves_nothing_open() -> None:
    cast = Cast([], [Mortal(lame=True)])
    replicas = ReplicaSet(cast, 2, make_router("least-used"))
    with pytest.raises(EngineStartError, match="no memory"):
        await replicas.start(lambda message: None)
    assert [mortal.closed for _, mortal in cast.made] == [True, True]


async def test_snapshots_and_reports_say_which_replica(opened: Open) -> None:
    replicas = await opened(Cast([Mortal(0)], [], []))
    assert replicas.alive()
    chunks = [chunk async for chunk in replicas.generate(call_of(), stream=False)]
    reply = chunks[-1].reply
    assert reply is not None
    assert reply.report.replica == "replica-1"
    streams = [replicas.generate(call_of(index), stream=True) for index in (1, 2)]
    for stream in streams:
        await anext(stream)
    running = (await replicas.snapshot())["running"]
    where = {r.name: list(r.executor._running) for r in replicas.replicas}  # type: ignore[attr-defined]
    assert len(running) == 2
    for call in running:
        assert call["call_id"] in where[call["replica"]]
    for index, stream in enumerate(streams, 1):
        await stream.aclose()
        await replicas.aborted(call_of(index).call_id)


async def test_an_engine_that_does_not_answer_hides_the_others_from_no_reader(
    opened: Open,
) -> None:
    """As in a step of some seconds. The dashboard and `/metrics` read the calls of the other
    engine, and the last known state of this one.
    """
    cast = Cast([Mortal(hangs=True)], [])
    replicas = await opened(cast, "round-robin", health=Health(every_s=1e6))
    ticks = itertools.count()
    poller = SnapshotPoller(replicas, lambda: float(next(ticks)))
    slow, quick = (replicas.generate(call_of(number), stream=True) for number in range(2))
    await anext(slow)
    assert set((await poller.fresh(0.0)).calls) == {"p/0"}
    reading = asyncio.create_task(anext(slow))
    async with asyncio.timeout(60):
        while not cast.made[0][1]._stuck.is_set():
            await asyncio.sleep(0)
    await anext(quick)
    for _ in range(2):
        view = await poller.fresh(0.0)
        assert set(view.calls) == {"p/0", "p/1"}
        assert [replica.state for replica in view.replicas] == ["ready", "ready"]
    reading.cancel()
    await asyncio.wait([reading])
    await quick.aclose()
    for call_id in ("p/0", "p/1"):
        await replicas.aborted(call_id)


async def test_the_first_reader_waits_for_an_engine_that_answers_late(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal's description of the engines reads their sizes once, after their start."""
    monkeypatch.setattr("agentrt.executors.replicas.replica._SOON_S", 0.0)
    replicas = await opened(Cast([Late()], []))
    assert ["steps" in each for each in (await replicas.snapshot())["replicas"]] == [True, True]


class Late(Mortal):
    """An engine whose snapshots take some turns of the event loop."""

    async def snapshot(self) -> Any:
        for _ in range(9):
            await asyncio.sleep(0)
        return await super().snapshot()
