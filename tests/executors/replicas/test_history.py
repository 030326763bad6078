"""What the replica set writes into the history file: the programs of all engines, once each."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentrt.errors import ConfigError
from agentrt.executors.history import SAVE_EVERY, read
from agentrt.executors.replicas import ReplicaSet
from agentrt.router import make_router
from agentrt.scheduler import ProgramTotals, SchedulerConfig
from tests.executors.replicas.cast import Cast, Mortal, call_of
from tests.executors.replicas.conftest import Open
from tests.executors.replicas.test_set import text_of


class Slow(Mortal):
    """Does not answer that a program has ended."""

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        await super().end_program(program_id, totals)
        await asyncio.Event().wait()


def came_to(program: str, service_s: float = 3.0) -> ProgramTotals:
    return ProgramTotals(program, "t", service_s=service_s)


async def live(replicas: ReplicaSet, program: str, calls: int = 1) -> None:
    for number in range(calls):
        await text_of(replicas, call_of(number, program))
    await replicas.end_program(program, came_to(program))


def kept_in(path: Path, policy: str = "adaptive") -> SchedulerConfig:
    return SchedulerConfig(policy, history=str(path))


def known(path: Path) -> float:
    """How many programs the file knows of."""
    return sum(float(row[4]) for row in read(path)["service"] if row[0] and row[2:4] == ["", 0])


async def test_the_file_is_written_as_programs_end(opened: Open, tmp_path: Path) -> None:
    """Once for each, though several engines had calls of it; and it goes on where it was."""
    path = tmp_path / "new" / "history.json"
    for before in (0, SAVE_EVERY + 1):
        replicas = await opened(Cast([], []), router="round-robin", scheduling=kept_in(path))
        for n in range(SAVE_EVERY):
            assert known(path) == before
            await live(replicas, f"p{n}", 1 + n % 3)
        assert known(path) == before + SAVE_EVERY
        await live(replicas, "last")
        await replicas.close()
        assert known(path) == before + SAVE_EVERY + 1
    assert [file.name for file in path.parent.iterdir()] == ["history.json"], "no drafts"


@pytest.mark.parametrize("policy", ["adaptive", "atlas"])
async def test_of_some_programs_there_is_nothing_to_learn(
    opened: Open, tmp_path: Path, policy: str
) -> None:
    """Of those that were not served or are not known, and under a policy that does not learn."""
    path = tmp_path / "history.json"
    replicas = await opened(Cast([]), scheduling=kept_in(path, policy))
    await replicas.end_program("p", came_to("p", 0.0))
    await replicas.end_program("q")
    if policy == "atlas":
        await live(replicas, "r")
    await replicas.close()
    assert not path.exists()


async def test_a_program_that_is_called_off_while_it_ends_is_learned_of(
    opened: Open, tmp_path: Path
) -> None:
    path = tmp_path / "history.json"
    cast = Cast([Slow()])
    replicas = await opened(cast, scheduling=kept_in(path))
    ending = asyncio.create_task(live(replicas, "p"))
    while "p" not in cast.latest(0).ended:
        await asyncio.sleep(0)
    ending.cancel()
    await asyncio.wait([ending])
    await replicas.close()
    assert known(path) == 1.0


def test_a_file_that_is_none_is_refused_before_any_engine_starts(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"history\.json: .*; name a file that agentrt wrote"):
        ReplicaSet(Cast([]), 1, make_router("prefix"), scheduling=kept_in(path))
    assert path.read_text() == "{"


async def test_a_file_that_cannot_be_written_costs_what_was_learned_only(
    opened: Open, tmp_path: Path
) -> None:
    notices: list[str] = []
    path = tmp_path / "history.json"
    cast = Cast([Mortal()])
    replicas = await opened(cast, scheduling=kept_in(path), notice=notices.append)
    path.mkdir()
    await live(replicas, "p")
    await replicas.close()
    assert len(notices) == 1
    assert "what was learned of programs is not saved" in notices[0]
    assert cast.latest(0).closed
