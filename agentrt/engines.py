"""The engines and other executors that a `Runtime` runs calls on.

    from agentrt.engines import EngineOptions, VLLMEngine

The names are imported on first use, because vLLM, transformers and OpenAI's client are optional.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrt.executors.base import Executor
    from agentrt.executors.openai import OpenAIEndpoint
    from agentrt.executors.replicas import ReplicaSet
    from agentrt.executors.simulated import SimulatedEngine
    from agentrt.executors.transformers import TransformersExecutor
    from agentrt.executors.vllm.engine import VLLMEngine
    from agentrt.executors.vllm.options import EngineOptions

_HOMES = {
    "EngineOptions": "vllm.options",
    "Executor": "base",
    "OpenAIEndpoint": "openai",
    "ReplicaSet": "replicas",
    "SimulatedEngine": "simulated",
    "TransformersExecutor": "transformers",
    "VLLMEngine": "vllm.engine",
}

__all__ = [
    "EngineOptions",
    "Executor",
    "OpenAIEndpoint",
    "ReplicaSet",
    "SimulatedEngine",
    "TransformersExecutor",
    "VLLMEngine",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'agentrt.engines' has no attribute {name!r}")
    return getattr(import_module(f"agentrt.executors.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
