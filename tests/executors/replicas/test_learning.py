"""What replicas learn is known to all of them, survives their deaths, and is kept in one file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentrt.errors import ConfigError, EngineDiedError
from agentrt.executors.memory import SAVE_EVERY, Memory, read
from agentrt.executors.replicas import ReplicaSet, ReplicaState
from agentrt.router import make_router
from agentrt.scheduler import ProgramTotals, SchedulerConfig, Visit, make_policy
from tests.executors.replicas.cast import Cast, Mortal, call_of
from tests.executors.replicas.conftest import Open
from tests.executors.replicas.test_set import becomes, text_of

ADAPTIVE = SchedulerConfig("adaptive")


class Pupil(Mortal):
    """Learns with the real policy. Of each program that it had it noted one node, by its name."""

    def __init__(self, dies_after: int | None = None, *, slow: bool = False) -> None:
        super().__init__(dies_after)
        self.slow = slow
        self.taught = 0
        self.policy = make_policy(ADAPTIVE)
        self.memory = Memory(self.policy, None)
        self.told: list[str] = []

    def learn(self, totals: ProgramTotals) -> None:
        self.told.append(totals.program_id)
        self.policy.learn(totals, 0.0)

    async def end_program(
        self, program_id: str, totals: ProgramTotals | None = None
    ) -> tuple[Visit, ...]:
        await super().end_program(program_id, totals)
        if self.slow:
            await asyncio.Event().wait()
        visit = Visit(3, f"node {program_id}", 0.1)
        if totals is not None:
            self.policy.learn(totals._replace(visits=(visit,)), 0.0)
        return (visit,)

    def teach(self, learned: Mapping[str, Any]) -> None:
        self.taught += 1
        self.memory.know(learned)

    @property
    def knows(self) -> tuple[float, set[str]]:
        """How many programs, and the nodes of which."""
        return known(self.memory.learned())


def known(learned: Mapping[str, Any] | None) -> tuple[float, set[str]]:
    assert learned is not None
    cells = [(age, what, n) for _, _, age, what, n, _ in learned["cells"]]
    programs = sum(n for age, what, n in cells if (age, what) == (0, ""))
    return programs, {what.removeprefix("node ") for _, what, _ in cells if what}


def pupils(cast: Cast) -> list[Pupil]:
    """The engines that the replicas have now."""
    latest = [cast.latest(index) for index in range(len(cast.parts))]
    return [one for one in latest if isinstance(one, Pupil)]


def came_to(program: str, service_s: float = 3.0) -> ProgramTotals:
    return ProgramTotals(program, "t", service_s=service_s, path_s=service_s, finished_calls=1)


async def live(replicas: ReplicaSet, program: str, calls: int = 1) -> None:
    for number in range(calls):
        await text_of(replicas, call_of(number, program))
    await replicas.end_program(program, came_to(program))


def kept_in(path: Path) -> SchedulerConfig:
    return SchedulerConfig("adaptive", history=str(path))


async def test_every_replica_learns_of_each_program_once(opened: Open) -> None:
    """Those that had calls of it with its end, the others beside it, nodes and all."""
    rng = Random(7)
    cast = Cast([Pupil()], [Pupil()], [Pupil()])
    replicas = await opened(cast, router="round-robin", scheduling=ADAPTIVE)
    names = [f"p{n}" for n in range(20)]
    for name in names:
        await live(replicas, name, rng.randrange(1, 5))
    assert [one.knows for one in pupils(cast)] == [(20.0, set(names))] * 3
    for one in pupils(cast):
        assert sorted(one.ended + one.told) == sorted(names)
        assert one.ended, "it had some itself"
        assert one.told, "and others not"


async def test_there_is_nothing_to_learn_of_who_was_not_served_or_is_not_known(
    opened: Open,
) -> None:
    cast = Cast([Pupil()], [Pupil()])
    replicas = await opened(cast, scheduling=ADAPTIVE)
    await replicas.end_program("p", came_to("p", 0.0))
    await replicas.end_program("q")
    assert [one.knows for one in pupils(cast)] == [(0.0, set())] * 2


@pytest.mark.parametrize("scheduling", [None, SchedulerConfig("atlas")])
async def test_under_a_policy_that_learns_nothing_nobody_is_told(
    opened: Open, scheduling: SchedulerConfig | None
) -> None:
    cast = Cast([Pupil()], [Pupil()])
    replicas = await opened(cast, scheduling=scheduling)
    await live(replicas, "p")
    assert [(one.told, one.taught) for one in pupils(cast)] == [([], 0)] * 2


async def test_engines_that_cannot_be_told_are_not(opened: Open, tmp_path: Path) -> None:
    """The set learns all the same."""
    path = tmp_path / "history.json"
    replicas = await opened(Cast([], []), scheduling=kept_in(path))
    await live(replicas, "p")
    await replicas.close()
    assert known(read(path)) == (1.0, set())


async def test_who_comes_back_knows_what_the_others_do(opened: Open) -> None:
    """1. Replica 0 dies; a program ends meanwhile. 2. All at once start anew, one after another."""
    cast = Cast([Pupil(2), Pupil(), Pupil()], [Pupil(), Pupil()])
    replicas = await opened(cast, scheduling=ADAPTIVE)
    await live(replicas, "a")
    first = replicas.replicas[0]
    assert first.deaths == 1
    await becomes(first, ReplicaState.READY)
    await live(replicas, "b")
    assert [one.knows for one in pupils(cast)] == [(2.0, {"a", "b"})] * 2
    await replicas.roll()
    assert [one.knows for one in pupils(cast)] == [(2.0, {"a", "b"})] * 2
    assert len(cast.made) == 5


async def test_who_comes_back_while_another_still_answers_is_told(opened: Open) -> None:
    """Replica 0 has answered, dies and is back before replica 1, of the same program, has."""
    cast = Cast([Pupil(), Pupil()], [Pupil(slow=True)])
    replicas = await opened(cast, router="round-robin", scheduling=ADAPTIVE)
    ending = asyncio.create_task(live(replicas, "p", 2))
    first, second = replicas.replicas
    while "p" not in cast.latest(1).ended:
        await asyncio.sleep(0)
    replicas._supervisor.lost(first, first.executor, EngineDiedError("killed"))
    await becomes(first, ReplicaState.READY)
    assert pupils(cast)[0].knows[0] == 0.0
    second.cancel_scope.cut("it hangs")
    await ending
    assert pupils(cast)[0].knows == (1.0, {"p"})


async def test_a_program_that_is_called_off_while_it_ends_is_learned_of(
    opened: Open, tmp_path: Path
) -> None:
    path = tmp_path / "history.json"
    cast = Cast([Pupil(slow=True)], [Pupil()])
    replicas = await opened(cast, scheduling=kept_in(path))
    ending = asyncio.create_task(live(replicas, "p"))
    while "p" not in cast.latest(0).ended:
        await asyncio.sleep(0)
    ending.cancel()
    await asyncio.wait([ending])
    assert pupils(cast)[1].knows[0] == 1.0
    await replicas.close()
    assert known(read(path))[0] == 1.0


async def test_with_no_replica_left_nothing_is_lost(opened: Open) -> None:
    cast = Cast([Pupil(), Pupil()])
    replicas = await opened(cast, scheduling=ADAPTIVE)
    for n in range(5):
        await live(replicas, f"p{n}")
    await replicas.restart("replica-0")
    assert pupils(cast)[0].knows[0] == 5.0


async def test_the_file_is_known_to_all_and_written_as_programs_end(
    opened: Open, tmp_path: Path
) -> None:
    path = tmp_path / "new" / "history.json"
    for total in (SAVE_EVERY + 1, 2 * (SAVE_EVERY + 1)):
        before = known(read(path))
        cast = Cast([Pupil()], [Pupil()])
        replicas = await opened(cast, scheduling=kept_in(path))
        assert [one.knows for one in pupils(cast)] == [before] * 2
        for n in range(SAVE_EVERY):
            assert known(read(path)) == before
            await live(replicas, f"p{n}")
        assert known(read(path))[0] == before[0] + SAVE_EVERY
        await live(replicas, "last")
        await replicas.close()
        assert known(read(path))[0] == total
    assert [file.name for file in path.parent.iterdir()] == ["history.json"], "no drafts"


def test_a_file_that_is_none_is_refused_before_any_engine_starts(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"history\.json: .*; name a file that agentrt wrote"):
        ReplicaSet(Cast([Pupil()]), 1, make_router("prefix"), scheduling=kept_in(path))
    assert path.read_text() == "{"


async def test_a_file_that_cannot_be_written_costs_what_was_learned_only(
    opened: Open, tmp_path: Path
) -> None:
    notices: list[str] = []
    path = tmp_path / "history.json"
    cast = Cast([Pupil()])
    replicas = await opened(cast, scheduling=kept_in(path), notice=notices.append)
    path.mkdir()
    await live(replicas, "p")
    await replicas.close()
    assert len(notices) == 1
    assert "what was learned of programs is not saved" in notices[0]
    assert cast.latest(0).closed
