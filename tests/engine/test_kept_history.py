"""What a real engine learned, kept for the next one: where it is, and what it does not stop."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from agentrt import Context, Runtime, SchedulerConfig, program
from agentrt.engines import EngineOptions, VLLMEngine
from agentrt.errors import ConfigError
from agentrt.executors.history import read
from agentrt.lab.engine.engines import LabEngine
from tests.doubles.tinymodel import tiny_model

pytestmark = pytest.mark.engine

FLAGS = ("--dtype", "float32", "--max-model-len", "512")
PROGRAMS = 3


@program
async def asking(ctx: Context) -> None:
    for turn in range(2):
        await ctx.llm(f"Question {turn}", max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a user who has set nothing."""
    monkeypatch.delenv("AGENTRT_HISTORY")
    monkeypatch.setenv("AGENTRT_DATA", str(tmp_path))
    return tmp_path / "history"


async def run_on(engine: VLLMEngine) -> None:
    async with Runtime(engine) as runtime:
        for run in [runtime.start(asking) for _ in range(PROGRAMS)]:
            await run.wait()


def ended(path: Path) -> float:
    """How many programs the file knows of."""
    return sum(float(row[4]) for row in read(path)["service"] if row[1:4] == ["asking", "", 0])


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def spoil(path: Path) -> None:
    path.write_text("{")


async def test_a_core_that_is_killed_at_once_when_its_engine_closes_has_kept_what_it_learned(
    folder: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrt.executors.vllm.lifetime._SHUTDOWN_S", 0.0)
    await run_on(VLLMEngine(EngineOptions(model, 2, flags=FLAGS)))
    [path] = files_in(folder)
    assert ended(path) == PROGRAMS


async def test_an_engine_whose_close_is_cancelled_is_shut_down(folder: Path, model: str) -> None:
    engine = VLLMEngine(EngineOptions(model, 2, flags=FLAGS))
    await engine.start(lambda message: None)
    pids = engine.pids()
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert pids
    assert not any(map(is_alive, pids))


async def test_the_next_engine_of_the_model_and_size_knows_it_whatever_its_policy(
    folder: Path, model: str
) -> None:
    """1. The defaults learn. 2. They resume. 3. Another policy keeps what they know beside what its
    admission learns. 4. An engine of another size has a file of its own."""
    for round_ in (1, 2):
        engine = VLLMEngine(EngineOptions(model, 2, flags=FLAGS))
        await run_on(engine)
        [path] = files_in(folder)
        assert engine.info.history == str(path)
        assert ended(path) == round_ * PROGRAMS
    [[_, _, calls]] = read(path)["usual"]
    assert calls["output"][0] == 2 * 2 * PROGRAMS
    atlas = SchedulerConfig("atlas", retention="cost", admission="memory")
    await run_on(VLLMEngine(EngineOptions(model, 2, atlas, FLAGS)))
    assert files_in(folder) == [path]
    assert ended(path) == 2 * PROGRAMS
    [[_, _, calls]] = read(path)["usual"]
    assert calls["output"][0] == 3 * 2 * PROGRAMS
    await run_on(VLLMEngine(EngineOptions(model, 4, flags=FLAGS)))
    assert len(files_in(folder)) == 2


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (VLLMEngine, EngineOptions(scheduler=SchedulerConfig("fcfs"))),
        (VLLMEngine, EngineOptions(scheduler=SchedulerConfig(history="none"))),
        (VLLMEngine, EngineOptions(replicas=2)),
        (LabEngine, EngineOptions()),
    ],
    ids=["learns nothing", "shall not", "its set does", "is measured"],
)
async def test_some_engines_keep_nothing(
    kind: type[VLLMEngine], options: EngineOptions, folder: Path, model: str
) -> None:
    own = EngineOptions(model, 2, options.scheduler, FLAGS, replicas=options.replicas)
    engine = kind(own)
    await run_on(engine)
    assert files_in(folder) == []
    assert engine.info.history == ""
    assert engine.info.history_key.startswith("tiny-")


async def test_a_broken_file_is_one_warning(
    folder: Path, model: str, caplog: pytest.LogCaptureFixture
) -> None:
    await run_on(VLLMEngine(EngineOptions(model, 2, flags=FLAGS)))
    [path] = files_in(folder)
    spoil(path)
    with caplog.at_level(logging.WARNING, logger="agentrt"):
        await run_on(VLLMEngine(EngineOptions(model, 2, flags=FLAGS)))
    [warning] = [one for one in caplog.records if one.name.startswith("agentrt")]
    assert "the statistics of earlier runs cannot be read" in warning.getMessage()
    assert ended(path) == PROGRAMS


async def test_a_named_file_that_is_none_is_refused(folder: Path, model: str) -> None:
    path = folder.with_name("own.json")
    spoil(path)
    engine = VLLMEngine(EngineOptions(model, 2, SchedulerConfig(history=str(path)), FLAGS))
    with pytest.raises(ConfigError, match=r"own\.json: .*; name a file that this version"):
        await engine.start(lambda message: None)
    await engine.close()
    assert files_in(folder) == []
