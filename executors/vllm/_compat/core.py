"""The engine core and its client: what is called there by name, its reader, its process.

Importing this imports nothing of vLLM: clients do so before they load an engine.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

    from agentrt.executors.vllm.early import EarlyCore

UTILITY = "agentrt"
"""The name under which a client reaches our scheduler: `EngineCore.agentrt(op, argument)`."""


def install_control() -> None:
    """Let clients call ``scheduler.control(op, argument)`` in the engine core."""
    install_utility(UTILITY, lambda scheduler, op, argument: scheduler.control(op, argument))


def install_utility(name: str, answer: Callable[[Any, str, Any], Any]) -> None:
    """Let clients call ``answer(scheduler, op, argument)`` in the engine core, by this name.

    vLLM looks utility methods up on the engine core when a message arrives: setting one
    class attribute where the scheduler class is imported is enough. It counts the method's
    parameters, and takes no ``*args``.
    """
    from vllm.v1.engine.core import EngineCore

    def utility(self: Any, op: str, argument: Any = None) -> Any:
        return answer(self.scheduler, op, argument)

    setattr(EngineCore, name, utility)


async def ask_scheduler(
    llm: AsyncLLM, op: str, argument: Any = None, utility: str = UTILITY
) -> Any:
    """What a utility in the engine core answers. Raises what it raises, and vLLM's own errors."""
    return await llm.engine_core.call_utility_async(utility, op, argument)


def start_reader(llm: AsyncLLM) -> None:
    """Start the client's task that reads the engine core's outputs, before any program runs.

    vLLM would start it in the first call, whose context it would then keep alive.
    """
    llm._run_output_handler()


def stop_reader(llm: AsyncLLM) -> None:
    """Cancel the task that `start_reader` started."""
    if llm.output_handler is not None:
        llm.output_handler.cancel()


def close_context(llm: AsyncLLM) -> None:
    """Close the ZeroMQ context that vLLM's own shutdown leaves to the garbage collector."""
    llm.engine_core.resources.ctx.destroy(linger=0)


def core_pids(llm: AsyncLLM) -> list[int]:
    """The process of the engine core."""
    manager = llm.engine_core.resources.engine_manager
    return [] if manager is None else [process.pid for process in manager.processes]


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
        "agentrt.executors.vllm.scheduler",
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
