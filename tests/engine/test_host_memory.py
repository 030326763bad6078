"""A real engine whose blocks go to host memory, and come back: in whose order they are given up.

vLLM's own connector and manager, with a worker that copies on a CPU. The engine has 31 blocks, host
memory 36. A context has 12 blocks and a part; a long call takes 23, and wants 4 of a context's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from agentrt import Context, Runtime, SchedulerConfig, program
from agentrt.engines import EngineOptions, VLLMEngine
from tests.doubles.tinymodel import tiny_model
from tests.engine.host_memory import BLOCK, copying
from tests.engine.lent import Lent

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

BLOCKS, CHUNKS = 32, 36
WORDS, MORE = 370, 710
KEPT = 12 * BLOCK


def flags() -> tuple[str, ...]:
    return (
        *("--dtype", "float32", "--max-model-len", "800", "--block-size", str(BLOCK)),
        *("--num-gpu-blocks-override", str(BLOCKS), "--kv-transfer-config"),
        json.dumps(copying(CHUNKS)),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VLLMEngine]:
    model = str(tiny_model(tmp_path_factory.mktemp("models") / "tiny"))
    config = SchedulerConfig(policy="atlas", retention="cost")
    engine = VLLMEngine(EngineOptions(model, 2, flags=flags(), scheduler=config))
    await engine.start(lambda _: None)
    yield engine
    await engine.close()


async def asked(ctx: Context, word: str, times: int = WORDS) -> tuple[int, str]:
    """A call whose prompt is one word: tokens of it that were cached, and what it said."""
    reply = await ctx.llm(" ".join([word] * times), max_tokens=4, temperature=0, ignore_eos=True)
    assert reply.report is not None
    return reply.report.cached_tokens, reply.text


async def test_a_context_comes_back_from_host_memory_and_says_the_same(engine: VLLMEngine) -> None:
    @program
    async def pressed(ctx: Context) -> None:
        new, said = await asked(ctx, "cat")
        assert new < 2 * BLOCK  # no more than what all prompts begin with
        await asked(ctx, "bird", MORE)
        assert await asked(ctx, "cat") == (KEPT, said)

    async with Runtime(Lent(engine), ask_human=None) as runtime:
        await runtime.start(pressed).wait()


async def test_who_waits_for_a_human_loses_host_memory_before_who_is_in_a_tool(
    engine: VLLMEngine,
) -> None:
    gone, go = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        gone.set()
        await go.wait()

    @program
    async def away(ctx: Context) -> int:
        await asked(ctx, "fish")
        await ctx.tool(wait)
        return (await asked(ctx, "fish"))[0]

    @program
    async def asks(ctx: Context) -> int:
        await asked(ctx, "dog")
        await ctx.human("Shall I go on?")
        return (await asked(ctx, "dog"))[0]

    @program
    async def other(ctx: Context) -> None:
        await asked(ctx, "cow", MORE)

    async with Runtime(Lent(engine), ask_human=None) as runtime:
        first = runtime.start(away)
        await gone.wait()
        second = runtime.start(asks)
        while not runtime.questions.open:
            await asyncio.sleep(0.005)
        for _ in range(2):
            await runtime.start(other).wait()
        go.set()
        assert await first.wait() == KEPT
        runtime.questions.answer(next(iter(runtime.questions.open)), "yes")
        assert await second.wait() < KEPT
