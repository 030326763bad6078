"""Models with made-up weights, for benchmarks on real engines: one in the shape of Llama 3.1 8B,
and two small models.

The model in the shape of Llama has the speed and the memory needs of the real model. The output of
all three is noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from agentrt.engines import EngineOptions
from agentrt.errors import ConfigError
from agentrt.executors.vllm.options import check_model
from agentrt.lab.engine.headless import LLAMA, TINY, folder_of

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "llama-8b": {
        **LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "torch_dtype": "bfloat16",
    },
    "small": {
        **LLAMA,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
    },
    "tiny": TINY,
}
"""Hugging Face configurations by name. ``llama-8b`` is the shape of Llama 3.1 8B.

On a CPU core, ``small`` needs as much time for 60 prompt tokens as for a whole decode step.
``tiny`` needs almost no time for them.
"""

FLAGS = ("--load-format", "dummy", "--skip-tokenizer-init")
"""vLLM's flags for a model with made-up weights and no tokenizer."""


@cache
def shape_folder(name: str) -> str:
    """Return a folder with the configuration of a shape. The folder is deleted when the process
    ends.

    Raises `ConfigError` for an unknown name.
    """
    if name not in SHAPES:
        raise ConfigError(f"unknown model shape {name!r}; known: {', '.join(SHAPES)}")
    return folder_of(name, SHAPES[name])


def engine_options(
    model: str | None, shape: str | None, slots: int | None, flags: Sequence[str]
) -> EngineOptions:
    """Return the options for a model, or for a ``shape`` with made-up weights.

    ``slots`` is the maximum number of running calls. Raises `ModelLoadError` or `ConfigError` for
    an unknown model or shape, before anything is loaded.
    """
    if shape is not None:
        model, flags = shape_folder(shape), (*FLAGS, *flags)
    elif model is not None:
        check_model(model)
    return EngineOptions(model, slots, flags=tuple(flags))


def model_in_words(model: str | None, shape: str | None) -> str:
    """Name the model for the head of a table."""
    if shape is not None:
        return f"a model of the shape {shape} with made-up weights"
    return model or "the embedded default model"
