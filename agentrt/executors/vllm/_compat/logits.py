"""Logits processors: the interface that a model runner takes, and what rules them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def runner_of(config: VllmConfig) -> str:
    """The model runner of an engine, ``V1`` or ``V2``: each has an interface of its own."""
    return "V2" if config.use_v2_model_runner else "V1"


def interface_of(runner: str) -> type[Any]:
    """What the processors of a model runner subclass."""
    from vllm.v1.sample.logits_processor import LogitsProcessor
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as LogitsProcessorV2

    return LogitsProcessorV2 if runner == "V2" else LogitsProcessor


def takes_none(config: VllmConfig) -> str:
    """Why an engine takes no logits processors; "" for one that does."""
    if config.model_config.runner_type == "pooling":
        return "its model gives embeddings or scores"
    if config.speculative_config is not None and runner_of(config) == "V1":
        return "vLLM's model runner V1 takes none with speculative decoding"
    return ""
