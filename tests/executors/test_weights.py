"""Updates of several engines: all get the weights, or none, and no engine stays paused."""

from __future__ import annotations

import asyncio
import resource
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrt.errors import AgentrtError, ConfigError, EngineDiedError, EngineError, WeightsError
from agentrt.executors import checkpoints
from agentrt.executors.checkpoints import TensorStore, check_checkpoint, mark_of, own_folder
from agentrt.executors.weights import Weights, update_engines
from agentrt.request.weights import PauseMode
from tests.doubles.scripted import ScriptedExecutor

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file


class Fake:
    """An engine whose methods raise the errors in ``fails``, and which notes what is done to it."""

    def __init__(self, **fails: AgentrtError) -> None:
        self.weights = Weights()
        self.paused = False
        self.done: list[str] = []
        self._fails = fails

    def _do(self, what: str) -> None:
        self.done.append(what)
        if (error := self._fails.pop(what, None)) is not None:
            raise error

    async def check_weights(self, folder: str) -> str:
        self._do("check")
        return "mark"

    async def pause_generation(self, mode: PauseMode) -> None:
        self._do("pause")
        self.paused = True

    async def resume_generation(self) -> None:
        self._do("resume")
        self.paused = False

    async def load_weights(self, weights: Weights, *, clear_cache: bool = False) -> None:
        assert self.paused
        await asyncio.sleep(0)
        self._do("load")
        self.weights = weights


async def update(engines: Sequence[Fake], mode: PauseMode = "keep") -> Weights:
    return await update_engines(engines, "/new", 1, mode)


def versions(engines: Sequence[Fake]) -> list[int]:
    assert not any(engine.paused for engine in engines)
    return [engine.weights.version for engine in engines]


async def test_all_engines_are_paused_before_one_loads() -> None:
    engines = [Fake(), Fake(), Fake()]
    assert await update(engines) == Weights(1, "/new", "mark")
    assert versions(engines) == [1, 1, 1]
    assert all(engine.done == ["check", "pause", "load", "resume"] for engine in engines)


@pytest.mark.parametrize("step", ["check", "pause", "load"])
@pytest.mark.parametrize("at", [0, 1, 2])
async def test_one_engine_fails(step: str, at: int) -> None:
    engines = [Fake(), Fake(), Fake()]
    error = WeightsError("no") if step == "check" else EngineError("no")
    engines[at] = Fake(**{step: error})
    with pytest.raises(AgentrtError, match="no"):
        await update(engines)
    assert versions(engines) == [0, 0, 0]


@pytest.mark.parametrize("step", ["check", "pause", "load"])
async def test_an_engine_that_dies_is_left_out(step: str) -> None:
    engines = [Fake(), Fake(**{step: EngineDiedError("dead")})]
    await update(engines)
    assert engines[0].weights.version == 1


async def test_all_engines_die() -> None:
    for step in ("check", "pause", "load"):
        for number in (1, 2):
            engines = [Fake(**{step: EngineDiedError("dead")}) for _ in range(number)]
            with pytest.raises(EngineDiedError):
                await update(engines)


async def test_an_engine_that_cannot_go_back_is_named() -> None:
    """1. One engine loads the weights, and another fails. 2. The first cannot load its old weights
    again. 3. The next update brings both to one version.
    """

    class Stuck(Fake):
        async def load_weights(self, weights: Weights, *, clear_cache: bool = False) -> None:
            if weights.version == 0:
                raise EngineError("the files have changed")
            await super().load_weights(weights, clear_cache=clear_cache)

    engines = [Stuck(), Fake(load=EngineError("no memory"))]
    says = "go on with version 0: no memory; 1 of 2 engines had loaded version 1 and keep it"
    with pytest.raises(EngineError, match=says):
        await update(engines)
    assert versions(engines) == [1, 0]
    await update_engines(engines, "/newer", 2, "keep")
    assert versions(engines) == [2, 2]


async def test_an_engine_that_was_paused_stays_paused() -> None:
    engines = [Fake(), Fake()]
    engines[0].paused = True
    await update(engines)
    assert [engine.paused for engine in engines] == [True, False]
    assert [engine.weights.version for engine in engines] == [1, 1]


@pytest.mark.parametrize("turns", range(12))
async def test_a_cancelled_update_is_done_or_not_done(turns: int) -> None:
    engines = [Fake(), Fake()]
    task = asyncio.create_task(update(engines))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert versions(engines) in ([0, 0], [1, 1])


async def test_an_engine_without_weights_says_so() -> None:
    executor = ScriptedExecutor()
    for work in (executor.update_weights("/new", 1), executor.pause_generation("keep")):
        with pytest.raises(ConfigError, match="--engine vllm"):
            await work


