"""Drains, restarts, and a rolling restart of all replicas: nothing is lost, and a replica always
works.
"""

from __future__ import annotations

import asyncio

import pytest

from agentrt.engines import ReplicaSet
from agentrt.errors import ConfigError, EngineError, EngineStartError, NoRoomError
from agentrt.executors.base import NO_ROOM_YET, Progress
from agentrt.executors.replicas import Backoff, ReplicaState
from agentrt.request import CallReport
from agentrt.router import make_router
from tests.executors.replicas.cast import AT_ONCE, TEXT, Cast, Mortal, call_of
from tests.executors.replicas.conftest import Open


async def text_of(replicas: ReplicaSet, number: int) -> str:
    chunks = replicas.generate(call_of(number), stream=True)
    return "".join([chunk.text async for chunk in chunks])


async def test_a_drained_replica_finishes_its_calls_and_takes_none(opened: Open) -> None:
    notices: list[str] = []
    cast = Cast([], [])
    replicas = await opened(cast, notice=notices.append)
    chunks = replicas.generate(call_of(0), stream=True)
    first = (await anext(chunks)).text
    draining = asyncio.create_task(replicas.drain("replica-0"))
    await asyncio.sleep(0)
    assert [await text_of(replicas, number) for number in range(1, 5)] == [TEXT] * 4
    assert not draining.done()
    assert first + "".join([chunk.text async for chunk in chunks]) == TEXT
    await draining
    assert [len(mortal.calls) for _, mortal in cast.made] == [1, 4]
    assert replicas.replicas[0].state is ReplicaState.DRAINING
    assert notices == ["replica-0 takes no new calls, and finishes its calls in progress: 1"]


async def test_restart_puts_a_new_engine_in_the_place(opened: Open) -> None:
    cast = Cast([], [])
    replicas = await opened(cast)
    await asyncio.gather(replicas.restart("replica-0"), replicas.restart("replica-0"))
    assert [index for index, _ in cast.made] == [0, 1, 0], "two that ask at once get one restart"
    assert cast.made[0][1].closed
    assert replicas.replicas[0].state is ReplicaState.READY
    assert replicas.replicas[0].deaths == 0


async def test_a_rolling_restart_loses_nothing(opened: Open) -> None:
    """Calls arrive all the time. Two replicas are never away at once."""
    cast = Cast([], [], [])
    replicas = await opened(cast)
    away: list[int] = []

    async def ask() -> list[str]:
        texts = []
        for number in range(60):
            away.append(sum(r.state is not ReplicaState.READY for r in replicas.replicas))
            texts.append(await text_of(replicas, number))
        return texts

    asking = asyncio.create_task(ask())
    await replicas.roll()
    assert set(await asking) == {TEXT}
    assert max(away) == 1
    assert [index for index, _ in cast.made] == [0, 1, 2, 0, 1, 2]
    assert sum(replica.reruns for replica in replicas.replicas) == 0


async def test_the_calls_of_a_lone_replica_wait_for_its_restart(opened: Open) -> None:
    replicas = await opened(Cast([]))
    restarting = asyncio.create_task(replicas.restart("replica-0"))
    await asyncio.sleep(0)
    assert await text_of(replicas, 0) == TEXT
    await restarting


@pytest.mark.parametrize("rolls", [False, True])
async def test_a_restart_that_is_cancelled_while_calls_end_leaves_the_replica_at_work(
    opened: Open, rolls: bool
) -> None:
    """As by a time limit. Without its replica, the set would have no other for its next call."""
    cast = Cast([])
    replicas = await opened(cast)
    chunks = replicas.generate(call_of(0), stream=True)
    first = (await anext(chunks)).text
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await (replicas.roll() if rolls else replicas.restart("replica-0"))
    assert replicas.replicas[0].state is ReplicaState.READY
    assert await text_of(replicas, 1) == TEXT
    assert first + "".join([chunk.text async for chunk in chunks]) == TEXT
    assert len(cast.made) == 1


async def test_a_restart_that_is_cancelled_leaves_another_restart_and_a_drain_in_force(
    opened: Open,
) -> None:
    cast = Cast([], [])
    replicas = await opened(cast)
    streams = [replicas.generate(call_of(number), stream=True) for number in range(2)]
    for chunks in streams:
        await anext(chunks)
    restarts = [asyncio.create_task(replicas.restart("replica-0")) for _ in range(2)]
    drain = asyncio.create_task(replicas.drain("replica-1"))
    restarts.append(asyncio.create_task(replicas.restart("replica-1")))
    await asyncio.sleep(0)
    for cancelled in (restarts[0], restarts[2]):
        cancelled.cancel()
        await asyncio.wait([cancelled])
    assert [r.state for r in replicas.replicas] == [ReplicaState.DRAINING] * 2
    for chunks in streams:
        assert [chunk async for chunk in chunks][-1].reply is not None
    await asyncio.gather(restarts[1], drain)
    assert [index for index, _ in cast.made] == [0, 1, 0]
    assert replicas.replicas[1].state is ReplicaState.DRAINING


