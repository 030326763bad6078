"""Logits processors: their interface in each model runner, and when an engine takes none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def runner_of(config: VllmConfig) -> str:
    """Return which of vLLM's model runners an engine has, ``V1`` or ``V2``. The two have different
    interfaces for logits processors.
    """
    return "V2" if config.use_v2_model_runner else "V1"


def interface_of(runner: str) -> type[Any]:
    """Return the base class for logits processors of a model runner, ``V1`` or ``V2``."""
    from vllm.v1.sample.logits_processor import LogitsProcessor
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as LogitsProcessorV2

    return LogitsProcessorV2 if runner == "V2" else LogitsProcessor


def takes_none(config: VllmConfig) -> str:
    """Return the reason why an engine does not support logits processors, or "" if it supports
    them.
    """
    if config.model_config.runner_type == "pooling":
        return "its model computes embeddings or scores"
    if config.speculative_config is not None and runner_of(config) == "V1":
        return "vLLM's model runner V1 takes no logits processors with speculative decoding"
    return ""