# -- checkpoints -----------------------------------------------------------------------------------


def saved(folder: Path, name: str = "model.safetensors", /, **shapes: tuple[int, ...]) -> str:
    folder.mkdir(exist_ok=True)
    tensors = {key.replace("__", "."): torch.zeros(shape) for key, shape in shapes.items()}
    save_file(tensors, folder / name)
    return str(folder)


OWN = {"a__weight": (4, 2), "b__weight": (3,)}


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"a__weight": (4, 2)}, r"'b.weight' is missing"),
        ({**OWN, "b__weight": (5,)}, r"'b.weight' has the shape \[5\], and the model's has \[3\]"),
        ({**OWN, "c__weight": (1,)}, r"'c.weight' is unknown"),
    ],
)
def test_weights_of_another_model(tmp_path: Path, shapes: Any, says: str) -> None:
    own = saved(tmp_path / "own", **OWN)
    other = saved(tmp_path / "other", **shapes)
    with pytest.raises(WeightsError, match=says) as caught:
        check_checkpoint(other, Path(own))
    assert "\n" not in str(caught.value)
    assert check_checkpoint(other, None) == mark_of(other)  # nothing to compare it with


def test_tied_heads_may_be_left_out_or_added(tmp_path: Path) -> None:
    own = saved(tmp_path / "own", **OWN)
    head = saved(tmp_path / "head", **OWN, lm_head__weight=(4, 2))
    check_checkpoint(own, Path(head))
    check_checkpoint(head, Path(own))


def test_broken_checkpoints(tmp_path: Path) -> None:
    own = Path(saved(tmp_path / "own", **OWN))
    with pytest.raises(WeightsError, match="no such folder"):
        check_checkpoint(str(tmp_path / "none"), own)
    (tmp_path / "empty").mkdir()
    with pytest.raises(WeightsError, match=r"no \.safetensors file"):
        check_checkpoint(str(tmp_path / "empty"), own)
    cut = Path(saved(tmp_path / "cut", **OWN)) / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-3])
    with pytest.raises(WeightsError, match="damaged or incomplete"):
        check_checkpoint(str(cut.parent), own)
    shard = Path(saved(tmp_path / "shards", "model-1.safetensors", **OWN))
    index = shard / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}')
    with pytest.raises(WeightsError, match=r"model-2\.safetensors is missing"):
        check_checkpoint(str(shard), own)
    index.write_text("{")
    with pytest.raises(WeightsError, match="cannot be read"):
        check_checkpoint(str(shard), own)
    index.unlink()
    index.symlink_to(tmp_path / "gone")
    with pytest.raises(WeightsError, match=r"index\.json cannot be read"):
        check_checkpoint(str(shard), own)
    (tmp_path / "empty" / "model.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(WeightsError, match=r"model\.safetensors cannot be read"):
        mark_of(str(tmp_path / "empty"))
    with pytest.raises(WeightsError, match="no such folder"):
        mark_of("a" * 300)
    assert own_folder("a" * 300) is None


def test_a_mark_changes_with_the_files(tmp_path: Path) -> None:
    folder = saved(tmp_path / "w", **OWN)
    before = mark_of(folder)
    assert mark_of(folder) == before
    saved(tmp_path / "w", "model-2.safetensors", c=(1,))
    assert mark_of(folder) != before


def test_tensors_in_python(tmp_path: Path) -> None:
    store = TensorStore()
    tied = torch.ones(4, 2)
    first = store.save({"a.weight": tied, "b.weight": torch.zeros(3), "lm_head.weight": tied}, 1)
    own = Path(saved(tmp_path / "own", **OWN))
    check_checkpoint(first, own)
    folders = [first, *(store.save(iter([("x", tied.T)]), number) for number in (2, 3))]
    for folder in folders:
        store.keep(folder)
    assert [Path(folder).exists() for folder in folders] == [False, True, True]
    for wrong in (3, {"a": 1}, [tied], {1: tied}):
        with pytest.raises(ConfigError, match="weights must be"):
            store.save(wrong, 4)
    store.close()
    assert not any(Path(folder).exists() for folder in folders)


def test_tensors_that_cannot_be_written(tmp_path: Path) -> None:
    store = TensorStore()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(WeightsError, match=r"version 1 could not be written.*make room"):
            store.save({"a": torch.zeros(4096)}, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    folder = Path(store.save({"a": torch.zeros(3)}, 2))
    assert [*folder.parent.iterdir()] == [folder]
    store.close()


def test_no_room_for_a_folder_of_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_MEMORY", tmp_path / "file")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(WeightsError, match=r"version 1 could not be written to .*gone"):
        TensorStore().save({"a": torch.zeros(3)}, 1)