async def test_one_that_dies_while_it_drains_comes_back(opened: Open) -> None:
    cast = Cast([Mortal(2)], [])
    replicas = await opened(cast)
    reading = asyncio.create_task(text_of(replicas, 0))
    await asyncio.sleep(0)
    await replicas.restart("replica-0")
    assert await reading == TEXT
    assert replicas.replicas[0].deaths == 1
    assert [index for index, _ in cast.made] == [0, 1, 0]


async def test_a_restart_that_comes_to_nothing_says_so(opened: Open) -> None:
    lame = [Mortal(), *(Mortal(lame=True) for _ in range(9))]
    replicas = await opened(Cast(lame, []), backoff=Backoff(first_s=0.0, tries=2))
    with pytest.raises(EngineStartError, match="replica-0 could not be restarted: no memory"):
        await replicas.restart("replica-0")
    assert replicas.replicas[0].state is ReplicaState.OUT
    with pytest.raises(
        ConfigError, match="replica-0 has failed too often and is not started again"
    ):
        await replicas.restart("replica-0")
    await replicas.roll()
    assert await text_of(replicas, 0) == TEXT


async def test_each_start_that_fails_after_a_death_is_reported(opened: Open) -> None:
    """Without calls that wait, nobody else would say what happens until the engine is back."""
    notices: list[str] = []
    parts = [Mortal(0), Mortal(lame=True), Mortal(lame=True)]
    replicas = await opened(
        Cast(parts), backoff=Backoff(first_s=0.0, tries=3), notice=notices.append
    )
    assert await text_of(replicas, 1) == TEXT
    assert notices == [
        "replica-0 died and is restarted: killed",
        "replica-0 has not started yet: no memory",
        "replica-0 has not started yet: no memory",
        "replica-0 is back",
    ]


async def test_a_replica_that_is_given_up_at_its_restart_is_not_back(opened: Open) -> None:
    notices: list[str] = []
    lame = Cast([Mortal(), Mortal(lame=True)], [])
    replicas = await opened(lame, backoff=Backoff(tries=0), notice=notices.append)
    with pytest.raises(EngineStartError, match="replica-0 could not be restarted: no memory"):
        await replicas.restart("replica-0")
    assert notices[-1] == (
        "replica-0 could not be started, and no further start is tried: no memory"
    )


