"""Speculative decoding with a draft model: the engine starts, and answers as without drafts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrt import Context, Runtime, program
from agentrt.batch import batch
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


async def test_tokens_of_another_model_are_accepted_only_if_the_model_writes_them(
    tmp_path: Path,
) -> None:
    """The draft model has other weights, so that nearly all of its tokens are improbable. A token
    that the model itself samples has a log probability below -15 once in millions of tokens.
    """
    model, other = (str(tiny_model(tmp_path / f"tiny-{seed}", seed)) for seed in range(2))
    drafts = {"model": other, "method": "draft_model", "num_speculative_tokens": 3}
    flags = (*FLAGS, "--speculative-config", json.dumps(drafts))

    @program
    async def talks(ctx: Context, number: int) -> None:
        limited: Any = {"temperature": 0.7, "top_p": 0.9, "top_k": 20}
        options = limited if number % 2 else {"temperature": 1.0}
        await ctx.llm(f"Tell story {number}.", max_tokens=40, **options)

    made = batch(
        talks, range(6), executor=VLLMEngine(EngineOptions(model, 4, flags=flags)), tokens=True
    )
    results = [each async for each in made]
    assert {each.state for each in results} == {"done"}
    written = [
        logprob
        for result in results
        if result.recorded is not None
        for sequence in result.recorded.sequences
        for logprob, mask in zip(sequence.logprobs, sequence.mask, strict=True)
        if mask
    ]
    assert len(written) > 100
    assert min(written) > -25


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
