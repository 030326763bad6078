"""Speculative decoding with a draft model: the engine starts, and answers as without drafts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrt import Context, Runtime, program
from agentrt.engines import EngineOptions, VLLMEngine
from tests.doubles.tinymodel import tiny_model

pytestmark = pytest.mark.engine

FLAGS = ("--dtype", "float32", "--max-model-len", "512", "--kv-cache-memory-bytes", "8000000")
SCHEMA = {
    "type": "object",
    "properties": {"right": {"type": "boolean"}},
    "required": ["right"],
    "additionalProperties": False,
}


@program
async def answers(ctx: Context) -> tuple[str, str]:
    free = await ctx.llm("Tell a story.", max_tokens=40, temperature=0)
    bound = await ctx.llm("Is it right?", schema=SCHEMA, temperature=0)
    return free.text, bound.text


async def test_an_engine_with_a_draft_model_answers_as_without(tmp_path: Path) -> None:
    """The model is its own draft model."""
    model = tiny_model(tmp_path / "tiny")
    drafts = {"model": str(model), "method": "draft_model", "num_speculative_tokens": 3}
    told = []
    for flags in (FLAGS, (*FLAGS, "--speculative-config", json.dumps(drafts))):
        async with Runtime(VLLMEngine(EngineOptions(str(model), 2, flags=flags))) as runtime:
            told.append(await runtime.start(answers).wait())
    assert told[0] == told[1]
    assert json.loads(told[1][1])["right"] in (True, False)
