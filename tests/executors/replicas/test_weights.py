"""Updates of the weights over replicas: none mixes versions, and an engine that comes back has the
latest weights.
"""

from __future__ import annotations

import asyncio

import pytest

from agentrt.engines import ReplicaSet
from agentrt.errors import ConfigError, EngineDiedError, EngineError, WeightsError
from agentrt.executors.base import Executor
from agentrt.executors.replicas import Backoff, Health, ReplicaState
from agentrt.executors.weights import Weights
from agentrt.request.weights import PauseMode
from tests.executors.replicas.cast import Cast, Mortal, call_of
from tests.executors.replicas.conftest import Open


class Trained(Mortal):
    """An engine with weights. In the step ``dies_in`` or ``fails_in`` of an update, it dies or
    fails once.
    """

    def __init__(
        self,
        dies_in: str = "",
        fails_in: str = "",
        dies_after: int | None = None,
        model: str = "scripted",
    ) -> None:
        super().__init__(dies_after, model=model)
        self._own, self._is_paused = Weights(), False
        self.wrote: list[int] = []
        self._dies_in, self._fails_in = dies_in, fails_in

    @property
    def weights(self) -> Weights:
        return self._own

    @property
    def paused(self) -> bool:
        return self._is_paused

    def _do(self, step: str) -> None:
        if step == self._dies_in:
            self.dead, self._dies_in = True, ""
            raise EngineDiedError("killed")
        if step == self._fails_in:
            self._fails_in = ""
            raise EngineError("no memory")

    async def check_weights(self, folder: str) -> str:
        await asyncio.sleep(0)
        if folder == "none":
            raise WeightsError("no such folder")
        self._do("check")
        return "mark"

    async def pause_generation(self, mode: PauseMode) -> None:
        await asyncio.sleep(0)
        self._do("pause")
        self._is_paused = True

    async def resume_generation(self) -> None:
        self._is_paused = False

    async def load_weights(self, weights: Weights, *, clear_cache: bool = False) -> None:
        await asyncio.sleep(0)
        self._do("load" if weights.version else "back")
        self._own = weights


class Troupe(Cast):
    """A factory of engines with weights."""

    def __call__(self, index: int) -> Executor:
        part = self.parts[index]
        mortal = part.pop(0) if part else Trained()
        self.made.append((index, mortal))
        return mortal


def versions(replicas: ReplicaSet) -> list[int]:
    return [replica.executor.weights.version for replica in replicas.replicas]


async def answer(replicas: ReplicaSet, number: int = 0) -> None:
    assert [chunk async for chunk in replicas.generate(call_of(number), stream=False)]


async def test_all_replicas_are_updated(opened: Open) -> None:
    replicas = await opened(Troupe([], [], []))
    await replicas.update_weights("new", 1)
    assert versions(replicas) == [1, 1, 1]
    assert replicas.weights == Weights(1, "new", "mark")
    assert not replicas.paused
    snapshot = await replicas.snapshot()
    assert [entry["weights_version"] for entry in snapshot["replicas"]] == [1, 1, 1]


async def test_another_model_keeps_its_weights(opened: Open) -> None:
    """The second replica has a model with tensors of the same shapes, such as a judge. 1. An update
    and its pause leave it alone. 2. So does its restart. 3. A pause is for all engines.
    """
    judge = Trained(model="judge")
    replicas = await opened(Troupe([Trained()], [judge, Trained(model="judge")]))
    await replicas.pause_generation("keep")
    assert judge.paused
    await replicas.resume_generation()
    paused: list[PauseMode] = []

    async def pause(mode: PauseMode) -> None:
        paused.append(mode)

    judge.pause_generation = pause  # type: ignore[method-assign]
    await replicas.update_weights("new", 1)
    assert (versions(replicas), paused) == ([1, 0], [])
    await replicas.roll()
    assert versions(replicas) == [1, 0]


async def test_the_version_of_an_engine_that_could_not_go_back_is_not_used_again(
    opened: Open,
) -> None:
    """Its cache has blocks of that version, which were computed with other weights."""
    replicas = await opened(Troupe([Trained(fails_in="back")], [Trained(fails_in="load")]))
    with pytest.raises(EngineError, match="update the weights again, to version 2 or later"):
        await replicas.update_weights("new", 1)
    assert versions(replicas) == [1, 0]
    with pytest.raises(ConfigError, match="version 1 is not newer than version 1"):
        await replicas.update_weights("other", 1)
    await replicas.update_weights("other", 2)
    assert versions(replicas) == [2, 2]


@pytest.mark.parametrize("step", ["check", "pause", "load"])
async def test_one_replica_that_fails_leaves_the_old_weights_everywhere(
    opened: Open, step: str
) -> None:
    replicas = await opened(Troupe([], [Trained(fails_in=step)], []))
    with pytest.raises(EngineError, match="no memory"):
        await replicas.update_weights("new", 1)
    assert versions(replicas) == [0, 0, 0]
    assert replicas.weights.version == 0
    assert not any(replica.executor.paused for replica in replicas.replicas)
    await answer(replicas)
    await replicas.update_weights("new", 1)
    assert versions(replicas) == [1, 1, 1]


async def test_weights_that_are_not_there(opened: Open) -> None:
    replicas = await opened(Troupe([], []))
    with pytest.raises(WeightsError):
        await replicas.update_weights("none", 1)
    assert versions(replicas) == [0, 0]


