"""A model that sees, and a LoRA adapter of it, behind programs and replicas of real engines."""

from __future__ import annotations

import asyncio
import base64
import io
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agentrt import Context, Runtime, program
from agentrt.errors import CallRejectedError, NotServedError
from agentrt.executors.replicas import ReplicaSet
from agentrt.executors.vllm.engine import VLLMEngine
from agentrt.executors.vllm.options import EngineOptions
from agentrt.router import make_router
from agentrt.testing.tinymodel import tiny_adapter
from agentrt.testing.tinyvision import tiny_vision_model
from tests.engine.lent import Lent

pytest.importorskip("vllm")
pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

TOKENS = 16


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[VLLMEngine]]:
    model = tiny_vision_model(tmp_path_factory.mktemp("model"))
    adapter = tiny_adapter(tmp_path_factory.mktemp("adapter"), model)
    flags = [
        *("--dtype", "float32", "--max-model-len", "512"),
        *("--kv-cache-memory-bytes", str(64 << 20)),
        *("--limit-mm-per-prompt", '{"image": 2}'),
        *("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"tuned={adapter}"),
    ]
    options = EngineOptions(str(model), 8, flags=flags, replicas=2, kv_events=True)
    two = [VLLMEngine(options) for _ in range(2)]
    await asyncio.gather(*(engine.start(lambda message: None) for engine in two))
    yield two
    await asyncio.gather(*(engine.close() for engine in two))


def image(seed: int) -> dict[str, Any]:
    """A part of a message: a picture of dots."""
    from PIL import Image

    file = io.BytesIO()
    Image.frombytes("RGB", (40, 30), random.Random(seed).randbytes(3600)).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def asking(*images: dict[str, Any]) -> list[dict[str, Any]]:
    parts = [{"type": "text", "text": "What is it?"}, *images]
    return [{"role": "user", "content": parts}]


async def said(runtime: Runtime, *images: dict[str, Any], model: str | None = None) -> str:
    @program
    async def sees(ctx: Context) -> str:
        reply = await ctx.llm(asking(*images), max_tokens=TOKENS, ignore_eos=True, model=model)
        return reply.text

    text: str = await runtime.start(sees).wait()
    return text


async def test_each_image_and_the_adapter_change_what_is_said(engines: list[VLLMEngine]) -> None:
    """Again, with a warm prefix cache, each gives the same: a block is known by its images and
    its adapter.
    """
    asked: list[tuple[tuple[int, ...], str | None]] = [
        ((), None),
        ((1,), None),
        ((2,), None),
        ((1, 2), None),
        ((2, 1), None),
        ((), "tuned"),
        ((1,), "tuned"),
    ]
    async with Runtime(Lent(engines[0])) as runtime:
        profile = (await runtime.frontend()).profile()
        assert profile.images
        assert not profile.audio
        answers = []
        for _ in range(2):
            told = [await said(runtime, *map(image, seen), model=by) for seen, by in asked]
            answers.append(told)
        assert answers[0] == answers[1]
        assert len(set(answers[0])) == len(asked)
        assert [await said(runtime, image(1)) for _ in range(2)] == [answers[0][1]] * 2


@pytest.mark.parametrize("router", ["round-robin", "cost"])
async def test_replicas_say_what_one_engine_says(engines: list[VLLMEngine], router: str) -> None:
    """The adapter's calls come apart from the model's own: on a CPU, vLLM adds the adapter to
    both where they share a batch.
    """
    seen, by = [image(seed) for seed in range(6)], (None, "tuned")
    async with Runtime(Lent(engines[0])) as runtime:
        expected = [[await said(runtime, one, model=name) for one in seen] for name in by]
    lent = [Lent(engine) for engine in engines]
    replicas = ReplicaSet(lambda index: lent[index], 2, make_router(router))
    async with Runtime(replicas) as runtime:
        told = [
            await asyncio.gather(*(said(runtime, one, model=name) for one in seen)) for name in by
        ]
    assert told == expected
    assert min(one.calls for one in lent) > 0


async def test_what_a_model_cannot_see_is_refused(engines: list[VLLMEngine]) -> None:
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    async with Runtime(Lent(engines[0])) as runtime:
        with pytest.raises(CallRejectedError, match="image"):
            await said(runtime, broken)
        with pytest.raises(CallRejectedError, match=r"[Aa]t most 2 image"):
            await said(runtime, *map(image, range(3)))
        with pytest.raises(NotServedError, match="tuned"):
            await said(runtime, model="untuned")
        assert await said(runtime)
