"""Small models of any architecture, with random weights such that positions matter."""

from __future__ import annotations

from typing import Any

import torch

from agentrt.executors.transformers.model import ATTENTION, CausalModel, register_attention


def model_of(config: Any, tokenizer: Any = None) -> CausalModel:
    """Return the model of a configuration."""
    from transformers import AutoModelForCausalLM

    register_attention()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION).eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.4)
    return CausalModel(model, tokenizer, config.model_type)


SIZES = {
    "vocab_size": 301,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def config_of(kind: str, **settings: Any) -> Any:
    """Return a small configuration of transformers."""
    import transformers

    return getattr(transformers, kind)(**{**SIZES, **settings})
