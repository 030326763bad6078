"""Configurations of models without weights. vLLM makes the weights up, or needs none."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5}
TINY: Mapping[str, Any] = {
    **LLAMA,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "torch_dtype": "float32",
}
"""The Hugging Face configuration of a tiny model."""


@cache
def tiny_folder() -> str:
    """Return a folder with the configuration `TINY`."""
    return folder_of("tiny", TINY)


def folder_of(name: str, config: Mapping[str, Any]) -> str:
    """Write a configuration into a new folder, and return the folder. It is deleted when the
    process ends.
    """
    folder = tempfile.mkdtemp(prefix=f"agentrt-{name}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
