"""Imports vLLM before an engine starts, and shuts engines down."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agentrt.errors import INSTALL_VLLM, ModelLoadError
from agentrt.executors.vllm._compat.core import close_context, stop_reader
from agentrt.executors.vllm.processes import apart, collections_paused

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_SHUTDOWN_S = 3.0
_DRIVERS = ("libcuda.", "libnvidia", "libamdhip", "libhsa")
_NO_DEVICE = (
    "it is built for GPUs, and no driver of a GPU is found here; repair the driver until "
    "nvidia-smi (or rocm-smi) lists the GPU, give the container the GPU (docker run --gpus all), "
    "or install vLLM's build for CPUs; --engine simulated needs none"
)
_ENDING: set[asyncio.Task[None]] = set()
"""Tasks that shut down abandoned engines. The event loop holds no strong reference to tasks."""


def import_vllm() -> None:
    """Import what takes seconds. Raises `ModelLoadError` where it is not installed, or finds no
    device that it was built for.
    """
    try:
        with collections_paused():
            # To have it loaded is all.
            import vllm.v1.engine.async_llm  # noqa: F401
    except (ImportError, OSError) as error:  # an OSError: torch loads libraries by itself
        if any(name in str(error) for name in _DRIVERS):
            raise ModelLoadError(f"vLLM cannot be imported ({error}): {_NO_DEVICE}") from error
        raise ModelLoadError(
            f"vLLM cannot be imported ({error}); {INSTALL_VLLM}; --engine simulated needs none"
        ) from error
    # Else each use of it fails with words of its own, some of which blame the model.
    from vllm.platforms import current_platform

    if not current_platform.device_type:
        raise ModelLoadError(f"vLLM finds no device that it can run on: {_NO_DEVICE}")


def short_name(model: str) -> str:
    """A model's name for a line of progress."""
    return model.rstrip("/").split("/")[-1]


def let_go(loading: asyncio.Future[AsyncLLM]) -> None:
    """Shut down an engine whose start was cancelled."""
    if loading.cancelled() or loading.exception() is not None:
        return
    ending = asyncio.ensure_future(shut_down(loading.result()))
    _ENDING.add(ending)
    ending.add_done_callback(_ENDING.discard)


async def shut_down(llm: AsyncLLM) -> None:
    """End an engine with its core."""
    # Before its core: the reader would report the core's end as a failure.
    stop_reader(llm)
    await apart(llm.shutdown, _SHUTDOWN_S)
    close_context(llm)
