"""A sampled call whose prompt is computed in pieces, on a real engine with made-up weights."""

from __future__ import annotations

import pytest

from agentrt.engines import EngineOptions, VLLMEngine
from agentrt.executors.base import last_reply
from agentrt.request import Call, CallSpec, Identity
from tests.doubles.tinymodel import tiny_model

pytestmark = pytest.mark.engine

FLAGS = ("--dtype", "float32", "--max-model-len", "512", "--no-enable-prefix-caching")


async def sampled(model: str, *flags: str) -> list[tuple[int, ...]]:
    """The token ids of a seeded call twice over, on an engine with these flags."""
    engine = VLLMEngine(EngineOptions(model, 2, flags=(*FLAGS, *flags)))
    spec = CallSpec(tuple(range(100, 300)), 12, temperature=1.0, seed=7, ignore_eos=True)
    try:
        await engine.start(lambda message: None)
        calls = [Call(Identity(f"p/{number}", "p"), spec) for number in range(2)]
        replies = [await last_reply(engine.generate(call, stream=False)) for call in calls]
    finally:
        await engine.close()
    return [reply.token_ids for reply in replies]


async def test_a_seeded_prompt_in_pieces_gives_what_it_gives_whole(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Each piece of the prompt is sampled, too: none of these samples may count."""
    model = str(tiny_model(tmp_path_factory.mktemp("models") / "tiny"))
    first, again = await sampled(model, "--max-num-batched-tokens", "64")
    assert first == again
    assert len(first) == 12
    assert [first, again] == await sampled(model, "--max-num-batched-tokens", "512")
