"""Models that are a shape only: a configuration, and weights that vLLM makes up.

Speed and memory are those of the real model; what it says is noise. For benchmarks where no
weights can be had, and for configuring an engine that never runs.
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
"""By name: Hugging Face configurations. ``llama-8b`` is the shape of Llama 3.1 8B.

On a CPU core 60 tokens of prompt take ``small`` as long as a step does, and cost ``tiny`` nothing.
"""

FLAGS = ("--load-format", "dummy", "--skip-tokenizer-init")
"""vLLM's flags for a model that is a shape only."""


@cache
def shape_folder(name: str) -> str:
    """A folder with the configuration, gone with the process. Raises `ConfigError`."""
    if name not in SHAPES:
        raise ConfigError(f"no model shape is named {name!r}; known: {', '.join(SHAPES)}")
    folder = tempfile.mkdtemp(prefix=f"agentrt-{name}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Path(folder, "config.json").write_text(json.dumps(SHAPES[name]), encoding="utf-8")
    return folder
