"""A trace's texts are counted by the tokenizer that a benchmark names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from agentrt.errors import ConfigError
from benchmarks.workloads.source import WorkloadSource


def test_a_tokenizer_counts_if_one_is_named(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"x": 0, "?": 1}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    said = [{"role": "user", "content": "x x x"}, {"role": "assistant", "content": "x y"}]
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps({"id": "c", "messages": said}), encoding="utf-8")
    source = WorkloadSource.named(str(path), tokenizer=str(tmp_path))
    [call] = source.trace().programs[0].calls
    assert (call.prompt_tokens, call.output_tokens) == (7, 6)
    assert source.trace() is source.trace(), "the file was read again"
    with pytest.raises(ConfigError, match=r"--tokenizer '.*/s.jsonl': "):
        WorkloadSource.named(str(path), tokenizer=str(path)).trace()