@pytest.mark.parametrize("step", ["check", "pause", "load"])
async def test_a_replica_that_dies_in_an_update_comes_back_with_the_new_weights(
    opened: Open, step: str
) -> None:
    replicas = await opened(Troupe([], [Trained(dies_in=step)]))
    await replicas.update_weights("new", 1)
    await replicas.settled()
    assert versions(replicas) == [1, 1]
    assert replicas.replicas[1].deaths == 1


async def test_a_replica_that_dies_in_the_check_before_an_update(opened: Open) -> None:
    replicas = await opened(Troupe([Trained(dies_in="check")], []))
    assert await replicas.check_weights("new") == "mark"
    await replicas.update_weights("new", 1)
    await replicas.settled()
    assert versions(replicas) == [1, 1]
    assert replicas.replicas[0].deaths == 1


async def test_a_replica_that_dies_later_comes_back_with_the_new_weights(opened: Open) -> None:
    replicas = await opened(Troupe([Trained(dies_after=0)]))
    await replicas.update_weights("new", 1)
    await answer(replicas)
    assert versions(replicas) == [1]
    await replicas.restart("replica-0")
    assert versions(replicas) == [1]


async def test_a_replica_takes_no_call_before_it_has_the_latest_weights(opened: Open) -> None:
    """A call waits for the engine when the engine comes back."""
    troupe = Troupe([Trained(dies_after=0)])
    replicas = await opened(troupe)
    await replicas.update_weights("new", 1)
    wrote: list[int] = []
    for mortal in troupe.made:
        assert isinstance(mortal[1], Trained)

    async def note() -> None:
        while not replicas.replicas[0].calls:
            await asyncio.sleep(0)
        wrote.append(versions(replicas)[0])

    await asyncio.gather(answer(replicas), note())
    assert wrote == [1]


async def test_the_only_engine_dies_in_an_update(opened: Open) -> None:
    replicas = await opened(Troupe([Trained(dies_in="load")]))
    with pytest.raises(EngineError):
        await replicas.update_weights("new", 1)
    await replicas.settled()
    assert versions(replicas) == [0]


async def test_all_engines_die_while_an_update_waits_for_a_pause(opened: Open) -> None:
    pausing, dies = asyncio.Event(), asyncio.Event()

    class Pausing(Trained):
        async def pause_generation(self, mode: PauseMode) -> None:
            pausing.set()
            await dies.wait()
            raise EngineDiedError("killed")

    replicas = await opened(Troupe([Pausing()]), backoff=Backoff(first_s=60.0))
    pause = asyncio.create_task(replicas.pause_generation("keep"))
    await pausing.wait()
    update = asyncio.create_task(replicas.update_weights("new", 1))
    await asyncio.sleep(0)
    dies.set()
    with pytest.raises(EngineDiedError, match="the weights were not updated: no engine is up"):
        await update
    await pause


async def test_weights_that_are_lost_when_an_engine_starts_again(opened: Open) -> None:
    """The engine cannot load the latest weights, so it is left out: the router must not mix
    versions.
    """
    dying = Trained(dies_after=0)
    later = [Trained(fails_in="load") for _ in range(2)]
    backoff = Backoff(first_s=0.0, tries=2)
    replicas = await opened(Troupe([dying, *later], []), backoff=backoff)
    await replicas.update_weights("new", 1)
    while not replicas.replicas[0].deaths:
        await answer(replicas)
    await replicas.settled()
    assert replicas.replicas[0].state is ReplicaState.OUT
    assert "cannot load the latest weights: no memory" in replicas.replicas[0].last_error
    assert versions(replicas)[1] == 1


async def test_a_pause_holds_for_engines_that_start_again(opened: Open) -> None:
    replicas = await opened(Troupe([], []))
    await replicas.pause_generation("keep")
    await replicas.restart("replica-1")
    assert [replica.executor.paused for replica in replicas.replicas] == [True, True]
    await replicas.update_weights("new", 1)
    assert [replica.executor.paused for replica in replicas.replicas] == [True, True]
    await replicas.resume_generation()
    assert not any(replica.executor.paused for replica in replicas.replicas)


class Unanswered(Health):
    """A health check in which no engine answers."""

    async def check(self, name: str, engine: Executor) -> None:
        raise EngineDiedError("has not answered")


async def test_an_engine_that_loads_weights_may_be_silent(opened: Open) -> None:
    """During the load the engine need not answer. Before and after the load, an engine that does
    not answer is dead.
    """
    slow = Trained()
    replicas = await opened(Troupe([slow]), health=Unanswered(every_s=1e6))
    [replica] = replicas.replicas
    checked: list[int] = []
    load = slow.load_weights

    async def loads(weights: Weights, *, clear_cache: bool = False) -> None:
        await replicas._supervisor.check(replica)
        checked.append(replica.deaths)
        await load(weights)

    slow.load_weights = loads  # type: ignore[method-assign]
    await replicas.update_weights("new", 1)
    assert checked == [0]
    await replicas._supervisor.check(replica)
    assert replica.deaths == 1
    await replicas.settled()
    assert versions(replicas) == [1]


async def test_updates_while_engines_die_at_random(opened: Open) -> None:
    dying: list[list[Mortal]] = [[Trained(dies_in="load")] for _ in range(3)]
    replicas = await opened(Troupe(*dying, []))
    for version in range(1, 6):
        await replicas.update_weights(f"new-{version}", version)
        await replicas.settled()
        assert versions(replicas) == [version] * 4
