"""Our errors for what vLLM raises when it is configured."""

from __future__ import annotations

from pydantic import ValidationError

from agentrt.errors import ConfigError, ModelLoadError
from agentrt.executors.vllm.options import refusal


def config_fault(model: str, error: Exception) -> ModelLoadError | ConfigError:
    """Our error for what vLLM raises when it is configured: the options' fault or the model's."""
    why = refusal(error)
    if isinstance(error, ValidationError) or "additional_config" in why:
        return ConfigError(
            f"vLLM refuses these options with model {model!r}: {why} "
            "(change --model, or the flags after --)"
        )
    return ModelLoadError(
        f"model {model!r} cannot be loaded: {why} (give --model a folder or a hub name)"
    )
