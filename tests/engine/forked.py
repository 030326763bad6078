"""Engine cores and commands of tests: forks of one process that has imported what takes seconds."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, popen_fork, popen_forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from agentrt.engines import EngineOptions, VLLMEngine
from agentrt.executors.vllm import options
from agentrt.executors.vllm.options import prepare_environment
from agentrt.executors.vllm.processes import descendants
from tests.doubles.forked_python import ended, write_python
from tests.engine.early import EarlyCore, _environment, core_in, needs_of_core

if sys.modules.get("ray", sys) is None:  # in a server of forks: see `without_ray`
    del sys.modules["ray"]

_SERVER = forkserver.ForkServer()
"""Not Python's own, which tests of other folders let import what they need."""
_SERVER_HAS: dict[str, str] = {}
"""The variables with which it was started."""
_UNCOMPILED = {"TORCH_COMPILE_DISABLE": "1"}
"""All that an engine compiles on a CPU counts how likely other tokens were: ten seconds, once."""
_OF_COMMANDS = ("vllm.entrypoints.openai.api_server", "agentrt.serving.app", "agentrt.cli.serving")
_STREAMS = (1, 2)
_OVERRIDDEN = "tests.engine.overridden"
_KV_CACHE_BYTES = 1 << 28
"""Of an engine that is not told another size. It writes zeros to all of it as it starts, and the
gibibyte that users have takes as long as the rest of a tiny model's start.
"""
# A node's Python: workers are forks, and what else a node runs is not.
_OF_RAY = """#!/bin/sh
case $1 in
*/default_worker.py) shift; exec '{forks}' -m ray._private.workers.default_worker "$@" ;;
esac
exec '{python}' "$@"
"""


class _Popen(popen_forkserver.Popen):
    """Hands its standard streams on, which is a command's log while that loads its engine."""

    def _launch(self, process_obj: BaseProcess) -> None:
        def connect(fds: Sequence[int]) -> tuple[int, int]:
            return _SERVER.connect_to_new_process([*fds, *_STREAMS])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(forkserver, "connect_to_new_process", connect)
            super()._launch(process_obj)  # type: ignore[misc]  # typeshed lacks it


def _start_server() -> None:
    if not _SERVER_HAS:
        modules, needed = needs_of_core(on_gpu=False)
        environment = {**needed, **_UNCOMPILED}
        first = "tests.engine.without_ray"
        _SERVER.set_forkserver_preload([first, *modules, *_OF_COMMANDS, _OVERRIDDEN, __name__])
        _SERVER_HAS.update({**os.environ, **environment})
        with _environment(environment):
            _SERVER.ensure_running()


class ForkedCore(EarlyCore):
    """An `EarlyCore` that finds its modules imported."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        _start_server()
        super().__init__(modules, environment)
        self._environment = dict(_SERVER_HAS)

    def run(self) -> None:
        inherited = forkserver.get_inherited_fds() or ()
        for number, stream in zip(_STREAMS, inherited[-len(_STREAMS) :], strict=True):
            os.dup2(stream, number)
        super().run()

    # What Python calls to start a process; that of its spawn context has another type.
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> _Popen:  # type: ignore[override]  # noqa: N802
        return _Popen(process_obj)


class _CoreOfFork(EarlyCore):
    """The core of a command that is a fork itself: forked before the command has done anything."""

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> popen_fork.Popen:  # type: ignore[override]  # noqa: N802
        return popen_fork.Popen(process_obj)

    def run(self) -> None:
        self._writer.close()  # so that the end of the command's own is seen
        super().run()


@contextmanager
def loading_in(make: Callable[[], EarlyCore]) -> Iterator[None]:
    """Within, each engine of this process has its core in the one that is made for it.

    And a small KV cache, as for tests.
    """
    ordinary = VLLMEngine._load

    def load(engine: VLLMEngine) -> Any:
        core = make()
        try:
            with core_in(core):
                return ordinary(engine)
        finally:
            core.dismiss()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VLLMEngine, "_load", load)
        patch.setitem(options._ON_CPU, "kv_cache_memory_bytes", _KV_CACHE_BYTES)
        yield


def run_module(module: str, arguments: Sequence[str]) -> int:
    """In a fork: be `python -m MODULE …`, whose engine core is forked now. Gives the exit code."""
    core = _CoreOfFork(*needs_of_core(on_gpu=False))
    sys.argv = [module, *arguments]
    with loading_in(lambda: core), core_in(core):  # ours, or that of vLLM's own server
        return ended(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))


def _python_of_forks(folder: Path) -> str:
    """A Python whose `-m MODULE …` is a fork, which has its imports."""
    prepare_environment(EngineOptions())
    _start_server()
    return write_python(folder, _SERVER, f"{__name__}:{run_module.__name__}")


@contextmanager
def forked_python(folder: Path) -> Iterator[None]:
    """Within, `sys.executable` is a `_python_of_forks`.

    For commands of which a test asks what they serve, and not how they start or end.
    """
    python = _python_of_forks(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", python)
        yield


def python_for_ray(folder: Path) -> Path:
    """A Python for the nodes of a Ray cluster, whose workers are forks; all else is as ever."""
    python = folder / "ray-python"
    text = _OF_RAY.format(forks=_python_of_forks(folder), python=sys.executable)
    python.write_text(text, encoding="utf-8")
    python.chmod(0o755)
    return python


def forks() -> list[int]:
    """The ids of all commands and cores that are forks."""
    return descendants(_SERVER._forkserver_pid)  # type: ignore[attr-defined]  # typeshed lacks it
