"""The history file of a replica set: it has the programs of all engines, each once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrt.engines import ReplicaSet
from agentrt.errors import ConfigError
from agentrt.executors.history import SAVE_EVERY, read
from agentrt.executors.info import ExecutorInfo
from agentrt.executors.replicas import RestartedEngine
from agentrt.router import make_router
from agentrt.scheduler import ProgramTotals, SchedulerConfig
from tests.executors.replicas.cast import TEXT, Cast, Mortal, call_of
from tests.executors.replicas.conftest import Open
from tests.executors.replicas.test_set import text_of


class Sized(Mortal):
    """An engine of a model and a size, which records the statistics that it gets."""

    def __init__(self, key: str = "model-a") -> None:
        super().__init__()
        self.key = key
        self.told: list[Mapping[str, Any]] = []

    @property
    def info(self) -> ExecutorInfo:
        return replace(super().info, history_key=self.key)

    async def know(self, learned: Mapping[str, Any]) -> bool:
        self.told.append(learned)
        return True


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the folder of histories of a user who has set no options."""
    monkeypatch.delenv("AGENTRT_HISTORY")
    monkeypatch.setenv("AGENTRT_DATA", str(tmp_path))
    return tmp_path / "history"


class Slow(Mortal):
    """An engine that never confirms the end of a program."""

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
    """Return the number of programs in the file."""
    return count_of(read(path))


def count_of(learned: Mapping[str, Any]) -> float:
    """Return the number of programs in these statistics."""
    return sum(float(row[4]) for row in learned["service"] if row[0] and row[2:4] == ["", 0])


def taught(cast: Cast) -> list[list[float]]:
    """Return, for each engine, the number of programs each time that it was taught."""
    engines = [engine for _, engine in cast.made if isinstance(engine, Sized)]
    return [[count_of(learned) for learned in engine.told] for engine in engines]


async def test_the_file_is_written_as_programs_end(opened: Open, tmp_path: Path) -> None:
    """Each program is counted once, even if several engines had its calls. A later set adds to the
    file.
    """
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
    """Nothing is learned from programs that were not served or are not known, or under a policy
    that does not learn.
    """
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
    with pytest.raises(ConfigError, match=r"history\.json: .*; name a file that this version"):
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
    assert "the learned statistics of programs are not saved" in notices[0]
    assert cast.latest(0).closed


# -- without a named file ----------------------------------------------------------------


def files_in(folder: Path) -> list[Path]:
    return [*folder.iterdir()] if folder.exists() else []


def put_a_file_in_the_place_of(folder: Path) -> None:
    folder.write_text("")


async def test_a_set_that_is_taught_teaches_its_engines_also_after_a_restart(
    opened: Open, tmp_path: Path
) -> None:
    """As an engine on its own is taught; without a file, too."""
    path = tmp_path / "history.json"
    first = await opened(Cast([]), scheduling=kept_in(path))
    await live(first, "p")
    await first.close()

    cast = Cast([Sized(), Sized()], [Sized()])
    second = await opened(cast, scheduling=SchedulerConfig(history="none"))
    assert await second.know(read(path))
    await live(second, "q")
    await second.restart("replica-0")
    assert taught(cast) == [[1.0], [1.0], [2.0]]
    assert not await (await opened(Cast([Mortal()]))).know(read(path))
    with pytest.raises(ConfigError, match="not a history of programs"):
        await second.know({"service": 1})


class Pupil(Sized):
    """An engine that is being taught until it dies, which its first call makes it do."""

    def __init__(self) -> None:
        super().__init__()
        self.dies_after = 0
        self.learning = asyncio.Event()

    async def know(self, learned: Mapping[str, Any]) -> bool:
        self.learning.set()
        return await asyncio.Future[bool]()


async def test_an_engine_that_dies_while_it_is_taught_dies_once(
    opened: Open, tmp_path: Path
) -> None:
    path = tmp_path / "history.json"
    pupil = Pupil()
    cast = Cast([Sized(), pupil, Sized()])
    notices: list[str] = []
    replicas = await opened(cast, scheduling=kept_in(path), notice=notices.append)
    await live(replicas, "p")
    restart = asyncio.create_task(replicas.restart("replica-0"))
    await pupil.learning.wait()
    assert "".join(await text_of(replicas, call_of())) == TEXT
    await restart
    await replicas.settled()
    [replica] = replicas.replicas
    assert (replica.deaths, replica.starts, len(cast.made)) == (1, 3, 3)
    assert [engine.closed for _, engine in cast.made] == [True, True, False]
    assert taught(cast) == [[0], [], [1.0]]
    assert notices[1:] == ["replica-0 died and is restarted: killed", "replica-0 is back"]


async def test_a_set_keeps_what_is_learned_for_its_models_and_sizes(
    opened: Open, folder: Path
) -> None:
    """1. A set learns of a program. 2. A set of equal engines knows this program, and so does an
    engine that starts again. 3. A set of other engines does not.
    """
    first = await opened(Cast([Sized()], [Sized()]), router="round-robin")
    await live(first, "p", 2)
    await first.close()
    [path] = files_in(folder)
    assert path.name == "model-a.v3.json"
    assert known(path) == 1.0

    cast = Cast([Sized(), Sized()], [Sized()])
    second = await opened(cast)
    assert second.info.history == str(path)
    await live(second, "q")
    await second.restart("replica-0")
    await second.close()
    assert taught(cast) == [[1.0], [1.0], [2.0]]
    assert known(path) == 2.0

    mixed = await opened(Cast([Sized()], [Sized("model-b")]))
    await live(mixed, "r")
    await mixed.close()
    assert known(path) == 2.0
    assert len(files_in(folder)) == 2


@pytest.mark.parametrize(
    "scheduling",
    [SchedulerConfig(history="none"), SchedulerConfig("fcfs"), SchedulerConfig("atlas")],
)
async def test_a_set_keeps_nothing_if_it_shall_or_learns_nothing(
    opened: Open, folder: Path, scheduling: SchedulerConfig
) -> None:
    replicas = await opened(Cast([Sized()]), scheduling=scheduling)
    await live(replicas, "p")
    await replicas.close()
    assert files_in(folder) == []


async def test_engines_that_learn_nothing_have_no_file(opened: Open, folder: Path) -> None:
    replicas = await opened(Cast([Mortal()]))
    await live(replicas, "p")
    await replicas.close()
    assert files_in(folder) == []


async def test_the_one_engine_of_a_server_keeps_its_own_file(folder: Path) -> None:
    """The engine core knows more about its programs than a set does. If both saved, programs would
    count twice.
    """
    engine = RestartedEngine(Sized)
    await engine.start(lambda message: None)
    await engine.end_program("p", came_to("p"))
    await engine.close()
    assert files_in(folder) == []


async def test_a_folder_that_cannot_be_written_is_one_notice(opened: Open, folder: Path) -> None:
    notices: list[str] = []
    put_a_file_in_the_place_of(folder)
    replicas = await opened(Cast([Sized()]), notice=notices.append)
    await live(replicas, "p")
    await replicas.close()
    assert len(notices) == 1
    assert "the learned statistics of programs are not kept" in notices[0]
