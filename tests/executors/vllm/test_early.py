"""A core's process that starts before its parent has anything for it to do."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrt.errors import ModelLoadError
from agentrt.executors.vllm import engine as module
from agentrt.executors.vllm._compat.core import core_in
from agentrt.executors.vllm.early import EarlyCore
from agentrt.executors.vllm.engine import VLLMEngine
from agentrt.executors.vllm.options import EngineOptions
from agentrt.executors.vllm.processes import is_live, keep_heap_frozen

MODULE = "pyclbr"
"""Of the standard library, and imported by nobody."""


def describe(path: str, was_imported: str) -> None:
    keep_heap_frozen()
    gc.freeze()
    gc.unfreeze()
    told = {
        "pid": os.getpid(),
        "imported": was_imported in sys.modules,
        "variable": os.environ.get("AGENTRT_TEST"),
        "path": sys.path,
        "frozen": gc.get_freeze_count() > 0,
    }
    Path(path).write_text(json.dumps(told))


def test_it_runs_what_it_is_given_as_the_parent_is_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dict(os.environ)
    core = EarlyCore([MODULE], {"AGENTRT_TEST": "at its start"})
    assert dict(os.environ) == before
    monkeypatch.setenv("AGENTRT_TEST", "set later")
    monkeypatch.syspath_prepend(tmp_path)
    told = tmp_path / "told.json"
    core.give(describe, {"path": str(told), "was_imported": MODULE}).start()
    core.dismiss()  # it has its work by now
    core.join(120)
    assert core.exitcode == 0
    found = json.loads(told.read_text())
    assert found["pid"] == core.pid
    assert found["imported"]
    assert MODULE not in sys.modules
    assert found["variable"] == "set later"
    assert str(tmp_path) in found["path"]
    assert found["frozen"]


SCRIPT = """
from agentrt.executors.vllm.early import EarlyCore

def work(answer):
    print(__name__, answer, flush=True)

print("runs", flush=True)
if __name__ == "__main__":
    core = EarlyCore((), {})
    core.give(%s, %s).start()
    core.join()
"""


@pytest.mark.parametrize(
    ("work", "given", "printed"),
    [("print", "{}", "runs\n\n"), ("work", '{"answer": 42}', "runs\nruns\n__mp_main__ 42\n")],
    ids=["of a library", "of the script"],
)
def test_a_script_is_run_again_only_for_what_is_its_own(
    tmp_path: Path, work: str, given: str, printed: str
) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT % (work, given))
    run = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == (printed, "")


def test_nothing_stays_frozen_in_the_parent() -> None:
    thaw = gc.unfreeze
    keep_heap_frozen()
    assert gc.unfreeze is thaw


def test_dismissed_it_is_gone() -> None:
    core = EarlyCore([], {})
    assert core.pid is not None
    core.dismiss()
    assert not core.is_alive()
    assert not is_live(core.pid)
    assert not core.fits()
    core.give(describe, {}).start()  # seen by whoever waits for the process, as a core's death is


def test_it_does_not_fit_once_the_loader_would_do_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)  # another test's vLLM may have set it
    environment = {"LD_PRELOAD": "", "TORCH_TEST": "1"}
    core = EarlyCore([], environment)
    try:
        assert not core.fits()
        monkeypatch.setenv("LD_PRELOAD", "")  # as vLLM would set it later
        assert core.fits()
        monkeypatch.setenv("AGENTRT_TEST", "read when it is needed")
        monkeypatch.setenv("PYTHONBREAKPOINT", "ray.util.rpdb.set_trace")  # as Ray does
        assert core.fits()
        monkeypatch.setenv("LD_PRELOAD", "another.so")
        assert not core.fits()
    finally:
        core.dismiss()


def config(*, numa_bind: bool = False) -> SimpleNamespace:
    return SimpleNamespace(parallel_config=SimpleNamespace(numa_bind=numa_bind))


@pytest.mark.engine
@pytest.mark.parametrize(
    ("method", "kwargs", "ours"),
    [
        ("spawn", {"vllm_config": config(), "tensor_queue": None}, True),
        ("fork", {"vllm_config": config(), "tensor_queue": None}, False),
        ("spawn", {"vllm_config": config(numa_bind=True), "tensor_queue": None}, False),
        ("spawn", {"vllm_config": config(), "tensor_queue": "a queue"}, False),
    ],
)
def test_vllm_starts_its_core_in_it_where_it_can(
    method: str, kwargs: dict[str, Any], ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.engine import utils

    class Fitting(EarlyCore):
        def __init__(self) -> None:
            self.given: Any = None

        def fits(self) -> bool:
            return True

        def give(self, target: Any, kwargs: Any) -> EarlyCore:
            self.given = target, kwargs
            return self

    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", method)
    core = Fitting()
    with core_in(core):
        process = utils.get_mp_context().Process(target=describe, name="x", kwargs=kwargs)
    assert (process is core) == ours
    assert core.given == ((describe, kwargs) if ours else None)
    # Outside, and in other threads, vLLM is as it was.
    ordinary = utils.get_mp_context().Process(target=describe, name="x", kwargs=kwargs)
    assert not isinstance(ordinary, EarlyCore)


class Recorder:
    def __init__(self) -> None:
        self.dismissed = 0

    def dismiss(self) -> None:
        self.dismissed += 1


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(module, "EarlyCore", lambda modules, environment: made)
    monkeypatch.setattr(module, "spawns_core", lambda: True)
    monkeypatch.setattr(module, "prepare_environment", lambda options: None)
    return made


async def test_a_start_that_fails_leaves_none_behind(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "import_vllm", lambda: None)
    with pytest.raises(ModelLoadError, match="no such folder"):
        await VLLMEngine(EngineOptions("./nowhere")).start(lambda message: None)
    assert recorder.dismissed == 1


async def test_a_start_that_is_given_up_leaves_none_behind(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    importing = asyncio.Event()

    async def apart(work: Any) -> None:
        importing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(module, "apart", apart)
    start = asyncio.create_task(VLLMEngine(EngineOptions()).start(lambda message: None))
    await importing.wait()
    assert recorder.dismissed == 0
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert recorder.dismissed == 1
