"""Recorded log probabilities are those of one forward pass, whatever the engine did meanwhile.

The forward pass is that of transformers, in 32 bits, over the ids of each sequence. They may differ
by `TOLERANCE`: both sum 32-bit numbers, in other orders.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agentrt import Context, Runtime, program, tool
from agentrt.batch import RecordedTokens, Result, TokenSequence, batch, read_tokens
from agentrt.contexts import json_schema
from agentrt.engines import EngineOptions, VLLMEngine
from agentrt.errors import CallRejectedError
from agentrt.executors.vllm.default_model import embedded_model
from agentrt.runtime.events import Event, NodeEnded
from tests.doubles.tinymodel import tiny_model

pytestmark = pytest.mark.engine

TOLERANCE = 1e-3
"""In natural log units. The logits of the tiny model reach 50, and 32 bits hold seven digits."""
EXACT = ("--dtype", "float32")
BLOCKS = 14
"""Of 32 tokens: room for three of the calls of `long`, while six want to run."""
NUMBER: Any = {
    "type": "object",
    "properties": {"number": {"type": "integer"}},
    "required": ["number"],
    "additionalProperties": False,
}


@tool
async def weather(city: str) -> str:
    """The weather in a city.

    city: its name
    """
    return f"It rains in {city}."


@program
async def agent(ctx: Context, question: str) -> int:
    """Turns of a chat, choices, structured output, a tool, a context and its forks."""
    chat: list[Any] = [{"role": "user", "content": question}]
    for text in ("And why?", "Are you sure?"):
        reply = await ctx.llm(chat, max_tokens=24, temperature=1.0)
        chat += [reply.message, {"role": "user", "content": text}]
    await asyncio.gather(
        ctx.llm(chat, max_tokens=16, temperature=0.7, top_p=0.8, n=2),
        ctx.llm(chat, max_tokens=32, schema=NUMBER, temperature=1.0),
        ctx.step(chat, tools=[weather], tool_choice="required", max_tokens=48),
    )
    context = await ctx.context(f"{question} It is said that")
    await context.generate(max_tokens=12, temperature=1.0)
    fork = context.fork()
    await asyncio.gather(
        context.generate(max_tokens=20, temperature=1.0, ignore_eos=True),
        fork.generate(max_tokens=9, allowed=[*range(100, 140)], temperature=1.0),
    )
    ctx.reward(1)
    return len(fork)


@program
async def long(ctx: Context, question: str) -> int:
    context = await ctx.context(f"{question} " * 6)
    await context.generate(max_tokens=70, temperature=1.0, ignore_eos=True)
    await context.fill(" and then")
    await context.generate(max_tokens=30, temperature=1.0, ignore_eos=True)
    return len(context)


INPUTS = [f"Question {number}?" for number in range(6)]


def engine_of(model: str, *flags: str) -> VLLMEngine:
    return VLLMEngine(EngineOptions(model, 6, flags=(*EXACT, *flags)))


@cache
def forward(model: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


def differences(model: str, sequence: TokenSequence, places: list[int]) -> list[float]:
    """The differences of the log probabilities at these places from those of one forward pass.

    The vocabulary is large and the model is not, so logits are computed at these places only.
    """
    import torch

    ids = torch.tensor(list(sequence.token_ids))
    at = torch.tensor(places)
    with torch.inference_mode():
        made = forward(model)(ids[None, : places[-1]], logits_to_keep=at - 1, use_cache=False)
        logits = made.logits[0]
        exact = logits.gather(1, ids[at, None])[:, 0] - logits.logsumexp(-1)
        differences: list[float] = (exact - torch.tensor(list(sequence.logprobs))[at]).tolist()
    return differences


def furthest(model: str, tokens: RecordedTokens) -> float:
    """The largest difference of a recorded log probability from that of one forward pass."""
    worst = 0.0
    for sequence in tokens.sequences:
        written = [place for place, mask in enumerate(sequence.mask) if place and mask == 1]
        assert written
        worst = max(worst, *map(abs, differences(model, sequence, written)))
    return worst


def check(model: str, every: list[Result], count: int = len(INPUTS)) -> None:
    assert [(each.state, each.error) for each in every] == [("done", None)] * count
    worst = 0.0
    for each in every:
        assert each.recorded is not None
        assert each.recorded.complete
        written = sum(sum(sequence.mask) for sequence in each.recorded.sequences)
        assert written == each.output_tokens
        worst = max(worst, furthest(model, each.recorded))
    print(f"\nlargest difference from one forward pass: {worst:.1e}")  # noqa: T201
    assert worst < TOLERANCE


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return str(tiny_model(folder, says_blanks=False))


async def test_turns_choices_schemas_tools_and_forks(tiny: str) -> None:
    made = batch(agent, INPUTS, executor=engine_of(tiny), tokens=True)
    check(tiny, [each async for each in made])


async def test_a_call_that_the_engine_refuses_makes_no_sequence(tiny: str) -> None:
    """The engine core cannot compile this constraint, and ends the call without a token."""
    pattern = json_schema({"type": "string", "pattern": "a{1,5000}b{1,5000}(c|d){1,9000}"})

    @program
    async def refused(ctx: Context, question: str) -> None:
        context = await ctx.context(question)
        with pytest.raises(CallRejectedError):
            await context.generate(max_tokens=8, constrain=pattern)

    made = batch(refused, ["Why?"], executor=engine_of(tiny), tokens=True)
    [result] = [each async for each in made]
    assert (result.state, result.error) == ("done", None)
    assert result.recorded is not None
    assert (result.recorded.complete, result.recorded.sequences) == (True, ())


async def test_preempted_calls(tiny: str) -> None:
    engine = engine_of(tiny, "--num-gpu-blocks-override", str(BLOCKS), "--max-model-len", "256")
    preemptions = 0

    def count(event: Event) -> None:
        nonlocal preemptions
        if isinstance(event, NodeEnded) and event.node.report is not None:
            preemptions += event.node.report.preemptions

    async with Runtime(engine) as runtime:
        runtime.listen(count)
        every = [each async for each in batch(long, INPUTS, runtime=runtime, tokens=True)]
    check(tiny, every)
    assert preemptions > 0


async def test_a_batch_that_was_broken_off(tiny: str, tmp_path: Path) -> None:
    """1. The batch is cancelled after its second result. 2. Another engine goes on with it."""
    file, ended = tmp_path / "t.jsonl", 0
    options: dict[str, Any] = {"out": tmp_path / "r.jsonl", "tokens": file, "max_live": 3}
    async with aclosing(batch(agent, INPUTS, executor=engine_of(tiny), **options)) as first:
        async for _ in first:
            ended += 1
            if ended == 2:
                break
    every = [each async for each in batch(agent, INPUTS, executor=engine_of(tiny), **options)]
    kept = {each.id: each for each in read_tokens(file)}
    assert len(kept) == len(every)
    check(tiny, [replace(each, recorded=kept[each.id]) for each in every])


async def test_a_trained_model_with_turns_that_extend_each_other() -> None:
    model = str(embedded_model(lambda message: None))
    made = batch(agent, INPUTS[:2], executor=engine_of(model), tokens=True)
    every = [each async for each in made]
    check(model, every, 2)
    spans = [
        sum(1 for before, now in zip([0, *each.mask], each.mask, strict=False) if now > before)
        for result in every
        if result.recorded is not None
        for each in result.recorded.sequences
    ]
    assert max(spans) >= 3  # the turns of a chat, in one sequence
