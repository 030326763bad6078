"""Imports vLLM before an engine starts, and shuts engines down."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agentrt.errors import ModelLoadError
from agentrt.executors.vllm._compat.core import close_context, stop_reader
from agentrt.executors.vllm.processes import collections_paused, in_new_thread
from agentrt.extras import install_vllm

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_SHUTDOWN_S = 3.0
_DRIVERS = ("libcuda.", "libnvidia", "libamdhip", "libhsa")
_NO_DEVICE = (
    "this vLLM is built for GPUs, and there is no GPU driver; repair the driver until nvidia-smi "
    "(or rocm-smi) lists the GPU, give the container the GPU (docker run --gpus all), install "
    "vLLM's build for CPUs, or use --engine simulated, which does not need vLLM"
)
_ENDING: set[asyncio.Task[None]] = set()
"""Tasks that shut down abandoned engines. The event loop holds no strong reference to tasks."""


def import_vllm() -> None:
    """Import vLLM, which takes seconds.

    Raises `ModelLoadError` if vLLM cannot be imported, or finds no device for which it was built.
    """
    try:
        with collections_paused():
            # Imported only so that it is loaded.
            import vllm.v1.engine.async_llm  # noqa: F401
    except (ImportError, OSError) as error:  # an OSError: torch loads libraries by itself
        if any(name in str(error) for name in _DRIVERS):
            raise ModelLoadError(f"vLLM cannot be imported ({error}): {_NO_DEVICE}") from error
        raise ModelLoadError(
            f"vLLM cannot be imported ({error}); {install_vllm()}; --engine simulated does not "
            "need vLLM"
        ) from error
    # Without a device, vLLM fails later with various messages, some of which blame the model.
    from vllm.platforms import current_platform

    if not current_platform.device_type:
        raise ModelLoadError(f"vLLM finds no device to run on: {_NO_DEVICE}")


def short_name(model: str) -> str:
    """Return a model's name for a line of progress: without its organization or folder."""
    return model.rstrip("/").split("/")[-1]


def shut_down_when_loaded(loading: asyncio.Future[AsyncLLM]) -> None:
    """Shut down an engine whose start was cancelled."""
    if loading.cancelled() or loading.exception() is not None:
        return
    ending = asyncio.ensure_future(shut_down(loading.result()))
    _ENDING.add(ending)
    ending.add_done_callback(_ENDING.discard)


async def shut_down(llm: AsyncLLM) -> None:
    """Shut down an engine and its core."""
    # The reader goes first, because it would report the core's end as a failure.
    stop_reader(llm)
    await in_new_thread(llm.shutdown, _SHUTDOWN_S)
    close_context(llm)
