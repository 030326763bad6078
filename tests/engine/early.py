"""Engine cores of tests that have vLLM imported before their engine is made.

vLLM starts its core when the parent has imported vLLM and read the model's configuration, and the
core imports vLLM once more: seconds for each engine. An `EarlyCore` is handed what it should run.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context, spawn
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType
from typing import Any

from agentrt.executors.vllm.processes import (
    collections_paused,
    interrupts_blocked,
    leave_interrupts_to_parent,
)

_READ_ONCE = ("LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "CUDA_", "PYTHON")
"""How variables begin that the loader, Python or a library reads as it is loaded."""
_READ_LATER = ("PYTHONBREAKPOINT",)
"""One that Python reads when it is used. Ray sets it where it connects."""
_END_S = 5.0
_SCRIPT = b"__main__"
"""In what is handed over: something of the user's script, which is needed then."""


class EarlyCore(SpawnProcess):
    """A process that waits for what it should run; ``modules`` are imported meanwhile.

    It starts with the variables of ``environment``. To vLLM it is a process like any that it
    would have made: `start` hands over the work.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        reader, self._writer = get_context("spawn").Pipe(duplex=False)
        self._work: tuple[Callable[..., None], Mapping[str, Any]] | None = None
        super().__init__(target=_wait_for_work, name="EngineCore", args=(reader, modules))
        with interrupts_blocked(), _environment(environment), _without_script():
            super().start()
        reader.close()
        self._environment = {**os.environ, **environment}

    def fits(self) -> bool:
        """Whether it is as if it were started now: alive, and what is read once is unchanged."""
        now, then = os.environ, self._environment
        same = all(
            now.get(name) == then.get(name)
            for name in now.keys() | then.keys()
            if name.startswith(_READ_ONCE) and name not in _READ_LATER
        )
        return same and self.is_alive()

    def give(self, target: Callable[..., None], kwargs: Mapping[str, Any]) -> EarlyCore:
        """What it is to run, once it is started."""
        self._work = target, kwargs
        return self

    def start(self) -> None:
        """Hand over the work. If the process has died, that is seen as it would be later on."""
        work = bytes(ForkingPickler.dumps(self._work))
        told = spawn.get_preparation_data(self.name) if _SCRIPT in work else {}
        prepared = {name: told[name] for name in told if name.startswith("init_main_")}
        prepared["dir"] = str(Path.cwd())
        with contextlib.suppress(OSError), self._writer:
            self._writer.send((dict(os.environ), sys.path, prepared))
            self._writer.send_bytes(work)

    def dismiss(self) -> None:
        """End it, unless it has something to run by now."""
        if not self._writer.closed:
            self._writer.close()
            self.kill()
            self.join(_END_S)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Start processes with these variables."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _without_script() -> Iterator[None]:
    """Start processes that do not import the program that this one runs."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _wait_for_work(reader: Connection, modules: Sequence[str]) -> None:
    leave_interrupts_to_parent()
    with collections_paused():
        for name in modules:
            with contextlib.suppress(ImportError):  # the parent says what is missing
                import_module(name)
    gc.freeze()  # modules stay: the collections with which vLLM's start ends need not look at them
    try:
        environment, path, prepared = reader.recv()
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = path
        spawn.prepare(prepared)
        target, kwargs = reader.recv()
    except EOFError:  # it was dismissed, or its parent has died
        return
    reader.close()
    target(**kwargs)


# -- how vLLM comes to take it -----------------------------------------------------------

_STARTING = threading.local()


def needs_of_core(*, on_gpu: bool) -> tuple[tuple[str, ...], dict[str, str]]:
    """The modules that an engine core imports, and variables that it must find at its start.

    On a CPU vLLM sets these when it is configured; they are read only once, by the loader and
    by libraries, so that a process that starts earlier needs them, too.
    """
    worker = "gpu_worker" if on_gpu else "cpu_worker"
    modules = (
        "vllm.v1.engine.core",
        "vllm.v1.executor.uniproc_executor",
        f"vllm.v1.worker.{worker}",
        "agentrt.executors.vllm.engine_core.scheduler",
    )
    if on_gpu:
        return modules, {}
    preload = os.environ.get("LD_PRELOAD", "")
    if not any(name in preload for name in ("libomp", "libgomp", "libiomp")):
        preload = ":".join(filter(None, (preload, _library("torch", "lib", "libgomp*.so*"))))
    if "libtcmalloc" not in preload:
        allocator = _library("vllm", "libs", "libtcmalloc*.so*")
        preload = ":".join(filter(None, (allocator, preload)))
    once = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1"}
    return modules, {**once, "LD_PRELOAD": preload} if preload else once


def _library(package: str, folder: str, pattern: str) -> str:
    """A library inside a package that is not imported yet; "" where it has none."""
    spec = find_spec(package)
    places = (spec.submodule_search_locations or ()) if spec is not None else ()
    return next((str(f) for place in places for f in Path(place, folder).glob(pattern)), "")


@contextmanager
def core_in(core: EarlyCore | None) -> Iterator[None]:
    """Within, an engine that this thread makes has its core in this process, if it fits.

    Not where vLLM would start it by another program, fork it, or share a queue of tensors with it.
    """
    from vllm.v1.engine import utils

    if not hasattr(utils.get_mp_context, "ordinary"):
        ordinary = utils.get_mp_context

        def get_mp_context() -> Any:
            core = getattr(_STARTING, "core", None)
            return ordinary() if core is None else _Context(ordinary(), core)

        get_mp_context.ordinary = ordinary  # type: ignore[attr-defined]  # marks ours
        utils.get_mp_context = get_mp_context
    _STARTING.core = core
    try:
        yield
    finally:
        _STARTING.core = None


class _Context:
    """A multiprocessing context whose process there is already."""

    def __init__(self, ordinary: Any, core: EarlyCore) -> None:
        self._ordinary, self._core = ordinary, core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ordinary, name)

    def Process(self, **given: Any) -> Any:  # noqa: N802  # vLLM calls it so
        work = given["kwargs"]
        parallel = work["vllm_config"].parallel_config
        ours = (
            self._ordinary.get_start_method() == "spawn"
            and not parallel.numa_bind
            and work.get("tensor_queue") is None
        )
        if ours and self._core.fits():
            return self._core.give(given["target"], work)
        return self._ordinary.Process(**given)
