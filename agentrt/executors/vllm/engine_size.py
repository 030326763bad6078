"""The key of an engine's size: the settings on which the duration of its calls depends."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from agentrt.executors.history_folder import engine_key

if TYPE_CHECKING:
    from vllm.config import VllmConfig


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
