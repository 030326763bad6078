"""A model that loads in a second, for tests of real engines where what it says does not matter.

A Llama of two layers with random weights and the tokenizer of the embedded model: its texts
are no language, but depend on every token of the prompt, so that a wrong one shows.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from agentrt.executors.vllm.default_model import embedded_model

_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
_TEMPLATE = "chat_template.jinja"
_SPELLED_BLANKS = "\u0120\u010a\u010d\u0109"
"""A space, a line feed, a carriage return and a tab."""
_AGAINST = -1e5
_SPREAD = 0.6
"""The weights' standard deviation: large enough that the next token hangs on the prompt."""


def tiny_model(folder: Path, seed: int = 0, *, says_blanks: bool = True) -> Path:
    """Write the model with weights drawn from ``seed`` into ``folder``, and return that.

    One that does not say blanks comes to the end of the JSON that it is held to, instead of
    putting blanks between its parts as long as it may.
    """
    import torch
    from safetensors.torch import save_file

    source = embedded_model(lambda message: None)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*_TOKENIZER, _TEMPLATE, "generation_config.json"):
        if (source / name).exists():
            shutil.copy(source / name, folder / name)
    theirs = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config = {**_CONFIG, "vocab_size": theirs["vocab_size"], "tie_word_embeddings": says_blanks}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    torch.manual_seed(seed)
    weights = {name: torch.randn(shape) * _SPREAD for name, shape in _shapes(config).items()}
    for name, weight in weights.items():
        if "norm" in name:
            weight.fill_(1.0)
    if not says_blanks:
        _mute(weights, _blanks(folder / _TOKENIZER[0]))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _blanks(tokenizer: Path) -> list[int]:
    """The ids of tokens that are blanks alone, as the tokenizer's file spells these."""
    vocabulary = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]["vocab"]
    return [number for token, number in vocabulary.items() if not token.strip(_SPELLED_BLANKS)]


def _mute(weights: dict[str, Any], tokens: list[int]) -> None:
    """Keep the model from saying ``tokens`` where it may say another: one component of its state
    is the same after every token, and speaks against them.
    """
    says = weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.embed_tokens.weight"][:, 0] = 1.0
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight[0] = 0.0
    says[:, 0] = 0.0
    says[tokens, 0] = _AGAINST


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    for index in range(config["num_hidden_layers"]):
        layer = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        for name, shape in layer.items():
            shapes[f"model.layers.{index}.{name}.weight"] = shape
    return shapes
