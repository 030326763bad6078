"""The techniques that choose what tokens see, on transformers' models: a window forgets, sinks keep
a long text likely, and marks tell of sections that are out of sight.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from agentrt import Context, Runtime
from agentrt.contexts import Attention
from agentrt.engines import TransformersExecutor
from agentrt.executors.vllm.default_model import embedded_model
from attention_sink import LICENSE, SINKS, WINDOW, perplexity, stream
from hierarchical_attention import SECTION, outline
from tests.contexts.real import run
from tests.doubles.tinymodel import tiny_model
from windowed_attention import windowed

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

END = " and so they went on, over the hills and far away, until the evening came and they slept"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Runtime]:
    """On a model of two layers: it hears of what is two windows back, and of nothing before."""
    folder = tiny_model(tmp_path_factory.mktemp("model"))
    async with Runtime(TransformersExecutor(str(folder))) as runtime:
        yield runtime


async def test_sinks_keep_a_long_text_likely_and_a_window_alone_does_not() -> None:
    """A model that was trained reads a text six times as long as its window, and writes on."""
    executor = TransformersExecutor(str(embedded_model(lambda message: None)))
    text = LICENSE.read_text(encoding="utf-8")

    async def body(ctx: Context) -> list[list[float]]:
        sinks = Attention(WINDOW, sinks=SINKS)
        kinds = (None, sinks, Attention(SINKS + WINDOW))
        found = [await perplexity(ctx, text, kind, tokens=400) for kind in kinds]
        read = (await ctx.context(text)).token_ids[:400]
        assert await stream(await ctx.context(read), 3)
        return found

    async with Runtime(executor) as trained:
        whole, sinks, window = await run(trained, body)
        cached = (await executor.snapshot())["cached"]
    for own, with_sinks, alone in zip(whole[1:], sinks[1:], window[1:], strict=True):
        assert own < with_sinks < 1.6 * own
        assert alone > 2 * with_sinks
    assert {each["positions"] for each in cached} == {SINKS + WINDOW - 1, 400}


async def test_a_window_forgets_what_lies_further_back(runtime: Runtime) -> None:
    """The same end after other beginnings, of other lengths."""
    beginnings = ["Once upon a time" * 3, "In a far land there lived" * 10, ""]

    async def body(ctx: Context) -> None:
        near = [await windowed(ctx, start + END, window=6) for start in beginnings]
        far = [await windowed(ctx, start + END, window=500) for start in beginnings]
        assert len(set(near)) == 1
        assert len(set(far)) == len(beginnings)

    await run(runtime, body)


async def test_a_section_is_heard_of_through_its_mark(runtime: Runtime) -> None:
    """1. Another first section changes what follows the last. 2. Not so by the window alone.
    3. Of each section but the last no more than its mark is remembered."""
    sections = [f"Section {n} tells of {n} stones, and how they were found." for n in range(6)]
    others = ["Section 7 tells of rain, and of the long way home.", *sections[1:]]

    async def told(ctx: Context, texts: Sequence[str], attention: Attention | None) -> list[float]:
        context, tree = await outline(ctx, texts)
        assert len(context) == SECTION * len(texts)
        return [token.logprob for token in await context.score(END, attention=attention or tree)]

    async def body(ctx: Context) -> None:
        one, other = await told(ctx, sections, None), await told(ctx, others, None)
        assert max(abs(a - b) for a, b in zip(one, other, strict=True)) > 1e-3
        window = Attention(SECTION)
        one, other = await told(ctx, sections, window), await told(ctx, others, window)
        assert one == pytest.approx(other, abs=1e-4)
        context, tree = await outline(ctx, sections)
        await context.generate(1, attention=tree, ignore_eos=True)
        (*_, cached) = (await runtime.executor.snapshot())["cached"]
        mark = len((await ctx.context("\nIn short:")).token_ids)
        assert cached["positions"] == SECTION - 1 + mark * (len(sections) - 1)

    await run(runtime, body)
