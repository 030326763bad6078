"""The beginning and the end of an engine's life: checks the model on the hub, imports vLLM, returns
the key of the engine's size, and shuts engines down.

A model that is not a folder must be in the local cache or on the Hugging Face hub. vLLM finds out
only after its import, and after several attempts to reach the hub, so this is checked first.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrt.errors import ModelLoadError, shown_url
from agentrt.executors.history_folder import engine_key
from agentrt.executors.vllm._compat.core import close_context, stop_reader
from agentrt.executors.vllm.options import check_path, is_elsewhere
from agentrt.executors.vllm.processes import collections_paused, in_new_thread
from agentrt.extras import install_vllm
from agentrt.files import expanded
from agentrt.proxies import environment_fault

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.engine.async_llm import AsyncLLM

_HUB_TIMEOUT_S = 10.0
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
"""A pattern for a hub name. vLLM also takes other forms, such as s3:// and the repository of a GGUF
file.
"""
_UNREACHED = ("ConnectError", "ConnectionError")
"""The names of the errors that the hub's client raises if it cannot connect. The version of the
client decides whether such an error is from httpx2, httpx or requests.
"""
_USE_A_FOLDER = "or use a folder with a config.json"


def check_on_hub(model: str, endpoint: str | None = None) -> None:
    """Raise `ModelLoadError` for a hub name that is not in the local cache, if the hub lacks the
    model, does not give access to it, or cannot be reached; and for a relative path of several
    folders that does not exist.

    Do nothing if the model is a folder or is not from the Hugging Face hub, or if the hub answers
    slowly or with an error of its own, or if the environment lets vLLM look elsewhere. In these
    cases, vLLM decides. ``endpoint`` is the address of the hub, by default the environment's.
    """
    check_path(model)
    if not _HUB_NAME.fullmatch(model) or expanded(model).exists() or is_elsewhere():
        return
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError

    if _is_cached(model, Path(constants.HF_HUB_CACHE)):
        return
    address = endpoint or constants.ENDPOINT
    shown = shown_url(address)
    if (fault := environment_fault(address)) is not None:
        raise ModelLoadError(f"model {model!r} cannot be loaded: {fault}")
    lacking = f"model {model!r} is not in the cache {constants.HF_HUB_CACHE}, and "
    try:
        HfApi(endpoint=address).model_info(model, timeout=_HUB_TIMEOUT_S)
    except GatedRepoError as error:
        raise ModelLoadError(
            f"model {model!r} is gated: accept its terms at {shown}/{model}, and set HF_TOKEN to "
            "a token of your account"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelLoadError(
            f"model {model!r} is not on the hub {shown}, and no folder has this name; check the "
            "name, set HF_TOKEN if the model is private, "
            f"{_USE_A_FOLDER}"
        ) from error
    except OfflineModeIsEnabled as error:
        raise ModelLoadError(
            f"{lacking}HF_HUB_OFFLINE is set; unset it, {_USE_A_FOLDER}"
        ) from error
    except Exception as error:
        if type(error).__name__ in _UNREACHED:
            raise ModelLoadError(
                f"{lacking}the hub {shown} cannot be reached: {error}; check the network and "
                f"HTTPS_PROXY, {_USE_A_FOLDER}"
            ) from error


def _is_cached(model: str, cache: Path) -> bool:
    """Return whether the cache has a snapshot of the model, in whatever format."""
    folder = cache / f"models--{model.replace('/', '--')}" / "snapshots"
    return folder.is_dir() and any(folder.iterdir())


_SHUTDOWN_S = 3.0
_QUIET_S = 600
"""vLLM's default for VLLM_ENGINE_READY_TIMEOUT_S, in seconds."""
_DRIVERS = ("libcuda.", "libnvidia", "libamdhip", "libhsa")
_NO_DEVICE = (
    "this vLLM is built for GPUs, and there is no GPU driver; repair the driver until nvidia-smi "
    "(or rocm-smi) lists the GPU, give the container the GPU (docker run --gpus all), install "
    "vLLM's build for CPUs, or use 'agentrt run', 'serve' or 'demo' with --engine simulated, which "
    "does not need vLLM"
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
            f"vLLM cannot be imported ({error}); {install_vllm()}; 'agentrt run', 'serve' and "
            "'demo' with --engine simulated do not need vLLM"
        ) from error
    # Without a device, vLLM fails later with various messages, some of which blame the model.
    from vllm.platforms import current_platform

    if not current_platform.device_type:
        raise ModelLoadError(f"vLLM finds no device to run on: {_NO_DEVICE}")


def quiet_limit_s() -> float:
    """Return the seconds for which the processes of a loading engine may do nothing.

    vLLM limits another part of an engine's start by this variable, and checks its value when it is
    imported. There, a negative value means no limit.
    """
    limit_s = int(os.environ.get("VLLM_ENGINE_READY_TIMEOUT_S", _QUIET_S))
    return limit_s if limit_s > 0 else math.inf


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


def key_of(config: VllmConfig, replicas: int) -> str:
    """Return the key of an engine with this configuration, one of ``replicas`` on its machine.

    The size of the KV cache is not part of the key: it changes how often a context is computed
    again, but hardly how many seconds a step takes.
    """
    model, parallel, drafts = config.model_config, config.parallel_config, config.speculative_config
    return engine_key(
        model.model,
        revision=model.revision,
        dtype=str(model.dtype),
        quantization=model.quantization,
        batch=config.scheduler_config.max_num_seqs,
        devices=parallel.world_size,
        drafted_tokens=0 if drafts is None else drafts.num_speculative_tokens,
        **_device(replicas),
    )


def _device(replicas: int) -> dict[str, Any]:
    from vllm.platforms import current_platform

    if current_platform.is_cpu():  # replicas share the CPU's cores
        return {"device": "cpu", "cores": os.cpu_count(), "replicas": replicas}
    try:
        return {"device": current_platform.get_device_name()}
    except Exception:  # some drivers do not report a name
        return {"device": current_platform.device_type}
