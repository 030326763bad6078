"""A model that sees, and adapters, which load in a second: what they say does not matter.

The model is Idefics3 with random weights and the tokenizer of the embedded model: what it says
depends on every token and on each image. Of the families that vLLM has, it is one that runs
without torchvision, which the CPU's wheels do not bring.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentrt.executors.vllm.default_model import embedded_model

_SIDE = 56
"""Pixels on each side that an image is scaled to: 16 patches, 4 tokens."""
_PATCH = 14
_SCALE = 2
_TOKENS = (_SIDE // _PATCH // _SCALE) ** 2
_SPREAD = 0.3
"""The weights' standard deviation: large enough that the next token hangs on the prompt."""
_MARKS = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")


def tiny_vision_model(folder: Path, seed: int = 0) -> Path:
    """Write the model with weights drawn from ``seed`` into ``folder``, and return that."""
    import torch
    from transformers import AutoTokenizer, Idefics3ForConditionalGeneration
    from transformers.models.idefics3 import Idefics3ImageProcessorPil, Idefics3Processor

    tokenizer = AutoTokenizer.from_pretrained(embedded_model(lambda message: None))
    tokenizer.add_tokens(list(_MARKS), special_tokens=True)
    torch.manual_seed(seed)
    model = Idefics3ForConditionalGeneration(_config(tokenizer))
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, 0.0, _SPREAD)
    model.save_pretrained(folder)
    side = {"longest_edge": _SIDE}
    images = Idefics3ImageProcessorPil(do_image_splitting=False, size=side, max_image_size=side)
    Idefics3Processor(
        images, tokenizer, image_seq_len=_TOKENS, chat_template=tokenizer.chat_template
    ).save_pretrained(folder)
    return folder


def _config(tokenizer: Any) -> Any:
    from transformers import Idefics3Config, LlamaConfig
    from transformers.models.idefics3 import Idefics3VisionConfig

    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    text = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        vocab_size=-(-len(tokenizer) // 64) * 64,
        max_position_embeddings=2048,
        **ends,
    )
    vision = Idefics3VisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=_SIDE,
        patch_size=_PATCH,
    )
    return Idefics3Config(
        image_token_id=tokenizer.convert_tokens_to_ids(_MARKS[0]),
        text_config=text,
        vision_config=vision,
        scale_factor=_SCALE,
        pad_token_id=2,
    )


def tiny_adapter(folder: Path, model: Path, seed: int = 0, rank: int = 8) -> Path:
    """Write a LoRA adapter of ``model``, a Llama or one that sees, which changes what it says."""
    import torch
    from safetensors.torch import save_file

    whole = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config = whole.get("text_config", whole)
    layers = "model.text_model.layers" if config is not whole else "model.layers"
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    width = config.get("head_dim") or hidden // heads
    outputs = {"q_proj": heads * width, "v_proj": config["num_key_value_heads"] * width}
    torch.manual_seed(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for name, size in outputs.items():
            module = f"base_model.model.{layers}.{layer}.self_attn.{name}"
            weights[f"{module}.lora_A.weight"] = torch.randn(rank, hidden)
            weights[f"{module}.lora_B.weight"] = torch.randn(size, rank)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    about = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": list(outputs),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(about), encoding="utf-8")
    return folder