class Gated(Mortal):
    """An engine that starts when ``gate`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.gate = asyncio.Event(), asyncio.Event()

    async def start(self, progress: Progress) -> None:
        self.begun.set()
        await self.gate.wait()
        await super().start(progress)


async def test_a_restart_goes_on_when_who_asked_gives_up(opened: Open) -> None:
    gated = Gated()
    replicas = await opened(Cast([Mortal(), gated]))
    restarting = asyncio.create_task(replicas.restart("replica-0"))
    await gated.begun.wait()
    restarting.cancel()
    await asyncio.wait([restarting])
    gated.gate.set()
    assert await text_of(replicas, 0) == TEXT
    assert replicas.replicas[0].state is ReplicaState.READY


async def test_a_replica_that_is_drained_while_it_restarts_ends_the_restart(opened: Open) -> None:
    gated = Gated()
    replicas = await opened(Cast([Mortal(), gated]))
    restarting = asyncio.create_task(replicas.restart("replica-0"))
    await gated.begun.wait()
    await replicas.drain("replica-0")
    gated.gate.set()
    async with asyncio.timeout(60):
        await restarting
    assert replicas.replicas[0].state is ReplicaState.DRAINING


class Mute(Mortal):
    """An engine that does not report what an aborted call used."""

    async def aborted(self, call_id: str) -> CallReport:
        await asyncio.Event().wait()
        raise AssertionError


async def test_nobody_waits_for_an_engine_that_was_replaced(opened: Open) -> None:
    replicas = await opened(Cast([Mute()]))
    chunks = replicas.generate(call_of(0), stream=True)
    await anext(chunks)
    draining = asyncio.create_task(replicas.restart("replica-0"))
    await asyncio.sleep(0)
    await chunks.aclose()
    assert await replicas.aborted("p/0") == CallReport()
    await draining


async def test_a_drained_replica_stays_so_when_its_engine_dies(opened: Open) -> None:
    """A drained replica stays so until `restart`, also if it was down when it was drained."""
    cast = Cast([], [])
    replicas = await opened(cast)

    def state() -> str:
        return str(replicas.replicas[0].state)

    for _ in range(2):
        cast.latest(0).dead = True
        await replicas._supervisor.check(replicas.replicas[0])
        assert state() == "down"
        await replicas.drain("replica-0")
        await replicas.settled()
        assert state() == "draining"
        assert await text_of(replicas, 0) == TEXT
        assert not cast.latest(0).calls
    await replicas.restart("replica-0")
    assert state() == "ready"


class Homeless(Mortal):
    async def start(self, progress: Progress) -> None:
        raise NoRoomError("no node has room")


async def test_one_that_finds_no_room_is_not_left_out(opened: Open) -> None:
    patient = Backoff(first_s=0.0, longest_s=0.0, tries=2)
    cast = Cast([Mortal(0), *(Homeless() for _ in range(9))])
    replicas = await opened(cast, backoff=patient)
    assert await text_of(replicas, 0) == TEXT
    assert replicas.replicas[0].deaths == 1


class Waiting(Mortal):
    """An engine that waits for room, as on a cluster, until it is ``placed``, or gives up."""

    def __init__(self, placed: asyncio.Event | None = None) -> None:
        super().__init__()
        self._placed = placed

    async def start(self, progress: Progress) -> None:
        progress(f"{NO_ROOM_YET}: free is 1 core")
        if self._placed is None:
            raise NoRoomError("no node had room within 9 s: free is 1 core")
        await self._placed.wait()
        await super().start(progress)


async def test_what_a_replica_waits_for_is_said_on_every_try(opened: Open) -> None:
    notices: list[str] = []
    placed = asyncio.Event()
    cast = Cast([Mortal(0), Waiting(), Waiting(), Waiting(placed)])
    patient = Backoff(first_s=0.0, longest_s=0.0, tries=1)
    replicas = await opened(cast, backoff=patient, notice=notices.append)
    assert list(replicas.waits_for()) == []
    asking = asyncio.create_task(text_of(replicas, 0))
    async with asyncio.timeout(60):
        while len(notices) < 6:
            await asyncio.sleep(0)
    waits = "waiting for a node with room: free is 1 core"
    assert replicas.waits_for() == [f"replica-0: {waits}"]
    placed.set()
    assert await asking == TEXT
    assert list(replicas.waits_for()) == []
    gave_up = (
        "replica-0 has not started: no node had room within 9 s: free is 1 core; "
        "the next attempt is in 0 s"
    )
    tries = [f"replica-0: {waits}", gave_up] * 2
    assert notices[1:] == [*tries, f"replica-0: {waits}", "replica-0 is back"]


async def test_a_name_that_there_is_not(opened: Open) -> None:
    replicas = await opened(Cast([], []))
    with pytest.raises(ConfigError, match="unknown replica 'x'; available: replica-0, replica-1"):
        await replicas.drain("x")


class CutOff(Mortal):
    """An engine in whose method ``method`` an awaited task is cancelled by other code."""

    def __init__(self, method: str) -> None:
        super().__init__(0)
        self._method = method

    async def start(self, progress: Progress) -> None:
        if self._method == "start":
            raise asyncio.CancelledError
        await super().start(progress)

    async def close(self) -> None:
        await super().close()
        if self._method == "close":
            raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("engines", "deaths"), [([CutOff("close")], 1), ([Mortal(0), CutOff("start")], 2)]
)
async def test_a_replica_comes_back_where_a_wait_of_its_engine_was_cancelled(
    opened: Open, engines: list[Mortal], deaths: int
) -> None:
    replicas = await opened(Cast(engines, []), backoff=Backoff(first_s=0.0, tries=9))
    assert await text_of(replicas, 0) == TEXT
    async with asyncio.timeout(60):
        await replicas.settled()
    assert replicas.replicas[0].state is ReplicaState.READY
    assert replicas.replicas[0].deaths == deaths


class Stuck(Mortal):
    """An engine that cannot be closed."""

    async def close(self) -> None:
        raise OSError(f"cannot close {self.info.model}")


async def test_a_close_that_fails_leaves_no_other_engine_open_and_names_all_that_are() -> None:
    """The error waits for the engines that take longer to close."""
    cases: list[tuple[list[list[Mortal]], type[Exception], str]] = [
        ([[], [Stuck(model="a")]], OSError, "^cannot close a$"),
        (
            [[Stuck(model="a")], [], [Stuck(model="b")]],
            EngineError,
            "^replica-0 could not be closed: cannot close a; replica-2 could not be .* b$",
        ),
    ]
    for parts, error, words in cases:
        cast = Cast(*parts)
        replicas = ReplicaSet(cast, len(cast.parts), make_router("least-used"), backoff=AT_ONCE)
        await replicas.start(lambda message: None)
        with pytest.raises(error, match=words):
            await replicas.close()
        assert all(mortal.closed for _, mortal in cast.made if not isinstance(mortal, Stuck))


async def test_a_failed_start_is_raised_although_the_close_fails_too() -> None:
    notices: list[str] = []
    cast = Cast([Mortal(lame=True)], [Stuck(model="a")])
    replicas = ReplicaSet(cast, 2, make_router("least-used"), notice=notices.append)
    with pytest.raises(EngineStartError, match="no memory"):
        await replicas.start(lambda message: None)
    assert notices == ["an engine could not be closed: cannot close a"]
