"""What a recording holds of an engine, its requests and its steps, as plain values."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import vllm
from vllm.v1.kv_cache_interface import FullAttentionSpec

from agentrt.executors.vllm._compat.requests import Request, extra_args
from agentrt.executors.vllm._compat.scheduling import Scheduler


def dimensions(scheduler: Scheduler) -> dict[str, Any]:
    """The engine's sizes and settings that its decisions depend on, as plain values."""
    config = scheduler.scheduler_config
    settings = {f.name: getattr(config, f.name) for f in fields(config)}
    return {
        "vllm": vllm.__version__,
        "model": scheduler.vllm_config.model_config.model,
        "blocks": scheduler.kv_cache_config.num_blocks,
        "block_size": scheduler.block_size,
        "max_model_len": scheduler.max_model_len,
        "prefix_caching": scheduler.cache_config.enable_prefix_caching,
        "scheduler": {
            name: value
            for name, value in settings.items()
            if name != "scheduler_cls" and isinstance(value, bool | int | float | str | None)
        },
    }


def not_replayable(scheduler: Scheduler) -> str | None:
    """Why another scheduler could not take the same decisions from a recording, or None."""
    groups = scheduler.kv_cache_config.kv_cache_groups
    config = scheduler.vllm_config
    reasons = {
        "its layers do not share one kind of KV cache": (
            len(groups) != 1 or type(groups[0].kv_cache_spec) is not FullAttentionSpec
        ),
        "it moves KV cache between engines": (
            scheduler.connector is not None or scheduler.ec_connector is not None
        ),
        "it decodes speculatively": config.speculative_config is not None,
        "it is pipelined over devices": config.parallel_config.pipeline_parallel_size > 1,
        "it is one of several data-parallel ones": config.parallel_config.data_parallel_size > 1,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def sampled_tokens(result: Any) -> dict[str, list[int]]:
    """The tokens that a step's model output holds for each request."""
    sampled = result.sampled_token_ids
    return {
        request_id: [int(token) for token in sampled[index]]
        for request_id, index in result.req_id_to_index.items()
        if sampled and len(sampled[index])
    }


def describe_request(request: Request) -> dict[str, Any]:
    """All of a request that decides how it is scheduled, as plain values.

    ``cannot`` says why its part in a recording cannot be replayed, else None.
    """
    params = request.sampling_params
    return {
        "id": request.request_id,
        "prompt": list(request.prompt_token_ids or ()),
        "max_tokens": request.max_tokens,
        "stop": sorted(_stop_tokens(params)) if params is not None else [],
        "extra": extra_args(request),
        "session": request.session_id,
        "salt": request.cache_salt,
        "cannot": _cannot_replay(request),
    }


def _stop_tokens(params: Any) -> set[int]:
    eos = params.eos_token_id
    return {*(params.stop_token_ids or ()), *(() if eos is None else (eos,))}


def _cannot_replay(request: Request) -> str | None:
    reasons = {
        "its output is bound to a grammar, which becomes ready at some moment": (
            request.use_structured_output
        ),
        "it has images or embeddings in its prompt": (
            request.mm_features or request.prompt_token_ids is None
        ),
        "it is fed while it runs": request.resumable,
        "it wants an embedding, not tokens": request.pooling_params is not None,
        "it uses a LoRA adapter": request.lora_request is not None,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)
