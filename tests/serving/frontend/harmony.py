"""A model of gpt-oss's family without weights, whose outputs are in OpenAI's harmony format.

Its vocabulary is in no package of vLLM's, and comes from one of the clients that the tests install.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.clients.processes import CLIENTS

VOCABULARY = "litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790"
FILE = "o200k_base.tiktoken"
"""What vLLM's harmony parser looks for, in the folder that `TIKTOKEN_ENCODINGS_BASE` names."""
WORDS = 199_998
MARKS = 21
"""The tokens with a meaning, behind all words."""
RETURN, CALL, END_OF_TEXT = 200_002, 200_012, 199_999
CONFIG: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 128,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "vocab_size": 201_088,
    "max_position_embeddings": 4096,
    "eos_token_id": RETURN,
    "torch_dtype": "bfloat16",
}


@contextmanager
def gpt_oss_in(folder: Path) -> Iterator[str]:
    """Within, the model is in ``folder``, and vLLM finds harmony's vocabulary.

    It takes five seconds of a core to write the model and as many to open a front end on it, so
    the tests of a run share a folder.
    """
    words, model = folder / "words", folder / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_ENCODINGS_BASE", str(words))
        if not model.exists():
            folder.mkdir(exist_ok=True)
            harmony_model(model, vocabulary(words))
        yield str(model)


def vocabulary(folder: Path) -> Path:
    """``folder`` with the vocabulary as harmony's library wants it."""
    found = [*(CLIENTS / "litellm").glob(f"lib/python3*/site-packages/{VOCABULARY}")]
    if not found:
        pytest.fail("harmony's vocabulary, which LiteLLM brings, is missing: run .ci/setup-clients")
    folder.mkdir(exist_ok=True)
    shutil.copy(found[0], folder / FILE)
    return folder


def harmony_model(folder: Path, words: Path) -> Path:
    """Write the model's configuration and tokenizer, of the vocabulary in ``words``.

    The tokenizer knows no merges: prompts are written by harmony's own library.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = _letters()
    ranks = {}
    for line in (words / FILE).read_text().splitlines():
        token, rank = line.split()
        ranks["".join(letters[byte] for byte in base64.b64decode(token))] = int(rank)
    tokenizer = Tokenizer(models.BPE(ranks, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    encoding = _encoding()
    tokenizer.add_special_tokens([encoding.decode([WORDS + mark]) for mark in range(MARKS)])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|return|>"}
    ends = {"eos_token_id": [RETURN, END_OF_TEXT, CALL]}
    for name, value in (
        ("config.json", CONFIG),
        ("tokenizer_config.json", about),
        ("generation_config.json", ends),
    ):
        (folder / name).write_text(json.dumps(value), encoding="utf-8")
    return folder


def _letters() -> dict[int, str]:
    """How a byte-level vocabulary writes bytes: as letters that can be printed."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return {byte: chr(byte) for byte in printed} | {
        byte: chr(256 + place) for place, byte in enumerate(others)
    }


def encode(said: str) -> list[int]:
    """The tokens of an output with its marks."""
    ids: list[int] = _encoding().encode(said, allowed_special="all")
    return ids


@cache
def _encoding() -> Any:
    """Harmony's encoding, whose vocabulary takes half a second to load."""
    from openai_harmony import HarmonyEncodingName, load_harmony_encoding

    return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
