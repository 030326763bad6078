"""What replicas learn is known to all of them, survives their deaths, and is kept in one file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentrt.errors import ConfigError
from agentrt.executors.learned import SAVE_EVERY, nothing, read
from agentrt.executors.replicas import ReplicaState, learning
from agentrt.scheduler import ProgramTotals
from tests.executors.replicas.cast import Cast, Mortal, call_of
from tests.executors.replicas.conftest import Open
from tests.executors.replicas.test_set import becomes, text_of


class Pupil(Mortal):
    """Knows of which programs it was told, under a name of its own in what it has learned."""

    def __init__(self, dies_after: int | None = None, *, mute: bool = False) -> None:
        super().__init__(dies_after)
        self.knows: list[str] = []
        self.mute = mute

    def learn(self, totals: ProgramTotals) -> None:
        self.knows.append(totals.program_id)

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        assert program_id not in self.ended
        await super().end_program(program_id, totals)
        if totals is not None:
            self.knows.append(program_id)

    async def learned(self) -> dict[str, Any] | None:
        if self.mute:
            await asyncio.Event().wait()
        return {**nothing(), "known": sorted(self.knows)}

    async def teach(self, learned: Mapping[str, Any]) -> None:
        self.knows = list(learned.get("known", ()))


def pupils(cast: Cast) -> list[Pupil]:
    """The engines that the replicas have now."""
    latest = [cast.latest(index) for index in range(len(cast.parts))]
    assert all(isinstance(one, Pupil) for one in latest)
    return latest  # type: ignore[return-value]  # as was just seen


def came_to(program: str, service_s: float = 3.0) -> ProgramTotals:
    return ProgramTotals(program, "t", service_s=service_s, path_s=service_s, finished_calls=1)


async def live(replicas: Any, program: str, calls: int = 1) -> None:
    for number in range(calls):
        await text_of(replicas, call_of(number, program))
    await replicas.end_program(program, came_to(program))


def in_file(path: Path) -> list[str]:
    known: list[str] = json.loads(path.read_text())["known"]
    return known


async def test_every_replica_learns_of_each_program_once(opened: Open) -> None:
    """Those that had calls of it with its end, the others beside it."""
    rng = Random(7)
    cast = Cast([Pupil()], [Pupil()], [Pupil()])
    replicas = await opened(cast, router="round-robin")
    names = [f"p{n}" for n in range(20)]
    for name in names:
        await live(replicas, name, rng.randrange(1, 5))
    assert [sorted(one.knows) for one in pupils(cast)] == [sorted(names)] * 3
    assert {len(one.ended) for one in pupils(cast)} != {20}, "some had no calls of some"


async def test_there_is_nothing_to_learn_of_who_was_not_served_or_is_not_known(
    opened: Open,
) -> None:
    cast = Cast([Pupil()], [Pupil()])
    replicas = await opened(cast)
    await replicas.end_program("p", came_to("p", 0.0))
    await replicas.end_program("q")
    assert [one.knows for one in pupils(cast)] == [[], []]


async def test_engines_that_learn_nothing_are_not_asked(opened: Open, tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    cast = Cast([], [])
    replicas = await opened(cast, history=path)
    for n in range(SAVE_EVERY + 1):
        await live(replicas, f"p{n}")
    await replicas.close()
    assert not path.exists()


async def test_who_comes_back_knows_what_the_others_do(opened: Open) -> None:
    """1. Replica 0 dies; a program ends meanwhile. 2. Its new engine is taught by replica 1.
    3. A restart on purpose is no different."""
    cast = Cast([Pupil(2), Pupil(), Pupil()], [Pupil(), Pupil()])
    replicas = await opened(cast)
    await live(replicas, "a")
    first = replicas.replicas[0]
    assert first.deaths == 1
    await becomes(first, ReplicaState.READY)
    await live(replicas, "b")
    await replicas._learning.settled()
    assert [sorted(one.knows) for one in pupils(cast)] == [["a", "b"], ["a", "b"]]
    await replicas.restart("replica-1")
    await replicas._learning.settled()
    assert [sorted(one.knows) for one in pupils(cast)] == [["a", "b"], ["a", "b"]]
    assert len(cast.made) == 4


async def test_with_nobody_left_to_ask_it_is_what_was_known_last(
    opened: Open, tmp_path: Path
) -> None:
    """A lone replica, restarted: all but what ended since the last writing is there again."""
    path = tmp_path / "history.json"
    cast = Cast([Pupil(), Pupil()])
    replicas = await opened(cast, history=path)
    names = [f"p{n:03}" for n in range(SAVE_EVERY + 5)]
    for name in names:
        await live(replicas, name)
    await replicas._learning.settled()
    await replicas.restart("replica-0")
    await replicas._learning.settled()
    assert pupils(cast)[0].knows == names[:SAVE_EVERY] == in_file(path)


async def test_the_file_is_known_to_all_and_written_as_programs_end(
    opened: Open, tmp_path: Path
) -> None:
    path = tmp_path / "new" / "history.json"
    path.parent.mkdir()
    path.write_text(json.dumps({**nothing(), "known": ["a"]}))
    cast = Cast([Pupil()], [Pupil()])
    replicas = await opened(cast, history=path)
    await replicas._learning.settled()
    assert [one.knows for one in pupils(cast)] == [["a"], ["a"]]
    for n in range(SAVE_EVERY):
        assert in_file(path) == ["a"]
        await live(replicas, f"p{n}")
    await replicas._learning.settled()
    assert len(in_file(path)) == SAVE_EVERY + 1
    await live(replicas, "last")
    assert "last" not in in_file(path)
    await replicas.close()
    assert "last" in in_file(path)
    assert [file.name for file in path.parent.iterdir()] == ["history.json"], "no drafts"
    assert read(path)["version"] == 1


async def test_a_file_that_is_none_is_refused_before_any_engine_starts(tmp_path: Path) -> None:
    from agentrt.executors.replicas import ReplicaSet
    from agentrt.router import make_router

    path = tmp_path / "history.json"
    path.write_text("{")
    cast = Cast([Pupil()])
    replicas = ReplicaSet(cast, 1, make_router("prefix"), history=path)
    with pytest.raises(ConfigError, match=r"history\.json: .*; name a file that agentrt wrote"):
        await replicas.start(lambda message: None)
    assert replicas.replicas[0].state is ReplicaState.STARTING
    await replicas.close()
    assert path.read_text() == "{"


async def test_a_file_that_cannot_be_written_costs_what_was_learned_only(
    opened: Open, tmp_path: Path
) -> None:
    notices: list[str] = []
    path = tmp_path / "history.json"
    replicas = await opened(Cast([Pupil()]), history=path, notice=notices.append)
    path.mkdir()
    await live(replicas, "p")
    await replicas.close()
    assert len(notices) == 1
    assert "what was learned of programs is not saved" in notices[0]


async def test_an_engine_that_does_not_answer_holds_nobody_up(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is asked."""
    monkeypatch.setattr(learning, "_ANSWERS_S", 0.01)
    path = tmp_path / "history.json"
    replicas = await opened(Cast([Pupil(mute=True)], [Pupil()]), history=path)
    await live(replicas, "p")
    await replicas.close()
    assert in_file(path) == ["p"]
