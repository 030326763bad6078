"""Model shapes: configurations of models, for which vLLM makes up the weights.

A model with such weights has the speed and the memory needs of the real model, but its output is
noise. It is used for benchmarks where weights are not available, and to configure engines without a
model.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from agentrt.errors import ConfigError

_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "llama-8b": {
        **_LLAMA,
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
        **_LLAMA,
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
    "tiny": {
        **_LLAMA,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "torch_dtype": "float32",
    },
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
    folder = tempfile.mkdtemp(prefix=f"agentrt-{name}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Path(folder, "config.json").write_text(json.dumps(SHAPES[name]), encoding="utf-8")
    return folder
